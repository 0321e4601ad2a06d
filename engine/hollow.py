"""Torch operations on the `meta` device, answered by their shapes alone.

Torch computes the shapes of some operations in Python, and loads its compiler to do so: seconds, for what a line can
say. Operations that are not listed here go the long way and are right too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def _new(like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.empty(like.shape, dtype=dtype or like.dtype, device=like.device)


def _same(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return _new(x)


def _itself(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return x


def _like(x: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    return _new(x, dtype)


def _log_softmax(x: torch.Tensor, *_: Any, dtype: torch.dtype | None = None, **__: Any) -> torch.Tensor:
    return _new(x, dtype)


def _truth(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return _new(x, torch.bool)


def _where(_: torch.Tensor, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return _new(x)


def _topk(x: torch.Tensor, k: int, dim: int = -1, **_: Any) -> Any:
    shape = list(x.shape)
    shape[dim] = k
    values = torch.empty(shape, dtype=x.dtype, device=x.device)
    return torch.return_types.topk((values, torch.empty(shape, dtype=torch.int64, device=x.device)))


def _index_select(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    shape = list(x.shape)
    shape[dim] = len(index)
    return torch.empty(shape, dtype=x.dtype, device=x.device)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return torch.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype, device=x.device)


def _arange(*bounds: int, **options: Any) -> torch.Tensor:
    return torch.empty(len(range(*bounds)), **{"dtype": torch.int64, **options})


_ANSWERS: dict[Any, Callable[..., Any]] = {
    torch.Tensor.add_: _itself,
    torch.Tensor.addmm_: _itself,
    torch.nn.functional.linear: _linear,
    torch.empty_like: _like,
    torch.ones_like: _like,
    torch.zeros_like: _like,
    torch.where: _where,
    torch.Tensor.log_softmax: _log_softmax,
    torch.Tensor.topk: _topk,
    torch.Tensor.index_select: _index_select,
    torch.Tensor.clamp_min: _same,
    torch.Tensor.__rsub__: _same,
    torch.Tensor.lt: _truth,
    torch.Tensor.__lt__: _truth,
}


class HollowOperations(TorchFunctionMode):
    """Within, the listed operations on `meta` tensors give an empty tensor of the right shape and type."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        answer = _ANSWERS.get(func)
        if answer is not None and isinstance(args[0], torch.Tensor) and args[0].device.type == "meta":
            return answer(*args, **options)
        if func is torch.Tensor.__getitem__ and isinstance(args[1], torch.Tensor) and args[0].device.type == "meta":
            return torch.empty((*args[1].shape, *args[0].shape[1:]), dtype=args[0].dtype, device=args[0].device)
        if func is torch.arange and str(options.get("device")) == "meta":
            return _arange(*args, **options)
        return func(*args, **options)
