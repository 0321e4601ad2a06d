"""`tsd bench serve` end to end against a scripted server: what is sent, what is measured, how failures end."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from support.fake_openai import FakeServer, Script, fake_server

from tsd.bench import cli
from tsd.bench.coordinator import Coordinator, Pace, RunOutcome, default_workers
from tsd.bench.plan import Plan, RequestShape, Session, Turn
from tsd.bench.store import PieceStore, Vocabulary
from tsd.bench.workloads import WORKLOADS


def quick(body: dict[str, Any]) -> Script:
    """Every token at once; honours the extensions that a body asks for."""
    options = body.get("stream_options") or {}
    length = body.get("max_tokens") or body.get("max_completion_tokens") or 16
    chat = "messages" in body
    return Script(
        [0.0] * length,
        usage=bool(options.get("include_usage")),
        chunk_usage=bool(options.get("continuous_usage_stats")),
        token_ids=bool(body.get("return_token_ids")),
        field_name="content" if chat else "text",
        empty_first=chat,
    )


def bench(server: FakeServer | str, tmp_path: Path, *flags: str) -> tuple[int, dict[str, Any]]:
    """Exit code and saved result."""
    url = server if isinstance(server, str) else server.url
    args = ["--base-url", url, "--result-dir", str(tmp_path), "--result-filename", "r.json", "--save-detailed", *flags]
    code = cli.main([*args, "--no-progress", "--no-server-watch"])
    path = tmp_path / "r.json"
    return code, json.loads(path.read_text()) if path.exists() else {}


def run_plan(server: FakeServer, sessions: int, concurrency: int, workers: int = 1, **shape: Any) -> RunOutcome:
    store = PieceStore("ids", Vocabulary(10, 500, "test"), 0)
    plan = Plan("ids", store.pieces, [Session([Turn([store.random(f"{i}", 8)], 10, 8)]) for i in range(sessions)])
    fields: dict[str, Any] = {"stream_options": {"include_usage": True}}
    request = RequestShape(server.url, "/v1/completions", "fake", "ids", fields, **shape)
    return asyncio.run(Coordinator(plan, request, Pace(concurrency), workers, 0).run())


def test_times_equal_what_the_server_did_within_a_millisecond() -> None:
    """Same clock on both sides. A busy machine delays some requests; one that measured wrongly would miss on all."""
    with fake_server(lambda body: Script([0.020] + [0.004] * 9)) as server:
        outcome = run_plan(server, sessions=30, concurrency=1)
        pairs = list(zip(sorted(outcome.records, key=lambda r: r.start), server.seen, strict=True))
    errors: dict[str, list[float]] = {"ttft": [], "tpot": [], "itl": [], "e2el": []}
    for record, seen in pairs:
        assert record.ok and record.start <= seen.received and len(record.chunk_times) == len(seen.sent) == 10
        assert record.ttft is not None and record.tpot is not None and record.e2el is not None
        errors["ttft"].append(record.ttft - (seen.sent[0] - seen.received))
        errors["tpot"].append(record.tpot - (seen.sent[-1] - seen.sent[0]) / 9)
        errors["e2el"].append(record.e2el - (seen.sent[-1] - seen.received))
        gaps = [later - earlier for earlier, later in zip(seen.sent, seen.sent[1:], strict=False)]
        errors["itl"].extend(mine - theirs for mine, theirs in zip(record.itls, gaps, strict=True))
    assert min(errors["ttft"]) >= 0 and min(errors["e2el"]) >= 0  # nothing arrives before it was sent
    assert min(errors["ttft"]) < 0.001 and min(errors["e2el"]) < 0.001
    assert abs(median(errors["tpot"])) < 0.001 and abs(median(errors["itl"])) < 0.001


@pytest.mark.parametrize("name", ["solo", "steady", "agentic", "crowd"])
def test_fixed_workloads_send_exactly_their_shape(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = WORKLOADS[name]
    with fake_server(quick) as server:
        code, result = bench(server, tmp_path, "--workload", name, "--seed", "7", "--vocab-size", "5000")
        requests = [seen.body for seen in server.completions]
        connections = server.connections
    assert code == 0 and result["failed"] == 0 and result["completed"] == workload.sessions * workload.turns
    assert len(requests) == workload.sessions * workload.turns
    assert connections <= workload.concurrency + 8  # kept alive, never more than the slots
    for body in requests:
        assert body["temperature"] == 0 and body["ignore_eos"] is True and body["stream"] is True
        assert body["max_tokens"] == workload.output_len and "continuous_usage_stats" not in body["stream_options"]
        assert all(5000 // 64 <= token < 5000 or 100 <= token < 300 for token in body["prompt"])
    lengths = sorted({len(body["prompt"]) for body in requests})
    if name == "agentic":
        assert lengths == [3200, 3464, 3728, 3992]
        check_history(requests)
    else:
        assert lengths == [workload.input_len]
        assert len({tuple(body["prompt"]) for body in requests}) == len(requests)
    assert result["total_output_tokens"] == len(requests) * workload.output_len
    assert result["max_concurrent_requests"] <= workload.concurrency
    assert result["max_concurrency"] == workload.concurrency


def check_history(requests: list[dict[str, Any]]) -> None:
    """Each turn starts with the turn before and that turn's answer, by the server's own ids."""
    answer = list(range(100, 164))
    prefix = requests[0]["prompt"][:3000]
    assert all(body["prompt"][:3000] == prefix and body["return_token_ids"] for body in requests)
    whole = {tuple(body["prompt"]) for body in requests}
    for body in requests:
        prompt = body["prompt"]
        if len(prompt) > 3200:
            before = prompt[:-200]
            assert before[-64:] == answer and tuple(before[:-64]) in whole


def test_history_falls_back_to_tokenize_then_to_random(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def no_ids(body: dict[str, Any]) -> Script:
        script = quick(body)
        script.token_ids = False
        return script

    flags = (
        "--dataset-name",
        "agentic",
        "--num-prompts",
        "2",
        "--turns",
        "2",
        "--input-len",
        "20",
        "--prefix-len",
        "30",
    )
    flags = (*flags, "--output-len", "5", "--max-concurrency", "1")
    with fake_server(no_ids, routes={"/tokenize": lambda body: {"tokens": [7] * 3}}) as server:
        code, result = bench(server, tmp_path, *flags)
        second = next(seen.body["prompt"] for seen in server.completions if len(seen.body["prompt"]) == 75)
    assert code == 0 and result["history"] == "tokenize" and second[50:53] == [7, 7, 7]
    with fake_server(no_ids) as server:
        code, result = bench(server, tmp_path, *flags)
        assert sorted({len(seen.body["prompt"]) for seen in server.completions}) == [50, 75]
    assert code == 0 and result["history"] == "random" and "random ids" in capsys.readouterr().out


def test_chat_sends_messages_and_resends_answers(tmp_path: Path) -> None:
    flags = ("--backend", "openai-chat", "--dataset-name", "agentic", "--num-prompts", "1", "--turns", "2")
    with fake_server(quick) as server:
        code, _ = bench(server, tmp_path, *flags, "--input-len", "3", "--prefix-len", "4", "--output-len", "2")
        bodies = [seen.body for seen in server.seen if seen.path == "/v1/chat/completions"][1:]
    assert code == 0
    assert [message["role"] for message in bodies[1]["messages"]] == ["system", "user", "assistant", "user"]
    assert bodies[1]["messages"][2]["content"] == " w w" and bodies[0]["max_completion_tokens"] == 2
    assert bodies[1]["messages"][:2] == bodies[0]["messages"]


def test_text_prompts_and_given_conversations(tmp_path: Path) -> None:
    with fake_server(quick) as server:
        flags = ("--num-prompts", "3", "--prompt-format", "text", "--input-len", "7", "--output-len", "2")
        assert bench(server, tmp_path, *flags)[0] == 0
        prompts = [seen.body["prompt"] for seen in server.completions]
        assert (
            all(isinstance(prompt, str) and len(prompt.split()) == 7 for prompt in prompts) and len(set(prompts)) == 3
        )
        talk = tmp_path / "talk.jsonl"
        given = [{"role": "system", "content": "s\n"}, {"role": "user", "content": '"u"'}]
        talk.write_text(json.dumps({"messages": given, "output_tokens": 3}) + "\n")
        flags = ("--dataset-name", "custom", "--dataset-path", str(talk))
        assert bench(server, tmp_path, *flags)[0] == 2  # messages need the chat route
        assert bench(server, tmp_path, *flags, "--backend", "openai-chat")[0] == 0
        assert server.seen[-1].body["messages"] == given and server.seen[-1].body["max_completion_tokens"] == 3


def test_workers_share_the_sessions_and_sum_up() -> None:
    with fake_server(lambda body: Script([0.001] * 10)) as server:
        outcome = run_plan(server, sessions=40, concurrency=8, workers=3)
    assert outcome.workers == 3 and len({record.worker for record in outcome.records}) == 3
    assert [record.session for record in outcome.records] == list(range(40)) and all(r.ok for r in outcome.records)
    assert [default_workers(n, 16) for n in (1, 63, 64, 256, 4096)] == [1, 1, 2, 8, 8]
    assert default_workers(256, 2) == 1


def test_open_loop_leaves_on_time(tmp_path: Path) -> None:
    with fake_server(quick) as server:
        flags = ("--num-prompts", "20", "--request-rate", "100", "--input-len", "4", "--output-len", "2", "--seed", "1")
        code, result = bench(server, tmp_path, *flags, "--goodput", "ttft:60000")
    assert code == 0 and result["request_rate"] == 100 and result["request_goodput"] > 0
    from tsd.bench.arrivals import offsets

    late = [mine - due for mine, due in zip(sorted(result["start_times"]), offsets(20, 100.0, 1.0, 1), strict=True)]
    assert min(late) >= -0.0015  # timers may fire a millisecond early, never more


def test_trace_timestamps_drive_an_open_loop(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    row = {"input_length": 5, "output_length": 2, "hash_ids": [1]}
    trace.write_text("".join(json.dumps({"timestamp": at, **row}) + "\n" for at in (0, 100, 300)))
    with fake_server(quick) as server:
        flags = ("--dataset-name", "mooncake", "--dataset-path", str(trace), "--trace-scale", "2")
        code, result = bench(server, tmp_path, *flags)
    starts = sorted(result["start_times"])
    assert code == 0 and all(start >= due - 0.0015 for start, due in zip(starts, (0, 0.05, 0.15), strict=True))
    assert result["request_rate"]["scale"] == 2


def test_unreachable_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = bench("http://127.0.0.1:9", tmp_path, "--workload", "solo")
    assert code == 3 and not result and "cannot connect" in capsys.readouterr().err


def test_wrong_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server(quick) as server:
        code, result = bench(server, tmp_path, "--workload", "solo", "--model", "other")
    assert code == 4 and not result
    assert "model other does not exist" in (error := capsys.readouterr().err) and "it has: fake" in error


def test_ready_check_waits(tmp_path: Path) -> None:
    server = FakeServer(quick)
    server.start()
    calls = iter([503, 503, 200])

    original = server._json  # the server is starting: its first answers are refusals

    def starting(writer: Any, status: int, value: Any) -> None:
        original(writer, next(calls, 200) if "data" in value else status, value)

    server._json = starting  # type: ignore[method-assign]
    try:
        code, _ = bench(server, tmp_path, "--num-prompts", "1", "--output-len", "1", "--ready-check-timeout-sec", "20")
    finally:
        server.stop()
    assert code == 0


def test_failures_are_kept_per_request_and_end_non_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def some_fail(body: dict[str, Any]) -> Script:
        script = quick(body)
        first = body["prompt"][0]
        if len(body["prompt"]) == 16:
            return script  # the trial request
        if first % 4 == 0:
            return Script([], status=500, error="boom")
        script.die_after = 2 if first % 4 == 1 else None
        script.stream_error_after = 3 if first % 4 == 2 else None
        return script

    with fake_server(some_fail) as server:
        flags = (
            "--num-prompts",
            "60",
            "--input-len",
            "9",
            "--output-len",
            "6",
            "--max-concurrency",
            "4",
            "--seed",
            "2",
        )
        code, result = bench(server, tmp_path, *flags)
    assert code == 1 and result["completed"] + result["failed"] == 60 and result["completed"] > 0
    counts = result["error_counts"]
    assert counts["HTTP 500: boom"] > 0 and counts["error in the stream: the engine died"] > 0
    assert any("closed the connection in the middle" in text for text in counts)
    assert {len(gaps) for error, gaps in zip(result["errors"], result["itls"], strict=True) if "middle" in error} == {1}
    assert "requests failed" in capsys.readouterr().out


def test_a_server_that_never_finishes(tmp_path: Path) -> None:
    def hang(body: dict[str, Any]) -> Script:
        script = quick(body)
        script.hang_after = 3 if body["max_tokens"] == 5 else None
        return script

    with fake_server(hang) as server:
        flags = ("--num-prompts", "2", "--input-len", "9", "--output-len", "5", "--idle-timeout-sec", "0.3")
        code, result = bench(server, tmp_path, *flags)
    assert code == 1 and result["failed"] == 2
    assert set(result["error_counts"]) == {"nothing received for 0.3 s"}
    assert all(len(gaps) == 2 for gaps in result["itls"])


def test_a_server_that_dies_stops_the_run(tmp_path: Path) -> None:
    with fake_server(quick) as server:

        def dying(body: dict[str, Any]) -> Script:
            if len(server.completions) > 5:
                server._loop.call_soon(server._shutdown)
            return quick(body)

        server.answer = dying
        flags = ("--num-prompts", "500", "--input-len", "9", "--output-len", "5", "--max-concurrency", "2")
        code, result = bench(server, tmp_path, *flags)
    assert code == 1 and result["completed"] >= 4 and result["completed"] + result["failed"] == 500
    assert "server is gone" in result["stopped"]


def test_ctrl_c_keeps_partial_results(tmp_path: Path) -> None:
    with fake_server(lambda body: quick(body) if body["max_tokens"] == 4 else Script([0.05] * 200)) as server:
        args = ["--base-url", server.url, "--num-prompts", "9", "--max-concurrency", "3", "--output-len", "200"]
        args += ["--save-result", "--result-dir", str(tmp_path), "--result-filename", "r.json"]
        process = subprocess.Popen([sys.executable, "-m", "tsd.bench.cli", *args], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while len(server.completions) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 1
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["failed"] == 9 and result["stopped"] == "stopped by the user"
    assert result["error_counts"] == {"stopped before it ended": 3, "not sent: stopped by the user": 6}


def test_zero_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server(quick) as server:
        assert bench(server, tmp_path, "--num-prompts", "0")[0] == 2
        empty = tmp_path / "t.jsonl"
        empty.write_text('{"timestamp":0,"input_length":900,"output_length":1,"hash_ids":[1,2]}\n')
        flags = ("--dataset-name", "mooncake", "--dataset-path", str(empty), "--max-input-len", "10")
        assert bench(server, tmp_path, *flags)[0] == 2
    assert "no request to send" in capsys.readouterr().err


def test_a_server_without_usage_or_extensions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def strict(body: dict[str, Any]) -> Script:
        if "return_token_ids" in body or "stream_options" in body:
            return Script([], status=400, error="unknown field")
        return quick(body)

    with fake_server(strict) as server:
        code, result = bench(server, tmp_path, "--num-prompts", "2", "--output-len", "6", "--input-len", "5")
    assert code == 0 and result["tokens_counted_by"] == "chunks" and result["total_output_tokens"] == 12
    assert "no usage" in capsys.readouterr().out


@pytest.mark.parametrize("cut", [1, 3, 64])
def test_framing_survives_any_cut(tmp_path: Path, cut: int) -> None:
    def cut_up(body: dict[str, Any]) -> Script:
        script = quick(body)
        script.split_bytes = cut
        return script

    with fake_server(cut_up) as server:
        code, result = bench(server, tmp_path, "--num-prompts", "3", "--output-len", "7", "--input-len", "5")
    assert code == 0 and result["total_output_tokens"] == 21


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--workload", "solo", "--num-prompts", "3"], "fixed shape"),
        (["--goodput", "itl:3"], "--goodput"),
        (["--request-rate", "-1"], "above zero"),
        (["--base-url", "ftp://x"], "not an http URL"),
        (["--percentile-metrics", "foo"], "foo"),
        (["--ramp-up-strategy", "linear"], "--ramp-up-start-rps"),
        (["--dataset-name", "custom"], "--dataset-path"),
        (["nonsense"], "no command"),
    ],
)
def test_usage_errors(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(flags) == 2
    assert words in capsys.readouterr().err


def test_show_prints_a_saved_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server(
        quick, routes={"/get_server_info": {"version": "9.9", "gpu": "NVIDIA H200", "commit": "abc"}}
    ) as server:
        args = ["--base-url", server.url, "--workload", "solo", "--save-result", "--result-dir", str(tmp_path)]
        assert cli.main([*args, "--no-progress"]) == 0
    path = tmp_path / "h200-fake-solo.json"
    assert path.exists()
    capsys.readouterr()
    assert cli.main(["show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "TTFT" in shown and "9.9" in shown and "abc" in shown
    assert cli.main(["show", str(tmp_path / "none.json")]) == 2
