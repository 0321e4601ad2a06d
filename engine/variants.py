"""Which kernel variants an engine will launch, found without a GPU: its own steps, run on torch's `meta` device.

Tensors there have shapes, types and alignments but no memory, and kernels are chosen as for the GPU that `meta` stands
in for. Two layers are enough, since all layers launch the same kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from tsd.engine.build import assemble, kernel_overrides, memory_of, objective_of
from tsd.engine.config import EngineConfig
from tsd.engine.executor.decode import DecodeSteps
from tsd.engine.executor.mixed import MixedSteps
from tsd.engine.executor.planned import may_record, plans_for
from tsd.engine.executor.rows import Rows
from tsd.engine.executor.staging import Staging
from tsd.engine.executor.warmup import touch
from tsd.engine.hollow import HollowOperations
from tsd.engine.memory import MemoryPlan
from tsd.engine.model_config import ModelConfig, load_model_config
from tsd.engine.models import Decoder
from tsd.engine.weights import open_weights
from tsd.engine.weights.source import TensorInfo, WeightSource
from tsd.kernels.ahead import Job, recorded
from tsd.kernels.platform import Platform, stand_in
from tsd.kernels.registry import select
from tsd.kernels.spec import Selection
from tsd.kernels.weight import Weight

META = torch.device("meta")
LAYERS = 2


class ShapesOnly(WeightSource):
    """Another source's names and formats; its numbers are not read."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        self.path = source.path

    @property
    def index(self) -> Mapping[str, TensorInfo]:
        return self._source.index

    def check(self, expected: Mapping[str, tuple[int, ...]], ignored: Callable[[str], bool]) -> None:
        """The engine checks; here most layers are left out."""

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Leaves `out` as it is."""

    def packed_method(self, name: str) -> str:
        return self._source.packed_method(name)

    def read_packed(self, name: str) -> Weight:
        return self._source.read_packed(name)


class _NoLanding:
    """Stands where graphs are queued."""

    def launch(self, graph: int) -> None: ...

    def signal(self) -> None: ...


class Sketch(NamedTuple):
    """An engine's steps on `meta`, as `CudaExecutor` sets them out."""

    decode: DecodeSteps
    mixed: MixedSteps
    sample: Selection
    rows: Rows
    max_rows: int
    vocab_size: int


def variants(
    config: EngineConfig, platform: Platform, memory_bytes: int, found: Callable[[Job], object] = bool
) -> list[Job]:
    """Each kernel that an engine of `config` launches on a GPU of that kind and memory, as something to compile.

    `found` is told of each at once.
    From then on `meta` stands for that GPU in this process. Raises what building the model raises.
    """
    with torch.inference_mode(), HollowOperations(), recorded(platform.capability, found) as jobs:
        steps = sketch(config, platform, memory_bytes)
        if steps.mixed.plans is not None:  # first: it takes the longest
            jobs.append(steps.mixed.plans.ahead(platform.capability))
            found(jobs[-1])
        touch(steps.decode, steps.mixed, steps.sample, max_rows=steps.max_rows, vocab_size=steps.vocab_size)
    return jobs


def sketch(config: EngineConfig, platform: Platform, memory_bytes: int) -> Sketch:
    """The steps of such an engine; `meta` stands for its GPU from then on."""
    stand_in(str(META), platform)
    model_config = load_model_config(config.model)
    whole = _build(config, model_config, load=False)
    memory = memory_of(config, whole, free_bytes=memory_bytes - whole.weight_bytes, total_bytes=memory_bytes)
    model = _build(config, replace(model_config, num_layers=min(LAYERS, model_config.num_layers)), load=True)
    return _steps(config, model, memory)


def _build(config: EngineConfig, model_config: ModelConfig, *, load: bool) -> Decoder:
    source = open_weights(config.model, config.load_format, config=model_config, seed=config.seed)
    try:
        return assemble(config, model_config, META, ShapesOnly(source), load=load)
    finally:
        source.close()


def _steps(config: EngineConfig, model: Decoder, memory: MemoryPlan) -> Sketch:
    sample = select("sampling.sample", device=META, objective=objective_of(config), config=kernel_overrides(config))
    cache = model.allocate_cache(memory.num_pages, memory.page_size)
    vocab_size = model.config.vocab_size
    rows = Rows(memory.max_num_seqs, memory.max_model_len, memory.page_size, vocab_size)
    slots = memory.max_num_seqs + 1
    last_token = torch.zeros(slots, dtype=torch.int32, device=META)
    page_table = torch.zeros((slots, rows.page_table.shape[1]), dtype=torch.int32, device=META)
    landing: Any = _NoLanding()
    stream: Any = None
    staging = Staging(memory.max_num_seqs + memory.max_num_seqs % 2, rows.page_table.shape[1], META)
    decode = DecodeSteps(
        model,
        cache,
        sample,
        rows,
        last_token,
        page_table,
        staging,
        landing,
        stream,
        use_graphs=config.cuda_graphs and may_record(model),
    )
    mixed = MixedSteps(
        model,
        cache,
        last_token,
        page_table,
        max_tokens=memory.chunked_prefill_size,
        max_rows=memory.max_num_seqs,
        device=META,
        plans=plans_for(model, memory.page_size, memory.chunked_prefill_size, memory.max_num_seqs, META),
    )
    return Sketch(decode, mixed, sample, rows, memory.max_num_seqs, vocab_size)
