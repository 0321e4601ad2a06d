"""Comparing and sweeping: intervals that cover, verdicts that hold, plots that can be read back."""

from __future__ import annotations

import json
import re
import struct
import xml.etree.ElementTree as ET
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fake_openai import Script, fake_server

from tsd.bench import chart_png, chart_svg, chart_text, cli
from tsd.bench.bootstrap import percentile_of, rate_of, ratio
from tsd.bench.chart import Chart, Line, Point, Scale
from tsd.bench.compare import ROWS, compare_runs, verdict
from tsd.bench.errors import UsageError
from tsd.bench.metrics import summarise
from tsd.bench.record import RequestRecord
from tsd.bench.series import Series, load_key, matched, per_gpu, per_user


def fake_run(mean_ms: float, seed: int, concurrency: int = 4, count: int = 200) -> dict[str, Any]:
    """A result whose TPOT is spread around `mean_ms`, 11 tokens a request, `concurrency` at a time."""
    source = np.random.default_rng(seed)
    records = []
    for number in range(count):
        tpot = source.normal(mean_ms, mean_ms * 0.2) / 1e3
        times = list(0.05 + tpot * np.arange(11))
        start = number // concurrency * (0.05 + mean_ms * 10 / 1e3)
        record = RequestRecord(session=number, turn=0, start=start, end=start + times[-1], chunk_times=times)
        record.usage_output, record.input_tokens = 11, 5
        records.append(record)
    result = summarise(records)
    result |= {"model_id": "m", "workload": "random", "max_concurrency": concurrency, "request_rate": "inf"}
    result |= {"num_prompts": count, "parameters": {}, "client": {}, "failed": 0}
    result["samples_ms"] = {
        "ttft": [(r.ttft or 0) * 1e3 for r in records],
        "tpot": [(r.tpot or 0) * 1e3 for r in records],
        "e2el": [(r.e2el or 0) * 1e3 for r in records],
    }
    result["samples_tokens"] = [[5, 11]] * count
    return result


def save(tmp_path: Path, name: str, value: dict[str, Any]) -> str:
    path = tmp_path / name
    path.write_text(json.dumps(value))
    return str(path)


def test_bootstrap_interval_covers_the_true_ratio_about_as_often_as_it_says() -> None:
    source = np.random.default_rng(1)
    covered = 0
    for trial in range(150):
        a, b = source.exponential(10, (60, 1)), source.exponential(15, (60, 1))
        found = ratio(a, b, percentile_of(50), np.median(b) / np.median(a), 0.9, 400, trial)
        assert found.low is not None and found.high is not None and found.low <= found.value <= found.high
        covered += found.low <= 1.5 <= found.high
    assert 0.80 < covered / 150 < 0.98


def test_interval_is_seeded_narrows_with_samples_and_needs_two() -> None:
    source = np.random.default_rng(2)
    few, many = source.exponential(10, (20, 1)), source.exponential(10, (2000, 1))
    narrow = ratio(many, many, percentile_of(50), 1.0)
    wide = ratio(few, few, percentile_of(50), 1.0)
    assert narrow == ratio(many, many, percentile_of(50), 1.0)
    assert narrow.low is not None and narrow.high is not None and wide.low is not None and wide.high is not None
    assert narrow.high - narrow.low < wide.high - wide.low
    assert ratio(few[:1], many, percentile_of(50), 2.0) == (2.0, None, None)


def test_rate_statistic_is_tokens_over_time() -> None:
    draws = np.array([[[10.0, 2.0], [20.0, 4.0]]])
    assert rate_of()(draws)[0] == pytest.approx(5.0)


def test_equal_runs_are_not_told_apart_and_slower_ones_are() -> None:
    base, same, slow = fake_run(5.0, 1), fake_run(5.0, 2), fake_run(7.0, 3)
    rows = {compared.row.key: compared for compared in compare_runs([base, same, slow], 0.99, 500, 0)}
    tpot = rows["p50_tpot_ms"]
    assert tpot.ratios[0] is None and tpot.ratios[1] is not None and tpot.ratios[2] is not None
    assert verdict(tpot.row, tpot.ratios[1]) == "" and verdict(tpot.row, tpot.ratios[2]) == "worse"
    assert tpot.ratios[2].value == pytest.approx(1.4, rel=0.1)
    rate = rows["output_throughput"]
    assert rate.ratios[2] is not None and verdict(rate.row, rate.ratios[2]) == "worse" and rate.ratios[2].value < 1
    assert {row.key for row in ROWS} == set(rows)


