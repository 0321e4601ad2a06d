"""The grouped layout that the C kernels read: 16 rows side by side, so that one vector holds 16 outputs.

Knows layouts only. With G = ceil(N / 16) groups (the last padded with zeros):

  q4_1   qs uint8 [G, K/32, 4, 16, 4]: byte (j, r, b) holds column 4j + b low, 16 + 4j + b high
         scales float16 [G, K/32, 2, 16]: d, then m
  q8_0   qs uint8 [G, K/32, 8, 16, 4]: value + 128;  scales float16 [G, K/32, 1, 16]
  int8   qs as q8_0;  scales float32 [G, 16]
  dense  qs float [G, K, 16]

Packing loses nothing: `unpack` gives back the same rows.
"""

from __future__ import annotations

import torch

from tsd.kernels.weight import BLOCK, Weight, WeightError

LAYOUT = "x16"
LANES = 16
METHODS = ("dense", "q4_1", "q8_0", "int8")


def pack(weight: Weight) -> Weight:
    """`weight` in the grouped layout (itself when it is there already). Raises WeightError for another method."""
    if weight.layout == LAYOUT:
        return weight
    rows = weight.as_rows()
    if rows.method not in METHODS:
        raise WeightError(f"the CPU kernels read {', '.join(METHODS)}, not {rows.method}")
    n, k = rows.shape
    groups, blocks = -(-n // LANES), k // BLOCK
    if rows.method != "dense" and k % BLOCK:
        raise WeightError(f"the CPU kernels read {rows.method} in blocks of {BLOCK} columns, not {k} columns")
    if rows.method == "dense":
        qs = _grouped(rows.tensors["w"], groups).transpose(1, 2)
        return _made(rows, {"qs": qs.contiguous()})
    if rows.method == "q4_1":
        qs = _grouped(rows.tensors["qs"], groups).view(groups, LANES, blocks, 4, 4).permute(0, 2, 3, 1, 4)
        pair = torch.stack((rows.tensors["d"], rows.tensors["m"]), dim=-1)
        scales = _grouped(pair, groups).permute(0, 2, 3, 1)
    else:
        shifted = (rows.tensors["qs"].to(torch.int16) + 128).to(torch.uint8)
        qs = _grouped(shifted, groups).view(groups, LANES, blocks, 8, 4).permute(0, 2, 3, 1, 4)
        scales = _grouped(rows.tensors["d"], groups)
        if rows.method == "q8_0":
            scales = scales.permute(0, 2, 1).unsqueeze(2)
    return _made(rows, {"qs": qs.contiguous(), "scales": scales.contiguous()})


def unpack(weight: Weight) -> Weight:
    """The same weight as canonical rows."""
    n, k = weight.shape
    qs = weight.tensors["qs"]
    if weight.method == "dense":
        return Weight("dense", {"w": qs.transpose(1, 2).reshape(-1, k)[:n].contiguous()}, weight.shape)
    blocks = k // BLOCK
    flat = qs.permute(0, 3, 1, 2, 4).reshape(len(qs) * LANES, blocks, -1)[:n].contiguous()
    if weight.method == "int8":
        signed = (flat.view(n, k).to(torch.int16) - 128).to(torch.int8)
        return Weight("int8", {"qs": signed, "d": weight.tensors["scales"].reshape(-1)[:n].contiguous()}, weight.shape)
    scales = weight.tensors["scales"].permute(0, 3, 1, 2).reshape(len(qs) * LANES, blocks, -1)[:n]
    if weight.method == "q4_1":
        tensors = {"qs": flat, "d": scales[:, :, 0].contiguous(), "m": scales[:, :, 1].contiguous()}
    else:
        signed = (flat.to(torch.int16) - 128).to(torch.int8)
        tensors = {"qs": signed, "d": scales[:, :, 0].contiguous()}
    return Weight(weight.method, tensors, weight.shape)


def _grouped(tensor: torch.Tensor, groups: int) -> torch.Tensor:
    """[N, ...] to [G, 16, ...], zeros below."""
    if short := groups * LANES - len(tensor):
        tensor = torch.cat((tensor, tensor.new_zeros(short, *tensor.shape[1:])))
    return tensor.reshape(groups, LANES, *tensor.shape[1:])


def _made(rows: Weight, tensors: dict[str, torch.Tensor]) -> Weight:
    return Weight(rows.method, tensors, rows.shape, LAYOUT, unpack)
