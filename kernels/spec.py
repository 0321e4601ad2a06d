"""What a kernel says about itself. Pure data: knows nothing about torch, devices at hand or how a choice is made.

KernelError
├─ UnknownOperation   nobody registered a kernel for that operation
├─ BadOverride        a forced kernel does not exist or cannot run here
├─ NoKernel           every candidate lost; the message says why each did
├─ NotBuilt           what another library compiles for a chosen kernel could not be compiled
└─ BadTimings         the file of measured timings cannot be read
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

TraitValue = int | float | bool | str
Traits = Mapping[str, TraitValue]

FLOATS = frozenset({"float32", "bfloat16", "float16"})

DETERMINISTIC = "deterministic"
"""Same inputs, same bits."""
BATCH_INVARIANT = "batch_invariant"
"""A row's bits do not depend on the other rows, on chunking, or on which pages hold its KV."""
GRAPH_SAFE = "graph_safe"
"""May be recorded in a CUDA graph: no host synchronisation, no shape that depends on data."""


class KernelError(Exception):
    """The root of this layer's errors."""


class UnknownOperation(KernelError):
    """No kernel was ever registered under this operation."""


class BadOverride(KernelError):
    """A kernel was forced that does not exist or cannot run here."""


class NoKernel(KernelError):
    """Every candidate lost."""


class NotBuilt(KernelError):
    """Another library could not compile what a chosen kernel needs."""


class BadTimings(KernelError):
    """The file of measured timings is not what it should be."""


class Priority(IntEnum):
    """Bands; among kernels that fit, the higher band wins unless the objective or a measurement says otherwise."""

    REFERENCE = 0
    PORTABLE = 4
    PERFORMANT = 8
    SPECIALIZED = 12
    PLUGIN = 16


class Objective(StrEnum):
    """What the caller wants the choice to be good at."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"
    PORTABILITY = "portability"
    DETERMINISM = "determinism"
    DEBUG = "debug"


@dataclass(frozen=True)
class KernelSpec:
    """One implementation of one operation. Registering a spec imports nothing.

    `target` is `module:function`, imported when the spec wins. `prepare`, if any, names a function
    `(Weight) -> Weight` that puts a weight into the layout this kernel reads; it is run once at load.
    `plans`, if any, names a class whose objects plan each step with prefill rows on the host, before it is launched:
    `(PrefillSite, max_tokens, max_rows, device)`, then `plan(…)` before each step and the object as `batch.plans`; see
    `kernels/flashinfer/plans.py`. Such a kernel is safe in a graph that is planned for before each replay.
    """

    op: str
    """Family and operation, e.g. `gemm.linear`."""
    name: str
    """Unique among the kernels of `op`."""
    solution: str
    """Who computes: torch, c, triton, flashinfer, …; an override may name it in place of `name`."""
    target: str
    priority: Priority
    devices: frozenset[str] = frozenset({"cpu", "cuda"})
    dtypes: frozenset[str] = FLOATS
    weight_methods: frozenset[str] = frozenset()
    """Weight methods it reads; empty means that the operation has no weight or any will do."""
    min_capability: tuple[int, int] = (0, 0)
    """Lowest CUDA compute capability; not looked at on a CPU."""
    max_capability: tuple[int, int] = (99, 9)
    cpu_features: frozenset[str] = frozenset()
    """Instruction sets that a CPU must have, as /proc/cpuinfo spells them; not looked at on a GPU."""
    requires: tuple[str, ...] = ()
    """Modules that must be findable; checked without importing them."""
    accepts: Callable[[Traits], str | None] | None = None
    """Looks at the shape traits: None accepts, a sentence says why not. An absent trait must be tolerated."""
    flags: frozenset[str] = frozenset()
    favours: frozenset[Objective] = frozenset()
    """Objectives for which this kernel is ahead of its band's other members."""
    prepare: str = ""
    plans: str = ""
    summary: str = ""

    @property
    def family(self) -> str:
        return self.op.partition(".")[0]


class PrefillSite(NamedTuple):
    """What a kernel that plans its steps on the host is told of the attention it serves."""

    dtype: str
    num_q: int
    num_kv: int
    head_dim: int
    page_size: int


class Candidate(NamedTuple):
    """One kernel that was looked at, and what became of it."""

    spec: KernelSpec
    chosen: bool
    reason: str


@dataclass(frozen=True)
class Selection:
    """The kernel chosen for one call site, and why."""

    fn: Callable[..., Any]
    spec: KernelSpec
    why: str
    candidates: tuple[Candidate, ...]
    prepare: Callable[[Any], Any] = field(default=lambda weight: weight)
    """Puts a `Weight` into the layout that `fn` reads; the identity where the kernel has none of its own."""
    plans: Callable[..., Any] | None = None
    """Makes what plans this kernel's steps, where it needs that; see `KernelSpec`."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.fn(*args, **options)