def test_a_tail_without_samples_has_no_interval() -> None:
    rows = compare_runs([fake_run(5.0, 1, count=64), fake_run(9.0, 2, count=64)], 0.95, 200, 0)
    found = {compared.row.key: compared.ratios[1] for compared in rows}
    assert found["p99_tpot_ms"] is not None and found["p99_tpot_ms"].low is None
    assert found["p50_tpot_ms"] is not None and found["p50_tpot_ms"].low is not None
    assert verdict(ROWS[4], found["p99_tpot_ms"]) == ""


def test_runs_are_matched_by_load() -> None:
    a = Series("a", [fake_run(5, 1, 1), fake_run(5, 1, 4)])
    b = Series("b", [fake_run(5, 1, 4), fake_run(5, 1, 8)])
    rows = matched([a, b])
    assert [key for key, _ in rows] == [("random", "4 at a time")]
    with pytest.raises(UsageError, match="no load"):
        matched([a, Series("c", [fake_run(5, 1, 99)])])
    assert per_user(a.runs[0]) == pytest.approx(1000 / a.runs[0]["median_tpot_ms"])
    assert per_gpu({**a.runs[0], "gpu": ["x", "y"]}) == pytest.approx(a.runs[0]["output_throughput"] / 2)
    assert load_key({"workload": "swe-c8", "request_rate": 2.5}) == ("swe", "2.5 req/s")


def test_compare_command_writes_page_and_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [save(tmp_path, "a.json", fake_run(5, 1)), save(tmp_path, "b<i>.json", fake_run(7, 2))]
    page, image = tmp_path / "c.html", tmp_path / "c.png"
    assert cli.main(["compare", *files, "--html", str(page), "--png", str(image), "--resamples", "200"]) == 0
    out = capsys.readouterr().out
    assert "TPOT p50 ms" in out and re.search("×1\\.(3|4)", out) and "━━ a" in out
    text = page.read_text()
    assert text.count("<svg") == 2 and "b&lt;i&gt;" in text and "<script" not in text and 'class="worse"' in text
    width, height = png_size(image.read_bytes())
    assert (width, height) == (1280, 320)


def test_compare_sweeps_plots_pareto(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def sweep(mean: float) -> dict[str, Any]:
        return {"sweep": "concurrency", "runs": [fake_run(mean, 1, 1), fake_run(mean * 1.5, 2, 8)]}

    files = [save(tmp_path, "a.json", sweep(5)), save(tmp_path, "b.json", sweep(6))]
    assert cli.main(["compare", *files, "--resamples", "200"]) == 0
    out = capsys.readouterr().out
    assert "Throughput against speed" in out and "1 at a time" in out and "8 at a time" in out


def test_the_peers_figures_can_be_shown_and_compared(capsys: pytest.CaptureFixture[str]) -> None:
    peers = Path(__file__).resolve().parents[2] / "bench" / "results" / "peers"
    files = sorted(map(str, peers.glob("h200-*.json")))
    assert len(files) == 20
    assert cli.main(["show", *files]) == 0
    pair = [str(peers / f"h200-qwen3-8b-crowd-{name}.json") for name in ("vllm", "tokenspeed")]
    assert cli.main(["compare", *pair]) == 0
    assert "×0.52" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["{", "[]", '{"a": 1}', '{"sweep": "rate", "runs": []}'])
