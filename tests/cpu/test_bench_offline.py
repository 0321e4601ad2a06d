"""The in-process benchmarks and the cache's: they run, their figures are of what they say, bad flags end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.tiny import tiny_model

from tsd.bench import cache, cli


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tiny_model(tmp_path_factory.mktemp("offline") / "m", max_position_embeddings=256)
    return [folder, "--load-format", "dummy", "--max-total-tokens", "4096", "--cpu-threads", "1"]


def test_latency_times_whole_batches(model: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "l.json"
    flags = [
        "--batch-size",
        "3",
        "--input-len",
        "20",
        "--output-len",
        "6",
        "--num-iters",
        "4",
        "--output-json",
        str(out),
    ]
    assert cli.main(["latency", *model, *flags]) == 0
    result = json.loads(out.read_text())
    assert len(result["latencies"]) == 4 and result["avg_latency"] == pytest.approx(np.mean(result["latencies"]))
    assert result["percentiles"]["50"] == pytest.approx(np.median(result["latencies"]))
    assert 0 < result["median_ttft_ms"] < 1e3 * max(result["latencies"]) and result["median_tpot_ms"] > 0
    assert "3 × (20 in, 6 out)" in capsys.readouterr().out


def test_throughput_counts_all_tokens(model: list[str], tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    flags = ["--num-prompts", "9", "--input-len", "30", "--output-len", "5", "--output-json", str(out)]
    assert cli.main(["throughput", *model, *flags]) == 0
    result = json.loads(out.read_text())
    assert result["total_num_tokens"] == 9 * 35
    assert result["tokens_per_second"] == pytest.approx(9 * 35 / result["elapsed_time"])
    assert result["output_tokens_per_second"] == pytest.approx(9 * 5 / result["elapsed_time"])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--input-len", "250", "--output-len", "20"], "do not fit"),
        (["--num-prompts", "0"], "above zero"),
        (["--input-len", "0"], "above zero"),
    ],
)
def test_throughput_refuses(model: list[str], flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["throughput", *model, *flags]) == 2
    assert words in capsys.readouterr().err


def test_unknown_model_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["latency", "no-such-model"]) == 1
    assert "no-such-model" in (error := capsys.readouterr().err) and len(error.splitlines()) == 1


def test_the_cache_benchmark_measures_hits_where_it_says_hits(capsys: pytest.CaptureFixture[str]) -> None:
    bed = cache._Bed(200, 16, 640)
    prompt = np.arange(640, dtype=np.int32)
    bed.run(prompt)
    assert bed.scheduler.counters["cached_tokens"] == 0
    bed.run(prompt)
    assert bed.scheduler.counters["cached_tokens"] == 640 - 16  # one page at least is computed again
    tight = cache._Bed(50, 16, 640)
    for shift in range(4):
        tight.run(prompt + 1000 * shift)
    assert tight.scheduler.counters["evictions"] >= 80
    assert cli.main(["cache", "--tokens", "64", "--repeats", "2", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 5 and all(line["pages"] == 4 and line["us"] > 0 for line in lines)
    assert cli.main(["cache", "--tokens", "3"]) == 2
