"""The optional attention kernels against the reference, with stand-ins for the libraries that compute with it too."""

from __future__ import annotations

import importlib
import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from support.fake_attention import FakePrefill, fake_fa3, fake_flashinfer, installed  # noqa: E402
from support.paged import PagedRunner  # noqa: E402
from support.tiny_models import SIZES  # noqa: E402

from tsd.engine.executor import planned  # noqa: E402
from tsd.engine.executor.mixed import MixedSteps  # noqa: E402
from tsd.engine.executor.rows import HostBatch  # noqa: E402
from tsd.engine.layers import site  # noqa: E402
from tsd.engine.model_config import config_from_json  # noqa: E402
from tsd.engine.models import Decoder, build_model  # noqa: E402
from tsd.engine.weights import open_weights  # noqa: E402
from tsd.kernels import registry as registry_module  # noqa: E402
from tsd.kernels.attention import reference  # noqa: E402
from tsd.kernels.catalog import builtin_specs  # noqa: E402
from tsd.kernels.compiling import CompilationCounter  # noqa: E402
from tsd.kernels.flashinfer import library  # noqa: E402
from tsd.kernels.platform import Platform  # noqa: E402
from tsd.kernels.registry import Registry  # noqa: E402
from tsd.kernels.spec import GRAPH_SAFE, BadOverride, NotBuilt, Objective, PrefillSite  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")

HALF: dict[str, int | float | bool | str] = {"num_q": 8, "num_kv": 2, "head_dim": 64}
HALF |= {"dtype": "bfloat16", "kv_dtype": "bfloat16"}
OURS = ("tsd.kernels.fa3.attention", "tsd.kernels.flashinfer.attention")
calls: list[dict[str, Any]] = []
made: dict[tuple[Any, ...], FakePrefill] = {}
built: set[tuple[Any, ...]] = set()


def our_decode(q: Any, k_cache: Any, v_cache: Any, out: Any, batch: Any, scale: float) -> None:
    """Stands for our decode kernel: writes the rows of one token, and no other."""
    whole = reference.paged(q, k_cache, v_cache, batch, scale)
    starts = batch.query_start.tolist()
    for begin, end in itertools.pairwise(starts):
        if end - begin == 1:
            out[begin] = whole[begin]