def test_compare_refuses_other_files(tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(content)
    assert cli.main(["compare", str(bad), str(bad)]) == 2
    assert "bad.json" in capsys.readouterr().err
    assert cli.main(["compare", str(bad)]) == 2


def png_size(data: bytes) -> tuple[int, int]:
    """Checks signature, chunk checksums and the amount of pixels."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, body = 8, b""
    width = height = 0
    while at < len(data):
        size = struct.unpack(">I", data[at : at + 4])[0]
        kind, payload = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + payload)
        if kind == b"IHDR":
            width, height = struct.unpack(">II", payload[:8])
        body += payload if kind == b"IDAT" else b""
        at += 12 + size
    assert len(zlib.decompress(body)) == height * (1 + width * 3)
    return width, height


CHART = Chart("T & <t>", "x", "y", [Line("up", [Point(1, 1, "n"), Point(10, 10)], True), Line("flat", [Point(1, 5)])])


def test_charts_render() -> None:
    root = ET.fromstring(chart_svg.render(CHART))
    marks = [node for node in root.iter() if node.tag.endswith("circle")]
    assert len(marks) == 2 and float(marks[0].get("cx", 0)) < float(marks[1].get("cx", 0))
    assert float(marks[0].get("cy", 0)) > float(marks[1].get("cy", 0))
    text = chart_text.render(CHART, columns=20, rows=6).plain.splitlines()
    assert text[1].rstrip()[-1] != "⠀" and "━━ up" in text[-2]
    assert png_size(chart_png.render_all([CHART] * 3)) == (1280, 640)
    assert png_size(chart_png.render_all([])) == (1280, 320)


def test_scales() -> None:
    assert Scale.over([0.0, 10.0], False).ticks(5) == [0, 2, 4, 6, 8, 10]
    assert Scale.over([1.0, 1000.0], True).ticks() == [1, 10, 100, 1000]
    assert Scale.over([90.0, 100.0], False).low == 90.0 and Scale.over([5.0, 100.0], False).low == 0.0
    assert Scale.over([], False).high > 0 and Scale.over([3.0], True).place(3.0) == 0.0


def grows(limit: int) -> Any:
    """A server that is too slow above `limit` tokens of output (the sweep's stand-in for load)."""

    def answer(body: dict[str, Any]) -> Script:
        return Script([0.0] * (body.get("max_tokens") or 4))

    return answer


def test_sweep_runs_each_level_and_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server(grows(0)) as server:
        args = ["sweep", "--concurrencies", "1", "3", "--input-len", "6", "--output-len", "5", "--base-url", server.url]
        args += ["--requests-per-level", "2", "--save-result", "--result-dir", str(tmp_path), "--no-progress"]
        assert cli.main([*args, "--machine", "box"]) == 0
        prompts = [tuple(seen.body["prompt"]) for seen in server.completions]
    assert len(prompts) == 2 + 6 and len(set(prompts)) == 8
    path = tmp_path / "box-fake-random-sweep.json"
    saved = json.loads(path.read_text())
    assert [run["max_concurrency"] for run in saved["runs"]] == [1, 3] and saved["sweep"] == "concurrency"
    capsys.readouterr()
    assert cli.main(["compare", str(path), str(path), "--names", "a", "b", "--resamples", "100"]) == 0


def test_search_finds_the_highest_level_that_holds() -> None:
    import asyncio

    from tsd.bench.metrics import Goals
    from tsd.bench.sweep import Sweep

    class Scripted(Sweep):
        """Levels up to 37 hold."""

        def __init__(self, by_rate: bool) -> None:
            self.by_rate, self.levels, self.session = by_rate, [], type("S", (), {"stopped": ""})()

        async def run(self, level: float) -> dict[str, Any]:
            self.levels.append(level)
            return {"failed": 0, "completed": 1, "p99_ttft_ms": 1.0 if level <= 37 else 9.0}

    goals = Goals({"ttft": 5.0})
    whole = Scripted(by_rate=False)
    assert asyncio.run(whole.search(goals, 99, 1, 64, 10)) == 37 and len(whole.levels) <= 12
    rate = asyncio.run(Scripted(by_rate=True).search(goals, 99, 1.0, 64.0, 12))
    assert rate is not None and 36.9 < rate <= 37
    assert asyncio.run(Scripted(False).search(goals, 99, 40, 64, 6)) is None
    assert asyncio.run(Scripted(False).search(goals, 99, 1, 30, 6)) == 30


@pytest.mark.parametrize(
    "flags",
    [["--workload", "solo"], ["--find-highest"], ["--rates", "1", "--concurrencies", "1"], ["--max-concurrency", "2"]],
)
def test_sweep_usage_errors(flags: list[str]) -> None:
    assert cli.main(["sweep", *flags]) == 2
