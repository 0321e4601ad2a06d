"""The table of bad requests against a real server: each gets its answer, and a stream beside them is byte-identical."""

from __future__ import annotations

import http.client
import importlib.util
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from support.server import ServerProcess, running_server
from support.tiny import tiny_model

CANARY = {"prompt": "3 1 4 1 5", "max_tokens": 300, "stream": True, "temperature": 1.0, "seed": 7, "ignore_eos": True}


def table() -> list[tuple[str, str, Any, int, str | None]]:
    """The rows that the front's own tests send to a scripted engine."""
    path = Path(__file__).with_name("test_api_bad_input.py")
    spec = importlib.util.spec_from_file_location("bad_input_rows", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows: list[tuple[str, str, Any, int, str | None]] = module.BAD
    return rows


def canary(server: ServerProcess) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("POST", "/v1/completions", json.dumps(CANARY), {"Content-Type": "application/json"})
        lines = connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    model = tiny_model(tmp_path_factory.mktemp("bad") / "m")
    with running_server(model, "--load-format", "dummy", "--gpus", "none", "--deterministic") as running:
        running.wait_ready()
        yield running


def test_every_bad_request_is_answered_beside_an_untouched_stream(server: ServerProcess) -> None:
    alone = canary(server)
    assert len(alone.split()) == 300
    beside: list[str] = []
    done = threading.Event()

    def stream() -> None:
        while not done.is_set():
            beside.append(canary(server))

    thread = threading.Thread(target=stream, daemon=True)
    thread.start()
    wrong = []
    for name, path, body, status, parameter in table():
        raw = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
        got, answer = server.request("POST", path, raw)
        error = answer.get("error", {}) if isinstance(answer, dict) else {}
        if got != status or error.get("param") != parameter or not error.get("message"):
            wrong.append((name, got, answer))
    done.set()
    thread.join(60)
    assert not wrong
    assert beside and set(beside) == {alone}
    assert server.request("GET", "/health")[0] == 200


def test_the_edge_of_the_context(server: ServerProcess) -> None:
    """A prompt that leaves room for one token gets it; one token more is refused; so are both the second time."""
    for _ in range(2):
        status, answer = server.request("POST", "/v1/completions", {"prompt": [5] * 511, "max_tokens": 8})
        assert status == 200 and answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 1
        assert server.request("POST", "/v1/completions", {"prompt": [5] * 512, "max_tokens": 8})[0] == 400
