"""The list of kernels to compile ahead has every variant that serving launches. No GPU: torch's `meta` device."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tsd.engine import kernels_command  # noqa: E402 (after what may be missing)
from tsd.engine.config import EngineConfig  # noqa: E402
from tsd.engine.executor.rows import HostBatch  # noqa: E402
from tsd.engine.hollow import HollowOperations  # noqa: E402
from tsd.engine.live import LiveRequest  # noqa: E402
from tsd.engine.precompile import Precompile  # noqa: E402
from tsd.engine.protocol import SamplingParams, Submit  # noqa: E402
from tsd.engine.variants import META, Sketch, sketch, variants  # noqa: E402
from tsd.kernels.ahead import Job, recorded  # noqa: E402
from tsd.kernels.platform import Platform  # noqa: E402

# Triton 3.9 announces a default of the next version.
pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")

H200 = Platform("cuda", "NVIDIA H200", capability=(9, 0))
MEMORY = 140 << 30

SHAPE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_hidden_layers": 28,
    "head_dim": 128,
    "vocab_size": 6000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "eos_token_id": 1,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "default": {},
    "six rows": {"max_num_seqs": 6},
    "one row": {"max_num_seqs": 1},
    "odd sizes": {"max_num_seqs": 33, "max_model_len": 1000, "page_size": 16},
    "no graph of the largest step": {"max_num_seqs": 40, "chunked_prefill_size": 1000},
    "no graphs": {"max_num_seqs": 140, "cuda_graphs": False, "chunked_prefill_size": 600},
    "deterministic": {"max_num_seqs": 72, "deterministic": True},
    "large": {"max_num_seqs": 512, "chunked_prefill_size": 8192},
    "float32": {"max_num_seqs": 40, "dtype": "float32"},
}

SAMPLINGS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.0, logprobs=3),
    SamplingParams(),
    SamplingParams(top_k=5, top_p=0.9, min_p=0.1, seed=3),
    SamplingParams(logprobs=0),
    SamplingParams(top_p=0.5, logprobs=1),
    SamplingParams(temperature=0.0, repetition_penalty=1.1),
    SamplingParams(frequency_penalty=0.2, presence_penalty=0.1),
    SamplingParams(top_k=4, logit_bias={3: 1.0, 5: -2.0}, logprobs=2),
)


def engine(folder: Path, options: dict[str, Any]) -> EngineConfig:
    (folder / "config.json").write_text(json.dumps(SHAPE))
    return EngineConfig(model=str(folder), load_format="dummy", device="cuda:0", **options)


def admit(steps: Sketch, slot: int, params: SamplingParams, draw: random.Random) -> None:
    prompt = np.zeros(9, np.int32)
    submit = Submit(slot, prompt.tobytes(), 4, params, stop_token_ids=(7,), min_tokens=draw.choice((0, 3)))
    request = LiveRequest(slot, submit, 0.0, slot)
    steps.rows.sampling.admit(slot, submit, request.seed, prompt, 9)


def sampling(steps: Sketch, logits: torch.Tensor, count: int, draw: random.Random) -> None:
    """Draws `count` rows as the executor does: from the staged block where they are plain, and from fresh state."""
    for params in SAMPLINGS:
        for slot in range(count):
            admit(steps, slot, params if draw.random() < 0.7 or slot == 0 else draw.choice(SAMPLINGS), draw)
        slots = np.arange(count, dtype=np.int32)
        chosen = steps.rows.sampling
        index = np.full(count, 2)
        if chosen.is_plain(slots):
            steps.sample(logits[:count], steps.decode.sampling_state(count, slots))
        state = chosen.state(slots, index, META)
        drawn = steps.sample(logits[:count], state)
        if draw.random() < 0.3:
            state.bitmask = torch.zeros((count, -(-steps.vocab_size // 32)), dtype=torch.int32, device=META)
            state.greedy = not chosen.temperature[slots].any()
            steps.sample(logits[:count], state)
        steps.decode.feed(drawn.tokens, torch.from_numpy(slots).to(META))


def mixed_batch(tokens: int, rows: int, wanted: int, decode: int) -> HostBatch:
    """Of `rows` rows, the first `decode` have one token and the others share what is left."""
    counts = np.ones(rows, np.int32)
    if rows > decode:
        counts[-1] += tokens - rows
    words = np.zeros(int(counts.sum()), np.int32)
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    each = np.zeros(rows, np.int32)
    return HostBatch(
        each, words, words, words, starts, each, np.zeros(wanted, np.int32), int(counts.max()), int(counts.max())
    )


def serve(steps: Sketch, config: EngineConfig, draw: random.Random) -> None:
    """Steps of many sizes, as the executor launches them once it is ready."""
    decode, mixed = steps.decode, steps.mixed
    for rows in {1, 2, 3, 5, 8, 17, 31, steps.max_rows, *(draw.randint(1, steps.max_rows) for _ in range(6))}:
        if rows <= steps.max_rows:
            size = decode.bucket(rows) or rows
            decode.greedy(size)
            sampling(steps, decode.forward(size), rows, draw)
    sizes = [draw.randint(1, mixed._max_tokens) for _ in range(12)]
    for tokens in (1, 2, 17, 33, 63, 64, 65, mixed._max_tokens, *sizes):
        rows = draw.randint(1, min(tokens, steps.max_rows))
        wanted = draw.randint(1, rows)
        many = draw.choice((0, rows - 1))
        host = mixed_batch(tokens, rows, wanted, many)
        bucket = mixed._bucket(tokens, rows)
        logits = mixed._captured_body(bucket) if bucket is not None else mixed.run(host, many)
        sampling(steps, logits, wanted, draw)


def keys(jobs: list[Job]) -> dict[str, str]:
    return {job.key: job.name for job in jobs if job.key}


@pytest.fixture(autouse=True)
def no_pinning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU there is no pinned memory."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)


@pytest.mark.parametrize("name", CONFIGS)
def test_serving_launches_nothing_that_is_not_listed(name: str, tmp_path: Path) -> None:
    config = engine(tmp_path, CONFIGS[name])
    listed = keys(variants(config, H200, MEMORY))
    with torch.inference_mode(), recorded(H200.capability) as jobs:
        steps = sketch(config, H200, MEMORY)
        if config.cuda_graphs:
            steps.mixed._graphs = dict.fromkeys(steps.mixed.graph_sizes(), (None, None))
        serve(steps, config, random.Random(name))
    launched = keys(jobs)
    missing = [kernel for key, kernel in launched.items() if key not in listed]
    assert not missing
    assert len(launched) > 10


def test_a_missing_variant_is_found(tmp_path: Path) -> None:
    """The test above can fail: for a list made for fewer rows, a larger engine's launches are not all there."""
    listed = keys(variants(engine(tmp_path, {"max_num_seqs": 8}), H200, MEMORY))
    more = keys(variants(engine(tmp_path, {"max_num_seqs": 256}), H200, MEMORY))
    assert set(more) - set(listed)


