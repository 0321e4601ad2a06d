"""What the front counts and tells: Prometheus names, the request log, log-probabilities one to one, deadlines."""

from __future__ import annotations

import asyncio
import json
import subprocess
from array import array
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.byte_model import encode, model_that_says
from support.front_server import front_group, run_async, serving, until

from tsd.api.routing import _prefix_keys
from tsd.api.sequence import refusal
from tsd.engine.protocol import Finished, Submit

CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "1 2 3"}], "max_tokens": 6}


def test_prometheus_names() -> None:
    async def test() -> None:
        async with serving() as server:
            await server.post(CHAT, ASK)
            await asyncio.sleep(0.3)
            _, text = await server.get("/metrics")
            names = [line.rpartition(" ")[0] for line in text.splitlines() if line[:1] not in ("#", "")]
            assert len(names) == len(set(names))
            families = {family.name: family for family in text_string_to_metric_families(text)}
            gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "startup_time_seconds")
            counters = ("prompt_tokens", "generation_tokens", "prompt_tokens_cached", "prefix_cache_queries")
            counters += ("prefix_cache_hits", "request_success", "num_retractions")
            histograms = ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds")
            histograms += ("request_time_per_output_token_seconds", "request_queue_time_seconds")
            histograms += ("request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens")
            histograms += ("request_generation_tokens", "iteration_tokens_total")
            for names, kind in ((gauges, "gauge"), (counters, "counter"), (histograms, "histogram")):
                for name in names:
                    assert families[f"tsd:{name}"].type == kind, name
            assert "tsd:cache_config_info{" in text
            samples = {s.name + s.labels.get("le", ""): s.value for f in families.values() for s in f.samples}
            assert samples["tsd:generation_tokens_total"] == 6
            assert samples["tsd:inter_token_latency_seconds_count"] == 5
            assert samples["tsd:iteration_tokens_total_bucket+Inf"] == 3

    run_async(test)


def test_request_log(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(options={"request_log": str(tmp_path / "log")}) as server:
            _, answer = await server.post(CHAT, ASK)
            await server.post(CHAT, {**ASK, "n": 0})
            lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
            assert len(lines) == 1
            line = lines[0]
            assert line["request"] == answer["id"] and line["finish_reason"] == "length"
            assert (line["output_tokens"], line["cached_tokens"]) == (6, 3)
            assert line["total_ms"] >= line["ttft_ms"] >= 0

    run_async(test)


@pytest.mark.parametrize("per_step", [1, 4])
@pytest.mark.parametrize("stream", [False, True])
def test_one_logprob_a_token(tmp_path: Path, per_step: int, stream: bool) -> None:
    said = "ab ☀ cd STOP never"

    async def test() -> None:
        async with model_that_says(tmp_path, said, tokens_per_step=per_step) as server:
            for stop in (None, ["STOP"], [" c"]):
                body = {**ASK, "max_tokens": 100, "logprobs": True, "top_logprobs": 1, "stop": stop}
                entries, text = [], ""
                if stream:
                    body |= {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
                    events = (await server.events(CHAT, body))[:-1]
                    for event in events[:-1]:
                        choice = event["choices"][0]
                        entries += (choice["logprobs"] or {"content": []})["content"]
                        text += choice["delta"].get("content", "")
                        assert len(choice.get("token_ids", [])) == len(
                            (choice["logprobs"] or {"content": []})["content"]
                        )
                    usage = events[-1]["usage"]
                else:
                    _, answer = await server.post(CHAT, body)
                    entries, usage = answer["choices"][0]["logprobs"]["content"], answer["usage"]
                    text = answer["choices"][0]["message"]["content"]
                assert len(entries) == usage["completion_tokens"]
                data = b"".join(bytes(entry["bytes"]) for entry in entries)
                assert data.decode("utf-8", "replace").startswith(text)
                if stop is None:
                    assert len(entries) == len(encode(said)) + 1  # and its end token

    run_async(test)


def test_infinite_logprobs_become_finite() -> None:
    async def test() -> None:
        async with serving(logprob=float("-inf")) as server:
            status, answer = await server.post(CHAT, {**ASK, "logprobs": True, "top_logprobs": 2})
            assert status == 200
            assert answer["choices"][0]["logprobs"]["content"][0]["logprob"] == -9999.0
            status, answer = await server.post("/v1/completions", {"prompt": "1", "logprobs": 2, "max_tokens": 2})
            assert status == 200

    run_async(test)


def test_engine_endings_have_a_status() -> None:
    assert refusal(Finished(1, "deadline")).status == 504
    assert refusal(Finished(1, "error", message="NaN")).status == 500
    assert refusal(Finished(1, "refused", code="queue_full")).retry_after == 1
    assert refusal(Finished(1, "refused", code="odd", message="x")).status == 400


def test_prefix_keys_chain() -> None:
    one, two = array("i", range(1000)), array("i", [*range(600), *range(400)])
    keys, others = _prefix_keys(one, None), _prefix_keys(two, None)
    assert len(keys) == 3 and keys[:2] == others[:2] and keys[2] != others[2]
    assert set(keys).isdisjoint(_prefix_keys(one, "salt"))


OPENSSL = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key.pem -out cert.pem"


def test_tls(tmp_path: Path) -> None:
    made = subprocess.run(
        OPENSSL.split(),
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("openssl cannot make a certificate here")

    async def test() -> None:
        options = {"tls_certificate": str(tmp_path / "cert.pem"), "tls_key": str(tmp_path / "key.pem")}
        async with serving(options=options) as server:
            url = server.url.replace("http:", "https:") + "/v1/completions"
            body = {"prompt": "1", "max_tokens": 3, "stream": True}
            async with server.session.post(url, json=body, ssl=False) as response:
                assert response.status == 200 and (await response.text()).endswith("data: [DONE]\n\n")

    run_async(test)


def test_fronts_send_a_session_to_the_engine_that_holds_it() -> None:
    """Of four engines, all busy; its next turn comes through the other front."""

    async def test() -> None:
        async with front_group(2, engines=4, hold=True) as fronts:
            engines = fronts[0].engines

            def turns() -> list[tuple[int, int]]:
                """(session, engine) of each request that came."""
                return [
                    (int.from_bytes(message.prompt[:4], "little"), number)
                    for number, engine in enumerate(engines)
                    for message in engine.seen
                    if isinstance(message, Submit)
                ]

            asked = []
            for turn in range(2):
                for session in (range(8), reversed(range(8)))[turn]:  # by load alone they would go elsewhere
                    prompt = [session, *(5 + i % 900 for i in range(2000)), *[7] * turn]
                    ask = fronts[(session + turn) % 2].post("/v1/completions", {"prompt": prompt, "max_tokens": 1})
                    asked.append(asyncio.create_task(ask))
                    await until(lambda: len(turns()) == len(asked))
            for task in asked:
                task.cancel()
            await until(lambda: not any(engine.running for engine in engines))
            where = set(turns())
            assert len(where) == 8, "a session went to two engines"
            assert len({engine for _, engine in where}) == 4

    run_async(test)