@pytest.fixture(autouse=True)
def libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Both libraries are there; our kernels, which need a GPU, are their reference."""
    calls.clear()
    made.clear()
    built.clear()
    version = library.version
    monkeypatch.setattr(library, "version", lambda name: "0.6.15.post1" if "flashinfer" in name else version(name))
    with installed({"flash_attn_interface": fake_fa3(calls), **fake_flashinfer(made, built)}):
        registry_module._findable.cache_clear()
        library.load.cache_clear()
        for name in OURS:
            module = importlib.import_module(name)
            monkeypatch.setattr(module, "decode", our_decode)
            monkeypatch.setattr(module, "attention", SimpleNamespace(paged=reference.paged))
        yield
    for name in OURS:
        sys.modules.pop(name, None)
    registry_module._findable.cache_clear()
    library.load.cache_clear()


def hopper(_: str = "") -> Platform:
    return Platform("cuda", "NVIDIA H200", capability=(9, 0))


def batch_of(counts: list[int], lens: list[int], page_size: int, spare_rows: int = 0) -> SimpleNamespace:
    """Rows of `counts` new tokens of `lens` keys on scrambled pages, then rows without tokens, as in a bucket."""
    rows, width = len(counts), -(-max(lens) // page_size) + 1
    table = torch.randperm((rows + spare_rows) * width, dtype=torch.int32).view(-1, width)
    starts = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32)
    return SimpleNamespace(
        positions=torch.cat([torch.arange(n - c, n, dtype=torch.int32) for c, n in zip(counts, lens, strict=True)]),
        query_start=torch.cat((starts, starts[-1:].expand(spare_rows))).contiguous(),
        kv_lens=torch.tensor(lens + [0] * spare_rows, dtype=torch.int32),
        page_table=table,
        num_rows=rows + spare_rows,
        num_decode=next((i for i, count in enumerate(counts) if count > 1), rows),
        max_query_len=max(counts),
        page_size=page_size,
        plans=None,
        pages=table.numel(),
    )


CASES = {
    "decode": ([1, 1, 1], [1, 16, 40]),
    "prefill": ([20, 3], [20, 50]),
    "mixed": ([1, 1, 30, 1, 5], [33, 1, 30, 12, 64]),
    "prefix hit": ([1, 7], [80, 71]),
}


def compute(backend: str, batch: SimpleNamespace, tokens: int, *, captured: bool, group: int = 4) -> tuple[Any, Any]:
    """(what the backend answers, what the reference does) on random queries and keys in bfloat16."""
    torch.manual_seed(1)
    counts = batch.query_start.diff()
    q = torch.randn(tokens, 2 * group, 64).bfloat16()
    caches = torch.randn(2, batch.pages, batch.page_size, 2, 64).bfloat16()
    if batch.max_query_len > 1 and backend == "flashinfer":
        from tsd.kernels.flashinfer.plans import Plans

        where = PrefillSite("bfloat16", 2 * group, 2, 64, batch.page_size)
        batch.plans = Plans(where, tokens, batch.num_rows, torch.device("cpu"))
        real = int((counts > 0).sum())
        starts, lens = batch.query_start[: real + 1].numpy(), batch.kv_lens[:real].numpy()
        width = batch.page_table.shape[1]
        batch.plans.plan(tokens, batch.num_rows, starts, lens, batch.num_decode, width)
    if captured and batch.max_query_len > 1:
        batch.num_decode, batch.max_query_len = batch.num_rows, tokens
    module = importlib.import_module(f"tsd.kernels.{backend}.attention")
    got = module.paged(q, caches[0], caches[1], batch, 0.125)
    return got, reference.paged(q, caches[0], caches[1], batch, 0.125)  # type: ignore[arg-type]


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize("backend", ["fa3", "flashinfer"])
def test_answers_are_the_references(backend: str, page_size: int, case: str, captured: bool) -> None:
    counts, lens = CASES[case]
    tokens = sum(counts)
    spare = 3 if captured and max(counts) > 1 else 0
    batch = batch_of(counts, lens, page_size, spare)
    got, wanted = compute(backend, batch, tokens + 8 * spare, captured=captured)
    assert got.shape == wanted.shape and got.dtype == torch.bfloat16
    torch.testing.assert_close(got[:tokens], wanted[:tokens], rtol=2e-2, atol=2e-2)


def test_fa3_gets_the_rows_after_those_that_decode() -> None:
    counts, lens = CASES["mixed"]
    compute("fa3", batch_of(counts, lens, 16, 2), sum(counts) + 4, captured=True)
    assert calls[-1]["starts"] == [2, 32, 33, 38, 38, 38, 38, 38]
    assert calls[-1]["lens"] == [30, 12, 64, 0, 0, 0, 0]


def test_fa3_splits_a_short_chunk_and_no_long_one() -> None:
    from tsd.kernels.fa3.attention import MOST_SPLITS, splits_for

    assert splits_for(64, 8, 2) == MOST_SPLITS
    assert splits_for(224, 32, 8) == 2
    assert splits_for(2048, 32, 8) == splits_for(8192, 16, 8) == 1


def test_plans_do_not_move_and_leave_decode_rows_out() -> None:
    """A graph finds its plan where it was recorded, whatever is planned; the pinned copies are used in turn."""
    from tsd.kernels.flashinfer.plans import RING, Plans

    plans = Plans(PrefillSite("bfloat16", 8, 2, 64, 16), 64, 8, torch.device("cpu"))
    there = plans._there.data_ptr()
    for turn in range(2 * RING):
        starts = np.array([0, 1, 2 + turn], np.int32)
        plans.plan(64, 8, starts, np.array([9, 40], np.int32), 1, 5)
        words = plans._there.view(torch.int32)
        assert words[:9].tolist() == [1] + [2 + turn] * 8
        assert words[9:18].tolist() == [5 * row for row in range(1, 10)]
        assert words[18:26].tolist() == [40] + [0] * 7
    assert plans._there.data_ptr() == there
    assert len({ring.data_ptr() for ring in plans._ring}) == RING
    assert list(made) == [library.Module("bfloat16", 64).arguments()]


def test_an_unplanned_step_is_our_own_mistake() -> None:
    counts, lens = CASES["prefill"]
    batch = batch_of(counts, lens, 16)
    module = importlib.import_module("tsd.kernels.flashinfer.attention")
    q, caches = torch.zeros(sum(counts), 8, 64).bfloat16(), torch.zeros(2, batch.pages, 16, 2, 64).bfloat16()
    with pytest.raises(AssertionError, match="not planned"):
        module.paged(q, caches[0], caches[1], batch, 0.125)


# -- choosing ------------------------------------------------------------------------------------------------------


def chosen(*, override: str = "", **options: Any) -> Any:
    traits = {**HALF, **options.pop("traits", {})}
    platform = options.pop("platform", hopper())
    config = {"attention": override} if override else {}
    ask = Registry(builtin_specs(), lambda _: platform)
    return ask.select("attention.paged", dtype="bfloat16", device="cuda:0", traits=traits, config=config, **options)


@pytest.mark.parametrize("goal", [Objective.LATENCY, Objective.THROUGHPUT])
def test_ours_is_chosen_unless_another_is_asked_for(goal: Objective) -> None:
    found = chosen(objective=goal)
    assert found.spec.name == "triton"
    lost = {each.spec.name: each.reason for each in found.candidates}
    assert lost["fa3"] == lost["flashinfer"] == f"performant is behind triton for {goal}"
    assert chosen(objective=Objective.PORTABILITY).spec.name == "triton_invariant"
    assert chosen(objective=Objective.DETERMINISM).spec.name == "triton_invariant"


@pytest.mark.parametrize("backend", ["fa3", "flashinfer"])
def test_what_is_asked_for_is_chosen(backend: str) -> None:
    found = chosen(override=backend)
    assert (found.spec.name, found.why) == (backend, "forced by config attention")
    assert GRAPH_SAFE in found.spec.flags and (found.plans is not None) == (backend == "flashinfer")


def test_a_measurement_can_make_one_better() -> None:
    ask = Registry(builtin_specs(), hopper)
    where = registry_module.site_key("attention.paged", hopper(), "bfloat16", "", HALF)
    ask._timings = {where: {"triton": 9e-6, "fa3": 8e-6, "flashinfer": 8.5e-6}}
    found = ask.select("attention.paged", dtype="bfloat16", device="cuda:0", traits=HALF)
    assert (found.spec.name, found.why) == ("fa3", "measured at 8.0 µs")


@pytest.mark.parametrize(
    "backend, options, reason",
    [
        (
            "fa3",
            {"platform": Platform("cuda", "NVIDIA A100", capability=(8, 0))},
            "needs compute capability 9.0 to 9.0",
        ),
        (
            "fa3",
            {"platform": Platform("cuda", "NVIDIA B200", capability=(10, 0))},
            "needs compute capability 9.0 to 9.0",
        ),
        ("fa3", {"traits": {"head_dim": 512}}, "heads of 512"),
        ("fa3", {"traits": {"kv_dtype": "float16"}}, "a float16 cache under bfloat16 queries"),
        ("flashinfer", {"traits": {"head_dim": 80}}, "heads of 80"),
        ("flashinfer", {"traits": {"num_q": 9}}, "9 query heads on 2 KV heads"),
        ("flashinfer", {"objective": "determinism"}, "a row's result may depend on its batch"),
    ],
)
def test_what_cannot_be_had_is_refused_with_the_reason(backend: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadOverride, match=f"attention={backend} cannot serve") as refused:
        chosen(override=backend, **options)
    assert f"{backend}: {reason}" in str(refused.value)
    if "objective" not in options:
        assert chosen(**options).spec.name in ("triton", "triton_invariant", "reference")


def test_a_library_that_is_missing_or_broken_loses_by_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = {each.spec.name: each.reason for each in chosen(override="triton").candidates}
    assert "flashinfer" in found
    monkeypatch.setattr(library, "version", lambda _: "0.7.1")
    sys.modules.pop("tsd.kernels.flashinfer.attention")
    with pytest.raises(BadOverride, match=r"ImportError: flashinfer 0\.7\.1 is installed, and 0\.6\.15 is needed"):
        chosen(override="flashinfer")
    assert [record.message for record in caplog.records] == [
        "kernel attention.paged flashinfer failed to load: flashinfer 0.7.1 is installed, and 0.6.15 is needed"
    ]
    for name in ("flash_attn_interface", "flashinfer"):
        monkeypatch.delitem(sys.modules, name)
    registry_module._findable.cache_clear()
    missing = {each.spec.name: each.reason for each in chosen().candidates}
    if not any(map(registry_module._findable, ("flash_attn_interface", "flashinfer"))):
        assert missing["fa3"] == "module flash_attn_interface is not installed"
        assert missing["flashinfer"] == "module flashinfer is not installed"


# -- in a model ----------------------------------------------------------------------------------------------------


def model(monkeypatch: pytest.MonkeyPatch, backend: str) -> Decoder:
    """A tiny model in bfloat16 on the CPU whose attention is the backend's; all else is plain torch."""
    ask = Registry(builtin_specs())
    for spec in ask.kernels("attention.paged"):
        if spec.name == backend:
            ask.register(replace(spec, devices=frozenset({"cpu"})))
    monkeypatch.setattr(site, "select", ask.select)
    sizes = {**SIZES, "architectures": ["Qwen3ForCausalLM"], "head_dim": 64}
    config = config_from_json(sizes)
    weights = open_weights("", "dummy", config=config)
    return build_model(
        config,
        dtype="bfloat16",
        weights=weights,
        overrides={"attention": backend, "gemm": "torch", "norm": "torch", "embedding": "torch"},
    )