def test_two_layers_need_what_all_layers_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = engine(tmp_path, {"max_num_seqs": 40})
    two = keys(variants(config, H200, MEMORY))
    monkeypatch.setattr("tsd.engine.variants.LAYERS", 28)
    assert keys(variants(config, H200, MEMORY)) == two


def test_an_engine_has_few_variants(tmp_path: Path) -> None:
    """Each costs up to 2 s of a core: a multiplied kind, by alignment or a number that is 1, would show here."""
    assert len(variants(engine(tmp_path, {}), H200, MEMORY)) < 60


PROGRAM = """
import sys
from tsd.engine.compile_command import build
from tsd.engine.config import EngineConfig
from tsd.engine import compile_command, variants
from tsd.kernels.platform import Platform

whole = variants.variants

def few(config, platform, memory_bytes, found):
    jobs = [job for job in whole(config, platform, memory_bytes) if job.name in ("_feed", "_prepare", "rms_kernel")]
    for job in jobs:
        found(job)
    slow = [name for name in ("torch._dynamo", "sympy") if name in sys.modules]
    assert not slow, slow  # seconds of a start
    return jobs

variants.variants = few
config = EngineConfig(model=sys.argv[1], load_format="dummy", device="cuda:0", max_num_seqs=4)
print(build(config, Platform("cuda", "NVIDIA H200", (9, 0)), 140 << 30, lambda done, of: print(done, of)))
"""


def test_the_cache_on_disk_is_filled(tmp_path: Path) -> None:
    engine(tmp_path, {})
    cache = tmp_path / "cache"
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache), "PYTHONSAFEPATH": "1"}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert done.stdout.splitlines() == ["0 3", "1 3", "2 3", "3 3", "3"]
        binaries = sorted(path.name for path in cache.glob("*/*.cubin"))
        assert binaries == ["_feed.cubin", "_prepare.cubin", "rms_kernel.cubin"]
        written = {path: path.stat().st_mtime_ns for path in cache.glob("*/*.cubin")}
    assert written == {path: path.stat().st_mtime_ns for path in cache.glob("*/*.cubin")}


def test_without_a_driver_the_engine_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a driver")
    reports: list[tuple[str, str]] = []
    compiling = Precompile(engine(tmp_path, {"seed": 1}))
    assert compiling.wait(lambda phase, detail, fraction: reports.append((phase, detail))) is False
    assert reports == []
    assert "kernels were not compiled ahead" in capfd.readouterr().err


def test_build_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a driver")
    engine(tmp_path, {})
    assert kernels_command.main([str(tmp_path), "--load-format", "dummy", "--build"]) == 3
    assert "libcuda" in capsys.readouterr().err
    assert kernels_command.main([str(tmp_path / "none"), "--build", "--gpu", "h200"]) == 3
    assert "no such file or folder" in capsys.readouterr().err


def operations(x: torch.Tensor, wide: torch.Tensor) -> list[torch.Tensor]:
    index = torch.zeros(3, dtype=torch.int32, device=META)
    likes = [torch.ones_like(x), torch.zeros_like(x, dtype=torch.int64), torch.empty_like(x)]
    gathered = [wide.index_select(0, index), wide.index_select(1, index), x[index], wide[index]]
    chosen = [torch.where(x < 0, x, x), x < 0, x.clamp_min(0), -1 - x, *wide.topk(3), *wide.topk(2, dim=0)]
    products = [torch.addmm(wide, wide, wide), torch.nn.functional.linear(wide, wide), wide[0] @ wide]
    ranges = [torch.arange(5, device=META), torch.arange(1, 9, 2, dtype=torch.int32, device=META)]
    return [*likes, *gathered, *chosen, *products, *ranges, wide.log_softmax(dim=-1)]


def test_hollow_operations_have_the_shapes_of_real_ones() -> None:
    x = torch.zeros(6, dtype=torch.int32, device=META)
    wide = torch.zeros((5, 5), dtype=torch.bfloat16, device=META)
    wanted = operations(x, wide)
    with HollowOperations():
        found = operations(x, wide)
    facts = [(list(tensor.shape), tensor.dtype, tensor.device.type, tensor.stride()) for tensor in wanted]
    assert [(list(tensor.shape), tensor.dtype, tensor.device.type, tensor.stride()) for tensor in found] == facts
