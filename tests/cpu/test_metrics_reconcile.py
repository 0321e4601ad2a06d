"""The server's own figures against the client's: requests and tokens add up, gauges rise and fall."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.server import ServerProcess, running_server
from support.tiny import tiny_model

from tsd.bench import cli


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = tiny_model(tmp_path_factory.mktemp("metrics") / "m", max_position_embeddings=4096)
    flags = ("--load-format", "dummy", "--gpus", "none", "--max-total-tokens", "8192")
    with running_server(model, *flags) as running:
        running.wait_ready()
        yield running


def metrics(server: ServerProcess) -> dict[str, float]:
    """Sample name with labels, without model and engine, → value."""
    status, text = server.request("GET", "/metrics")
    assert status == 200
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            name = re.sub(r'(,?)(model_name|engine)="[^"]*"', "", name).replace("{,", "{").replace("{}", "")
            found[name] = float(value)
    return found


def changed(before: dict[str, float], after: dict[str, float], name: str) -> float:
    return after.get(name, 0.0) - before.get(name, 0.0)


def ended(values: dict[str, float]) -> dict[str, float]:
    prefix = 'tsd:request_success_total{finished_reason="'
    return {name[len(prefix) : -2]: value for name, value in values.items() if name.startswith(prefix)}


def settled(server: ServerProcess, seconds: float = 5.0) -> dict[str, float]:
    """The figures once the gauges are zero and a heartbeat has passed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        values = metrics(server)
        if values["tsd:num_requests_running"] == values["tsd:num_requests_waiting"] == 0:
            time.sleep(1.2)
            return metrics(server)
        time.sleep(0.05)
    raise AssertionError("the gauges never fall to zero")


def bench(server: ServerProcess, tmp_path: Path, *flags: str) -> dict[str, Any]:
    args = ["--base-url", server.url, "--result-dir", str(tmp_path), "--result-filename", "r.json", "--save-result"]
    assert cli.main([*args, "--no-progress", *flags]) == 0
    result: dict[str, Any] = json.loads((tmp_path / "r.json").read_text())
    return result


def test_token_and_request_sums_equal_the_clients(server: ServerProcess, tmp_path: Path) -> None:
    before = settled(server)
    shape = "--num-prompts 6 --turns 3 --prefix-len 64 --input-len 20 --output-len 9 --max-concurrency 3"
    result = bench(server, tmp_path, "--dataset-name", "agentic", *shape.split())
    after = settled(server)
    # the client's trial request is in the server's figures and not in the result: 16 tokens in, 4 out
    assert changed(before, after, "tsd:prompt_tokens_total") == result["total_input_tokens"] + 16
    assert changed(before, after, "tsd:generation_tokens_total") == result["total_output_tokens"] + 4
    assert changed(before, after, "tsd:prompt_tokens_cached_total") == result["cached_input_tokens"] > 0
    assert result["history"] == "token_ids" and result["tokens_counted_by"] == "usage"
    assert result["usage_disagrees"] == result["output_length_differs"] == result["input_length_differs"] == 0
    assert ended(after)["length"] - ended(before).get("length", 0) == 19
    assert changed(before, after, "tsd:time_to_first_token_seconds_count") == 19
    assert changed(before, after, "tsd:inter_token_latency_seconds_count") == 19 * 9 - 5 - 19
    assert changed(before, after, "tsd:request_generation_tokens_sum") == result["total_output_tokens"] + 4
    assert changed(before, after, "tsd:prefix_cache_hits_total") == result["cached_input_tokens"]
    # every scheduled token is in the histogram of steps: computed prompt tokens, and each token but a request's last
    computed = result["total_input_tokens"] + 16 - result["cached_input_tokens"]
    scheduled = changed(before, after, "tsd:iteration_tokens_total_sum")
    assert scheduled >= computed + result["total_output_tokens"] + 4 - 19
    assert result["server_watch"]["server_counters"]["generation_tokens"] == result["total_output_tokens"]


def test_submitted_is_finished_and_aborted_and_refused(server: ServerProcess) -> None:
    before = settled(server)
    good = {"prompt": [5, 6, 7], "max_tokens": 5, "ignore_eos": True, "temperature": 0}
    for _ in range(5):
        assert server.request("POST", "/v1/completions", good)[0] == 200
    assert server.request("POST", "/v1/completions", {**good, "prompt": [5] * 5000})[0] == 400
    busy = []
    for _ in range(3):
        raw = json.dumps({**good, "max_tokens": 3000, "stream": True}).encode()
        sock = socket.create_connection(("127.0.0.1", server.port))
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(raw), raw))
        sock.recv(4096)
        busy.append(sock)
    deadline = time.monotonic() + 10
    while metrics(server)["tsd:num_requests_running"] < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    under_load = metrics(server)
    assert under_load["tsd:num_requests_running"] == 3 and under_load["tsd:kv_cache_usage_perc"] > 0
    for sock in busy:
        sock.close()
    after = settled(server)
    counted = {reason: value - ended(before).get(reason, 0) for reason, value in ended(after).items()}
    assert counted.get("length") == 5 and counted.get("abort") == 3
    assert sum(counted.values()) - counted.get("refused", 0) == 8
    assert after["tsd:kv_cache_usage_perc"] == 0