class Replay:
    """Stands for a graph: runs the body of its bucket and puts the logits where they were recorded."""

    def __init__(self, steps: MixedSteps, bucket: Any, logits: Any) -> None:
        self.steps, self.bucket, self.logits = steps, bucket, logits

    def replay(self) -> None:
        self.logits.copy_(self.steps._captured_body(self.bucket))


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("backend", ["reference", "fa3", "flashinfer"])
def test_steps_plan_before_they_run(backend: str, graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt, then a step that decodes it and prefills another, then a chunk on cached keys: the runner's logits."""
    decoder = model(monkeypatch, backend)
    page_size, slots, most = 16, 4, 64
    runner = PagedRunner(model(monkeypatch, "reference"), page_size=page_size)
    cache = decoder.allocate_cache(64, page_size)
    table = torch.arange(1, 1 + (slots + 1) * 6, dtype=torch.int32).view(slots + 1, 6)
    last_token = torch.zeros(slots + 1, dtype=torch.int32)
    monkeypatch.setattr("tsd.engine.executor.mixed.pinned", lambda size, _: torch.zeros(size, dtype=torch.int32))
    cpu = torch.device("cpu")
    plans = planned.plans_for(decoder, page_size, most, slots, cpu)
    assert (plans is not None) == (backend == "flashinfer")
    steps = MixedSteps(decoder, cache, last_token, table, max_tokens=most, max_rows=slots, device=cpu, plans=plans)
    if graphs:
        if backend == "reference":
            pytest.skip("it looks at lengths on the host")
        steps.touch(graphs=True)
        for bucket in steps.graph_sizes():
            logits = torch.zeros(bucket.rows, decoder.config.vocab_size, dtype=torch.bfloat16)
            steps._graphs[bucket] = (Replay(steps, bucket, logits), logits)  # type: ignore[assignment]

    def host(rows: list[tuple[int, int, list[int]]], decoding: int) -> HostBatch:
        """Rows of (slot, first position, tokens); a decode row's token comes from its slot."""
        counts = [len(tokens) for _, _, tokens in rows]
        starts = np.array([0, *np.cumsum(counts)], np.int32)
        tokens = [t for i, (slot, _, row) in enumerate(rows) for t in ([-1 - slot] if i < decoding else row)]
        positions = np.concatenate([np.arange(first, first + len(row)) for _, first, row in rows]).astype(np.int32)
        owner = np.repeat([slot for slot, _, _ in rows], counts)
        places = table.numpy()[owner, positions // page_size] * page_size + positions % page_size
        lens = np.array([first + len(row) for _, first, row in rows], np.int32)
        return HostBatch(
            np.array([slot for slot, _, _ in rows], np.int32),
            np.array(tokens, np.int32),
            positions,
            places.astype(np.int32),
            starts,
            lens,
            starts[1:] - 1,
            max(counts),
            int(lens.max()),
        )

    draw = np.random.default_rng(2)
    first, second = (draw.integers(3, 150, size).tolist() for size in (21, 40))
    a, b = runner.add(first), runner.add(second)
    near = {"rtol": 5e-2, "atol": 5e-2}

    got = steps.run(host([(0, 0, first)], 0), 0)
    torch.testing.assert_close(got[0].float(), runner.step([(a, 21)])[0], **near)
    last_token[0] = 7
    a.tokens.append(7)
    got = steps.run(host([(0, 21, [7]), (2, 0, second[:33])], 1), 1)
    torch.testing.assert_close(got.float(), runner.step([(a, 1), (b, 33)]), **near)
    got = steps.run(host([(2, 33, second[33:])], 0), 0)
    torch.testing.assert_close(got[0].float(), runner.step([(b, 7)])[0], **near)


def test_a_kernel_that_no_graph_may_hold_turns_them_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tsd.engine")
    assert not planned.may_record(model(monkeypatch, "reference"))
    assert "without CUDA graphs" in caplog.text and "attention.paged reference" in caplog.text


@pytest.mark.parametrize("backend", ["fa3", "flashinfer"])
def test_what_there_is_to_compile_is_found_without_a_gpu(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our decode in all its variants and no prefill of ours; of flashinfer its one module, which comes first."""
    from tsd.engine.config import EngineConfig
    from tsd.engine.variants import variants

    sizes = {**SIZES, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 64}
    (tmp_path / "config.json").write_text(json.dumps({**sizes, "torch_dtype": "bfloat16"}))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    for name in OURS:  # with our decode as it is
        sys.modules.pop(name, None)
    registry_module.default_registry.cache_clear()
    config = EngineConfig(
        model=str(tmp_path), load_format="dummy", device="cuda:0", max_num_seqs=20, attention_backend=backend
    )
    jobs = variants(config, hopper(), 140 << 30)
    names = [job.name for job in jobs]
    assert {"shared_kernel", "solo_kernel"} <= set(names) and "paged_kernel" not in names
    assert names.count("flashinfer") == (backend == "flashinfer")
    assert not calls and not made
    registry_module.default_registry.cache_clear()


def test_the_command_says_why_a_backend_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tsd.engine import kernels_command

    sizes = {**SIZES, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 64}
    (tmp_path / "config.json").write_text(json.dumps({**sizes, "torch_dtype": "bfloat16"}))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    for name in ("flash_attn_interface", "flashinfer"):
        monkeypatch.delitem(sys.modules, name)
    registry_module._findable.cache_clear()
    registry_module.default_registry.cache_clear()
    if any(map(registry_module._findable, ("flash_attn_interface", "flashinfer"))):
        pytest.skip("a library is installed")
    asked = [str(tmp_path), "--load-format", "dummy", "--build", "--gpu", "h200", "--attention-backend"]
    assert kernels_command.main([*asked, "fa3"]) == 3
    assert "fa3: module flash_attn_interface is not installed" in capsys.readouterr().err
    assert kernels_command.main([*asked, "flashinfer"]) == 3
    assert "flashinfer: module flashinfer is not installed" in capsys.readouterr().err
    assert kernels_command.main([*asked, "flash"]) == 3
    assert "no attention kernel has that name or solution" in capsys.readouterr().err
    assert kernels_command.main([str(tmp_path), "--load-format", "dummy", "--all"]) == 0
    assert "not fa3                  runs on cuda" in capsys.readouterr().out
    registry_module.default_registry.cache_clear()


def test_a_module_that_is_not_there_is_built_and_one_that_cannot_be_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", None)
    module = library.Module("float16", 128)
    library.load(module)
    assert built == {module.arguments()} and "was not built ahead: compiled in 0 s" in caplog.text
    assert not library.build(module)

    counter = CompilationCounter()
    counter.start()
    library.load(library.Module("bfloat16", 256))
    library.load(module)
    assert (counter.count, counter.names) == (1, ["flashinfer prefill, bfloat16, heads of 256"])

    def fails(*_: object) -> None:
        raise RuntimeError("nvcc is not there")

    monkeypatch.setattr(sys.modules["flashinfer.jit.attention.modules"], "gen_batch_prefill_module", fails)
    with pytest.raises(NotBuilt, match="float16 heads of 64: nvcc is not there"):
        library.load(library.Module("float16", 64))
