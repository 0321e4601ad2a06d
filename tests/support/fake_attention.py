"""Stand-ins for FlashAttention-3 and flashinfer: they check what they are handed and compute with our reference.

Each is as strict as the library it stands for about names, types, shapes and who reads what; neither is its code.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from tsd.kernels.attention import reference

FLASHINFER_ARGUMENTS = 31
"""Of `paged_run` of release 0.6.15, as far as a plain prefill names them."""


def attend(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    starts: list[int],
    lens: list[int],
    tables: list[torch.Tensor],
    scale: float,
    out: torch.Tensor,
) -> None:
    """Row i's queries are the last of its lens[i] keys, on pages tables[i]: into `out`, zeros where there is no key."""
    page_size = k_cache.shape[1]
    for row, length in enumerate(lens):
        begin, end = starts[row], starts[row + 1]
        if begin == end:
            continue
        if length == 0:
            out[begin:end] = 0
            continue
        batch = SimpleNamespace(
            positions=torch.arange(length - (end - begin), length, dtype=torch.int32),
            query_start=torch.tensor([0, end - begin], dtype=torch.int32),
            kv_lens=torch.tensor([length], dtype=torch.int32),
            page_table=tables[row][None],
            num_rows=1,
            page_size=page_size,
        )
        got = reference.paged(q[begin:end], k_cache, v_cache, batch, scale)  # type: ignore[arg-type]
        out[begin:end] = got.view(end - begin, *q.shape[1:])


def _checked(tensor: torch.Tensor, *shape: int) -> torch.Tensor:
    assert tensor.dtype == torch.int32 and tuple(tensor.shape) == shape and tensor.is_contiguous()
    return tensor


def fake_fa3(calls: list[dict[str, Any]]) -> ModuleType:
    """A module `flash_attn_interface`; `calls` gets each call's host-side arguments."""
    module = ModuleType("flash_attn_interface")

    def flash_attn_with_kvcache(
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        *,
        cache_seqlens: torch.Tensor,
        page_table: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        max_seqlen_q: int,
        softmax_scale: float,
        causal: bool,
        num_splits: int,
    ) -> torch.Tensor:
        rows = len(cache_seqlens)
        assert q.ndim == 3 and q.dtype in (torch.bfloat16, torch.float16) and k_cache.dtype == q.dtype
        assert k_cache.ndim == 4 and k_cache.shape == v_cache.shape and k_cache.shape[3] == q.shape[2]
        assert causal and num_splits >= 1, "a split that the host guesses is an allocation that it guesses"
        assert page_table.dtype == torch.int32 and page_table.shape[0] == rows and page_table.stride(1) == 1
        starts = _checked(cu_seqlens_q, rows + 1).tolist()
        lens = _checked(cache_seqlens, rows).tolist()
        assert max(b - a for a, b in itertools.pairwise(starts)) <= max_seqlen_q
        calls.append({"max_seqlen_q": max_seqlen_q, "num_splits": num_splits, "starts": starts, "lens": lens})
        out = torch.full_like(q, float("nan"))
        attend(q, k_cache, v_cache, starts, lens, list(page_table), softmax_scale, out)
        return out

    module.flash_attn_with_kvcache = flash_attn_with_kvcache  # type: ignore[attr-defined]
    return module


