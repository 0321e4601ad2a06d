"""Several fronts on one port: who answers what, one set of figures, and the ends of each process."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.server import ServerProcess, alive, eventually, running_server
from support.streams import OpenStream
from support.tiny import tiny_model

from tsd.api.fronts.ids import front_of_id

MEMBER = "tsd.api.fronts.process"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_model(tmp_path_factory.mktemp("fronts") / "m", max_position_embeddings=4096)


def start(model: str, *more: str) -> tuple[str, ...]:
    tiny = ("--load-format", "dummy", "--gpus", "none", "--max-total-tokens", "8192")
    return (model, *tiny, "--api-workers", "2", *more)


@pytest.fixture(scope="module")
def server(model: str) -> Iterator[ServerProcess]:
    small = ("--max-queued-requests", "4", "--max-num-seqs", "2", "--limit", "body-bytes=200000")
    with running_server(*start(model, *small)) as running:
        running.wait_ready()
        yield running


def streams_on_both(server: ServerProcess, tokens: int = 4000) -> dict[int, OpenStream]:
    """One open stream on each front: the kernel chooses, so several are tried."""
    found: dict[int, OpenStream] = {}
    for _ in range(40):
        stream = OpenStream(server, tokens)
        kept = found.setdefault(stream.front, stream)
        if kept is not stream:
            stream.leave()
        if len(found) == 2:
            return found
    raise AssertionError("one front got every connection")


def asked_of_both(server: ServerProcess, method: str, path: str, body: Any = None) -> list[tuple[int, Any]]:
    """Over twelve connections: one front alone gets all of them once in 2,000 times."""
    return [server.request(method, path, body) for _ in range(12)]


def test_the_openai_client_streams_from_both(server: ServerProcess) -> None:
    texts: dict[int, set[str]] = {}
    for _ in range(12):
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            chunks = list(
                client.completions.create(model="m", prompt="5 6 7", max_tokens=12, temperature=0, stream=True)
            )
        front = front_of_id(chunks[0].id)
        assert front is not None
        texts.setdefault(front, set()).add("".join(chunk.choices[0].text for chunk in chunks))
    assert set(texts) == {0, 1}
    assert texts[0] == texts[1] and len(texts[0]) == 1


def test_figures_are_the_sum_whoever_is_asked(server: ServerProcess) -> None:
    def totals() -> list[float]:
        found = []
        for status, text in asked_of_both(server, "GET", "/metrics"):
            assert status == 200
            families = {family.name: family for family in text_string_to_metric_families(text)}
            (sample,) = families["tsd:generation_tokens"].samples
            found.append(sample.value)
        return found

    before = totals()
    answers = asked_of_both(server, "POST", "/v1/completions", {"prompt": [5, 6], "max_tokens": 3, "ignore_eos": True})
    assert {front_of_id(answer["id"]) for _, answer in answers} == {0, 1}
    after = totals()
    assert len(set(before)) == len(set(after)) == 1
    assert after[0] - before[0] == 3 * len(answers)


def test_every_front_sees_and_aborts_every_request(server: ServerProcess) -> None:
    streams = streams_on_both(server)
    names = {stream.id for stream in streams.values()}
    for status, found in asked_of_both(server, "GET", "/admin/requests"):
        assert status == 200 and names <= {row["id"] for row in found["requests"]}
    for name in names:
        for status, found in asked_of_both(server, "GET", f"/admin/requests?id={name}"):
            assert status == 200 and found["id"] == name and found["timeline"], found
    for status, found in asked_of_both(server, "GET", "/load"):
        assert status == 200 and found["requests"] >= 2
    for stream in streams.values():
        # Two requests in a row leave over different connections, so that each front is asked for its own and not.
        assert server.request("POST", "/abort", {"request_id": stream.id[:-1]})[0] == 404
        assert server.request("POST", "/abort", {"request_id": stream.id})[0] == 200
        assert b'"finish_reason":"abort"' in stream.end()
    assert server.request("GET", "/admin/requests?id=cmpl-ff" + "0" * 30)[0] == 404


def test_an_operator_watches_all_fronts(server: ServerProcess) -> None:
    streams = streams_on_both(server)
    names = {stream.id for stream in streams.values()}
    for _ in range(4):
        watching = OpenStream.get(server, "/admin/stream?interval=0.5")
        rows: set[str] = set()
        for _ in range(8):
            line = watching.answer.readline()
            if line.startswith(b"data: "):
                snapshot = json.loads(line[6:])
                rows |= {row[0] for engine in snapshot["engines"] for row in engine["requests"]}
                assert snapshot["server"]["counters"]["streams_open"] >= 2
                if names <= rows:
                    break
        assert names <= rows
        watching.leave()
    for stream in streams.values():
        stream.leave()


def test_pause_and_log_level_reach_every_front(server: ServerProcess) -> None:
    ask = {"prompt": [5], "max_tokens": 1}
    assert server.request("POST", "/pause")[1]["state"] == "paused"
    assert {status for status, _ in asked_of_both(server, "POST", "/v1/completions", ask)} == {503}
    assert {status for status, _ in asked_of_both(server, "GET", "/ready")} == {503}
    assert server.request("POST", "/resume")[1]["state"] == "ready"
    assert {status for status, _ in asked_of_both(server, "POST", "/v1/completions", ask)} == {200}
    assert server.request("POST", "/drain")[1]["state"] == "draining"
    assert {status for status, _ in asked_of_both(server, "POST", "/v1/completions", ask)} == {503}
    assert server.request("POST", "/resume")[0] == 200
    assert {status for status, _ in asked_of_both(server, "GET", "/ready")} == {200}
    assert {status for status, _ in asked_of_both(server, "POST", "/flush_cache")} == {200}
    assert {status for status, _ in asked_of_both(server, "POST", "/admin/log_level", {"level": "info"})} == {200}


def test_a_conversation_goes_on_through_any_front(server: ServerProcess) -> None:
    _, first = server.request("POST", "/v1/responses", {"input": "5 6 7", "max_output_tokens": 4})
    for status, found in asked_of_both(server, "GET", f"/v1/responses/{first['id']}"):
        assert status == 200 and found["id"] == first["id"]
    ask = {"input": "8 9", "max_output_tokens": 4, "temperature": 0, "previous_response_id": first["id"]}
    answers = asked_of_both(server, "POST", "/v1/responses", ask)
    assert {status for status, _ in answers} == {200}
    assert len({json.dumps(answer["output"][0]["content"]) for _, answer in answers}) == 1
    assert {front_of_id(answer["id"]) for _, answer in answers} == {front_of_id(first["id"])}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        for _ in range(4):
            events = list(client.responses.create(model="m", stream=True, **ask))
            assert events[-1].type == "response.incomplete"
    (items,) = {
        json.dumps(found) for _, found in asked_of_both(server, "GET", f"/v1/responses/{first['id']}/input_items")
    }
    assert "5 6 7" in items
    assert server.request("DELETE", f"/v1/responses/{first['id']}")[0] == 200
    assert {status for status, _ in asked_of_both(server, "GET", f"/v1/responses/{first['id']}")} == {404}


def test_kept_items_and_background_work_are_found_from_any_front(server: ServerProcess) -> None:
    _, kept = server.request("POST", "/v1/conversations", {"items": [{"role": "user", "content": "5 6 7"}]})
    ask = {"input": "8 9", "max_output_tokens": 2, "temperature": 0, "conversation": kept["id"]}
    for turn in range(1, 7):
        status, answer = server.request("POST", "/v1/responses", ask)
        assert status == 200 and front_of_id(answer["id"]) == front_of_id(kept["id"])
        for status, found in asked_of_both(server, "GET", f"/v1/conversations/{kept['id']}/items"):
            assert status == 200 and len(found["data"]) == 1 + 2 * turn
    ask = {"input": "5 6", "max_output_tokens": 3000, "background": True}
    _, running = server.request("POST", "/v1/responses", ask)
    for status, found in asked_of_both(server, "GET", f"/v1/responses/{running['id']}"):
        assert status == 200 and found["id"] == running["id"]
    # It may have ended by itself; whoever is asked, it is over afterwards.
    for status, found in asked_of_both(server, "POST", f"/v1/responses/{running['id']}/cancel"):
        assert status in (200, 400), found
    ended = {found["status"] for _, found in asked_of_both(server, "GET", f"/v1/responses/{running['id']}")}
    assert len(ended) == 1 and ended <= {"cancelled", "completed", "incomplete"}


def test_what_is_sent_on_keeps_to_the_limits(server: ServerProcess) -> None:
    _, kept = server.request("POST", "/v1/conversations", {})
    path = f"/v1/conversations/{kept['id']}/items"
    for size, expected in ((1000, 200), (300_000, 413)):
        body = {"items": [{"role": "user", "content": "5 " * (size // 2)}]}
        assert {status for status, _ in asked_of_both(server, "POST", path, body)} == {expected}
    assert {status for status, _ in asked_of_both(server, "POST", path, b"{")} == {400}
    assert {status for status, _ in asked_of_both(server, "GET", "/v1/conversations/conv_ff" + "0" * 30)} == {404}


def test_the_queue_is_bounded_over_all_fronts(server: ServerProcess) -> None:
    """Two run and four wait, however they came: the engine counts."""
    running = [OpenStream(server, 4000) for _ in range(2)]
    answers: list[int] = []

    def ask() -> None:
        body = {"prompt": [5], "max_tokens": 4000, "ignore_eos": True}
        answers.append(server.request("POST", "/v1/completions", body, timeout=60)[0])

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(16)]
    for thread in threads:
        thread.start()
    assert eventually(lambda: len(answers) == 12)
    assert set(answers) == {429}
    for stream in running:
        stream.leave()
    _, found = server.request("GET", "/admin/requests")
    for row in found["requests"]:
        server.request("POST", "/abort", {"request_id": row["id"]})
    for thread in threads:
        thread.join(30)
    assert answers.count(200) == 4


def test_a_second_server_gets_no_share_of_the_port(server: ServerProcess, model: str) -> None:
    other = ServerProcess(*start(model), "--port", str(server.port))
    other.process.wait(10)
    assert other.stop() != 0
    assert any("cannot listen" in line for line in other.log), other.log


def test_sigterm_to_every_process_lets_streams_end(model: str) -> None:
    """As a service manager signals: all processes of the group, not the first one alone."""
    with running_server(*start(model)) as server:
        server.wait_ready()
        streams = streams_on_both(server, 300)
        for pid in [*server.children(), server.process.pid]:
            os.kill(pid, signal.SIGTERM)
        assert eventually(lambda: {server.request("GET", "/ready")[0] for _ in range(6)} == {503})
        for stream in streams.values():
            assert stream.end().rstrip().endswith(b"data: [DONE]")
        assert server.process.wait(20) == 0


def test_killing_any_front_ends_the_lot(model: str) -> None:
    for victim in (0, 1):  # the lead, a member
        with running_server(*start(model)) as server:
            server.wait_ready()
            children = server.children()
            streams = streams_on_both(server)
            pid = server.process.pid if victim == 0 else server.children(MEMBER)[0]
            os.kill(pid, signal.SIGKILL)
            assert b"[DONE]" not in streams[victim].end()
            other = streams[1 - victim].end()
            assert b"[DONE]" not in other
            if victim == 1:
                assert b'"server_failed"' in other
            assert server.process.wait(20) != 0
            assert eventually(lambda: not any(map(alive, children)))  # noqa: B023 (called in this turn)


def test_a_front_that_dies_while_the_engine_loads_ends_the_start(model: str) -> None:
    with running_server(*start(model)) as server:
        assert eventually(lambda: bool(server.children(MEMBER)))
        children = server.children()
        os.kill(server.children(MEMBER)[0], signal.SIGKILL)
        assert server.process.wait(20) != 0
        assert any("front 1 ended with signal SIGKILL" in line for line in server.log), server.log
        assert eventually(lambda: not any(map(alive, children)))


def test_a_dead_engine_ends_the_streams_of_every_front(model: str) -> None:
    with running_server(*start(model)) as server:
        server.wait_ready()
        children = server.children()
        streams = streams_on_both(server)
        os.kill(server.children("tsd.engine.worker")[0], signal.SIGKILL)
        for stream in streams.values():
            assert b'"engine_died"' in stream.end()
        assert server.process.wait(20) not in (0, None)
        assert eventually(lambda: not any(map(alive, children)))


@pytest.mark.slow
@pytest.mark.parametrize("who", ["lead", "member"])
def test_a_stopped_front_turns_health_to_503(model: str, who: str) -> None:
    with running_server(*start(model)) as server:
        server.wait_ready()
        pid = server.process.pid if who == "lead" else server.children(MEMBER)[0]
        os.kill(pid, signal.SIGSTOP)

        def status() -> int:
            try:
                return server.request("GET", "/health", timeout=0.5)[0]
            except OSError:
                return 0  # the stopped one got the connection

        try:
            assert eventually(lambda: status() == 503, 30)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert eventually(lambda: {status() for _ in range(8)} == {200}, 30)
