"""flashinfer's prefill for Hopper: which module a call needs, whether it is built, building and loading it.

The library compiles a module at its first use, a minute and a half of 16 cores, and keeps it in a cache of its own
(FLASHINFER_WORKSPACE_BASE, else ~/.cache/flashinfer). Imports flashinfer only when asked: that looks for a GPU.
"""

from __future__ import annotations

import logging
import time
from functools import cache
from importlib.metadata import version
from typing import Any, NamedTuple

import torch

from tsd.kernels.compiling import count
from tsd.kernels.spec import NotBuilt

log = logging.getLogger("tsd.kernels")

VERSIONS = ("0.6.15",)
"""Releases whose modules take the arguments that `plans.py` gives them."""


class Module(NamedTuple):
    """What one compiled module is for."""

    dtype: str
    head_dim: int

    def arguments(self) -> tuple[Any, ...]:
        """As flashinfer asks: types of q, kv, o and indices, head sizes; no position encoding, plain softmax."""
        kind = getattr(torch, self.dtype)
        return "fa3", kind, kind, kind, torch.int32, self.head_dim, self.head_dim, 0, False, False, False


def check_version() -> None:
    """Raises ImportError for a release whose modules we have not tried."""
    found = version("flashinfer-python")
    if not found.startswith(VERSIONS):
        raise ImportError(f"flashinfer {found} is installed, and {' or '.join(VERSIONS)} is needed")


def build(module: Module) -> bool:
    """Compiles the module into flashinfer's cache; False where it was there. Raises what flashinfer raises."""
    from flashinfer.jit.attention.modules import gen_batch_prefill_module

    spec = gen_batch_prefill_module(*module.arguments())
    if spec.is_compiled:
        return False
    spec.build(verbose=False)
    return True


@cache
def load(module: Module) -> Any:
    """Its `plan` and `paged_run`, compiled first where that was not done ahead. Raises NotBuilt."""
    try:
        from flashinfer.prefill import get_batch_prefill_module

        began = time.monotonic()
        log.info("flashinfer's prefill for %s heads of %d: loading, or compiling, which takes minutes", *module)
        if build(module):
            log.warning("flashinfer's prefill was not built ahead: compiled in %.0f s", time.monotonic() - began)
            count(f"flashinfer prefill, {module.dtype}, heads of {module.head_dim}")
        return get_batch_prefill_module(*module.arguments())
    except Exception as error:  # the compiler's and the loader's errors are of any kind; the operator needs the words
        raise NotBuilt(f"flashinfer's prefill for {module.dtype} heads of {module.head_dim}: {error}") from error