class FakePrefill:
    """A module of flashinfer's: `plan` writes into the buffer on the host and copies, `paged_run` reads the copy."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self.arguments = arguments
        self.planned: list[tuple[int, int]] = []

    def plan(
        self,
        floats: torch.Tensor,
        there: torch.Tensor,
        pinned: torch.Tensor,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_lens: torch.Tensor,
        total_rows: int,
        batch_size: int,
        num_q: int,
        num_kv: int,
        page_size: int,
        graph: bool,
        head_dim_qk: int,
        head_dim_vo: int,
        causal: bool,
        window_left: int,
    ) -> list[int]:
        assert there.dtype == pinned.dtype == floats.dtype == torch.uint8 and len(there) == len(pinned)
        assert all(t.device.type == "cpu" for t in (qo_indptr, kv_indptr, kv_lens, pinned))
        _checked(qo_indptr, batch_size + 1), _checked(kv_indptr, batch_size + 1), _checked(kv_lens, batch_size)
        assert graph and causal and window_left == -1 and head_dim_qk == head_dim_vo and num_q % num_kv == 0
        counts = qo_indptr.diff()
        assert (counts >= 0).all() and int(qo_indptr[-1]) <= total_rows
        # The library needs an entry a tile and head in each of seven lists, and one a multiprocessor in an eighth.
        tiles = -(-total_rows // 128) + batch_size - 1
        assert len(there) >= 4 * (7 * tiles * num_q + 133) + 8 * 16, "the plan does not fit"
        written = torch.cat((qo_indptr, kv_indptr, kv_lens, torch.tensor([page_size], dtype=torch.int32)))
        words = pinned.view(torch.int32)
        words[: len(written)] = written
        there.copy_(pinned)
        self.planned.append((total_rows, batch_size))
        return [total_rows, batch_size]

    def paged_run(self, *arguments: Any) -> None:
        floats, there, info, q, k_cache, v_cache = arguments[:6]
        indices, out, lse, mask, layout, window, pdl = arguments[8], *arguments[10:16]
        assert len(arguments) == FLASHINFER_ARGUMENTS and floats.dtype == torch.uint8
        assert lse is None and (mask, layout, window, pdl) == (1, 0, -1, False)
        assert k_cache.stride() == v_cache.stride() and q.dtype == k_cache.dtype == out.dtype == self.arguments[1]
        total, rows = info
        assert len(q) == total and out.shape == q.shape
        words = there.view(torch.int32)
        starts, tables, lens = words[: rows + 1], words[rows + 1 : 2 * rows + 2], words[2 * rows + 2 : 3 * rows + 2]
        page_size = int(words[3 * rows + 2])
        assert page_size == k_cache.shape[1]
        pages = [indices[int(tables[i]) :][: -(-int(lens[i]) // page_size)] for i in range(rows)]
        attend(q, k_cache, v_cache, starts.tolist(), lens.tolist(), pages, arguments[23], out)


class FakeSpec:
    """What flashinfer says of a module before it is loaded; `built` are those that are compiled."""

    def __init__(self, arguments: tuple[Any, ...], built: set[tuple[Any, ...]]) -> None:
        self._arguments = arguments
        self._built = built

    @property
    def is_compiled(self) -> bool:
        return self._arguments in self._built

    def build(self, verbose: bool) -> None:
        self._built.add(self._arguments)


def fake_flashinfer(made: dict[tuple[Any, ...], FakePrefill], built: set[tuple[Any, ...]]) -> dict[str, ModuleType]:
    """The modules of flashinfer that we import; `made` gets each kernel module asked for, `built` each compiled."""
    names = ("flashinfer", "flashinfer.prefill", "flashinfer.jit", "flashinfer.jit.attention")
    modules = {name: ModuleType(name) for name in (*names, "flashinfer.jit.attention.modules", "tvm_ffi")}

    def get_batch_prefill_module(*arguments: Any) -> FakePrefill:
        return made.setdefault(arguments, FakePrefill(arguments))

    modules["flashinfer.prefill"].get_batch_prefill_module = get_batch_prefill_module  # type: ignore[attr-defined]
    jit = modules["flashinfer.jit.attention.modules"]
    jit.gen_batch_prefill_module = lambda *arguments: FakeSpec(arguments, built)  # type: ignore[attr-defined]
    return modules


@contextmanager
def installed(modules: dict[str, ModuleType]) -> Iterator[None]:
    """Within, these modules are what an import finds; what was imported of ours with them is forgotten after."""
    before = {name: sys.modules.get(name) for name in modules}
    for name, module in modules.items():
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        module.__path__ = []  # type: ignore[attr-defined]
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, found in before.items():
            if found is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = found
