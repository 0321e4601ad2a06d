"""The life of a server: ports, starts that fail, stops, and deaths of either side."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest
from support.server import ServerProcess, alive, eventually, running_server
from support.streams import OpenStream
from support.tiny import tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_model(tmp_path_factory.mktemp("lifecycle") / "m", max_position_embeddings=4096)


def start(model: str, *more: str) -> tuple[str, ...]:
    return (model, "--load-format", "dummy", "--gpus", "none", "--max-total-tokens", "8192", *more)


def test_a_taken_port_is_found_before_anything_loads(model: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        began = time.monotonic()
        server = ServerProcess(*start(model), "--port", str(taken.getsockname()[1]))
        server.process.wait(10)
        assert time.monotonic() - began < 5
        assert server.stop() != 0
        assert any("cannot listen" in line for line in server.log), server.log
        assert not any("weights" in line for line in server.log)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["LlamaForCausalML"]}, ["LlamaForCausalML", "LlamaForCausalLM"]),
        ({"hidden_size": None}, ["hidden_size"]),
    ],
)
def test_a_model_that_cannot_load_ends_the_start(tmp_path: Path, change: dict[str, object], words: list[str]) -> None:
    server = ServerProcess(*start(tiny_model(tmp_path / "m", **change)))
    server.process.wait(60)
    assert server.stop() != 0
    log = "\n".join(server.log)
    assert all(word in log for word in words), log
    assert " ready " not in log and "Traceback" not in log, log


def test_kv_memory_that_does_not_fit_names_the_flag(model: str) -> None:
    server = ServerProcess(*start(model, "--max-total-tokens", "99999m"))
    server.process.wait(60)
    assert server.stop() != 0
    assert any("--max-total-tokens" in line for line in server.log), server.log


def test_probes_answer_while_the_engine_loads(model: str) -> None:
    with running_server(*start(model)) as server:
        assert server.request("GET", "/ready")[0] == 503
        assert server.request("POST", "/v1/completions", {"prompt": [5], "max_tokens": 1})[0] == 503
        server.wait_ready()
        assert server.request("GET", "/ready")[0] == 200
        assert server.request("GET", "/health")[0] == 200


def test_sigterm_lets_streams_end_and_exits_zero(model: str) -> None:
    with running_server(*start(model)) as server:
        server.wait_ready()
        stream = OpenStream(server, 300)
        server.process.send_signal(signal.SIGTERM)
        assert eventually(lambda: server.request("GET", "/ready")[0] == 503)
        assert stream.end().rstrip().endswith(b"data: [DONE]")
        assert server.process.wait(20) == 0


def test_a_second_signal_forces(model: str) -> None:
    with running_server(*start(model)) as server:
        server.wait_ready()
        engines = server.children()
        stream = OpenStream(server)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("drain")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) != 0
        stream.end()
        assert eventually(lambda: not any(map(alive, engines)))


def test_a_dead_engine_ends_streams_with_an_error_and_the_server(model: str) -> None:
    with running_server(*start(model)) as server:
        server.wait_ready()
        (engine,) = server.children("tsd.engine.worker")
        stream = OpenStream(server)
        os.kill(engine, signal.SIGKILL)
        status = [0]

        def unhealthy() -> bool:
            try:
                status[0] = server.request("GET", "/health", timeout=5)[0]
            except OSError:
                return True
            return status[0] == 503

        assert eventually(unhealthy)
        assert status[0] == 503
        assert b'"error"' in stream.end()
        assert server.process.wait(20) not in (0, None)


def test_a_stopped_engine_turns_health_to_503(model: str) -> None:
    with running_server(*start(model)) as server:
        server.wait_ready()
        (engine,) = server.children("tsd.engine.worker")
        os.kill(engine, signal.SIGSTOP)
        try:
            assert eventually(lambda: server.request("GET", "/health")[0] == 503, 30)
        finally:
            os.kill(engine, signal.SIGCONT)
        assert eventually(lambda: server.request("GET", "/health")[0] == 200, 30)


def test_killing_the_front_leaves_no_orphan(model: str) -> None:
    server = ServerProcess(*start(model))
    server.wait_ready()
    engines = server.children()
    assert engines
    server.process.kill()
    server.process.wait()
    assert eventually(lambda: not any(map(alive, engines)))
    server.stop()


def test_killing_the_front_while_the_engine_loads_leaves_no_orphan(model: str) -> None:
    server = ServerProcess(*start(model))
    server.wait_for("listening")
    assert eventually(lambda: bool(server.children()))
    engines = server.children()
    server.process.kill()
    server.process.wait()
    assert eventually(lambda: not any(map(alive, engines)))
    server.stop()


def gauges_are_zero(server: ServerProcess) -> bool:
    text = server.request("GET", "/metrics")[1]
    gauges = [line for line in text.splitlines() if line.startswith("tsd:num_requests_")]
    return bool(gauges) and all(line.rsplit(" ", 1)[1] == "0.0" for line in gauges)


def open_files(pids: list[int]) -> int:
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_disconnects_leave_nothing(model: str, workers: str) -> None:
    """Half of them in the middle of a stream, half while they wait for a whole answer."""
    with running_server(*start(model, "--api-workers", workers)) as server:
        server.wait_ready()
        pids = [server.process.pid, *server.children("tsd.")]
        body = {"prompt": [5, 6, 7], "max_tokens": 3000, "ignore_eos": True}
        before = 0
        for round_ in range(160):
            if round_ == 20:  # what is opened once has been opened
                assert eventually(lambda: gauges_are_zero(server))
                before = open_files(pids)
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
            raw = json.dumps({**body, "stream": round_ % 2 == 0})
            connection.request("POST", "/v1/completions", raw, {"Content-Type": "application/json"})
            if round_ % 2 == 0:
                connection.getresponse().readline()
            else:
                time.sleep(0.01)
            connection.close()
        assert eventually(lambda: gauges_are_zero(server), 15)
        # The grammar worker's pipes may have come; one left open by each round would be 140.
        assert eventually(lambda: open_files(pids) < before + 10), (before, open_files(pids))
        found = server.request("GET", "/get_server_info")[1]["engines"][0]
        snapshot = OpenStream.get(server, "/admin/stream?interval=0.5")
        line = snapshot.answer.readline()
        snapshot.leave()
        device = json.loads(line.removeprefix(b"data: "))["engines"][0]["tiers"]["device"]
        assert device["active"] == device["shared"] == device["in_flight"] == 0
        assert device["free"] + device["cached"] == device["total"] == found["num_pages"]
        assert server.request("POST", "/v1/completions", {"prompt": [5], "max_tokens": 2})[0] == 200


def test_gauges_fall_when_everyone_leaves_at_once(model: str) -> None:
    with running_server(*start(model, "--max-num-seqs", "8")) as server:
        server.wait_ready()
        streams = [OpenStream(server, 2000) for _ in range(24)]
        assert eventually(lambda: not gauges_are_zero(server))
        for stream in streams:
            stream.leave()
        # Within a second of the last one; the rest is for a busy machine.
        assert eventually(lambda: gauges_are_zero(server), 3.0)


def test_constraints_are_ready_before_the_first_one(model: str) -> None:
    """Their worker starts by itself, without torch, and outlives nobody."""
    with running_server(*start(model)) as server:
        server.wait_ready()
        assert eventually(lambda: server.request("GET", "/get_server_info")[1]["constraints"] == "ready", 30)
        (worker,) = server.children("tsd.api.grammar_worker")
        assert "torch" not in Path(f"/proc/{worker}/maps").read_text()
        body = {"prompt": [5], "max_tokens": 4, "guided_choice": ["5", "6"]}
        assert server.request("POST", "/v1/completions", body)[0] == 200
        os.kill(worker, signal.SIGSTOP)  # as one that is busy and reads nothing
        server.process.kill()
        assert eventually(lambda: not alive(worker))
