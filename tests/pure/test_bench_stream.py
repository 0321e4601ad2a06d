"""What the client makes of a stream, with scripted arrival times: exact figures, however the bytes are cut."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tsd.bench.metrics import Goals, summarise
from tsd.bench.record import RequestRecord
from tsd.bench.sse import SseReader
from tsd.bench.stream import StreamReader, error_text


def event(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def text_chunk(text: str, finish: str | None = None, **extra: Any) -> bytes:
    return event({"choices": [{"text": text, "finish_reason": finish}], **extra})


def delta_chunk(finish: str | None = None, **delta: Any) -> bytes:
    return event({"choices": [{"delta": delta, "finish_reason": finish}]})


def usage_chunk(prompt: int, output: int, cached: int | None = None) -> bytes:
    details = None if cached is None else {"cached_tokens": cached}
    usage = {"prompt_tokens": prompt, "completion_tokens": output, "prompt_tokens_details": details}
    return event({"choices": [], "usage": usage})


def read(pieces: list[tuple[float, bytes]], start: float = 100.0, completions: bool = True) -> RequestRecord:
    record = RequestRecord(session=0, turn=0, start=start, requested_output=1)
    reader = StreamReader(record, keep_text=True, completions=completions)
    for at, data in pieces:
        reader.feed(data, start + at)
    record.end = start + (pieces[-1][0] if pieces else 0.0)
    reader.finish()
    return record


def test_times_are_exact() -> None:
    arrivals = [0.250, 0.260, 0.285, 0.300]
    pieces = [(at, text_chunk("a", "length" if at == 0.3 else None)) for at in arrivals]
    record = read([*pieces, (0.9, usage_chunk(7, 4, 3)), (0.9, b"data: [DONE]\n\n")])
    assert record.ok and record.text == "aaaa"
    assert record.ttft == pytest.approx(0.250, abs=1e-9)
    assert record.tpot == pytest.approx(0.050 / 3, abs=1e-9)
    assert record.itls == pytest.approx([0.010, 0.025, 0.015], abs=1e-9)
    assert record.e2el == pytest.approx(0.300, abs=1e-9)
    assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == (7, 4, 3)


def test_figures_and_goodput_of_scripted_records() -> None:
    records = []
    for i in range(10):  # TTFT 10 … 100 ms, TPOT 1 … 10 ms, one after the other, 1 s apart
        ttft, tpot = 0.010 * (i + 1), 0.001 * (i + 1)
        pieces = [(ttft + tpot * k, text_chunk("a", "length" if k == 4 else None)) for k in range(5)]
        records.append(read([*pieces, (pieces[-1][0], usage_chunk(10, 5))], start=50.0 + i))
    figures = summarise(records, Goals.parse(["ttft:75", "tpot:9"]))
    assert figures["duration"] == pytest.approx(9.0 + 0.100 + 0.040)
    assert figures["mean_ttft_ms"] == pytest.approx(55.0) and figures["median_tpot_ms"] == pytest.approx(5.5)
    assert figures["request_goodput"] == pytest.approx(7 / figures["duration"])
    assert figures["output_throughput"] == pytest.approx(50 / figures["duration"])
    assert figures["total_token_throughput"] == pytest.approx(150 / figures["duration"])
    assert figures["max_output_tokens_per_s"] == 5 and figures["max_concurrent_requests"] == 1


def test_any_cut_of_the_bytes_gives_the_same_record() -> None:
    whole = b": ping\n\n" + text_chunk("日本") + text_chunk(" b") + text_chunk("", "stop") + usage_chunk(3, 2)
    whole = whole.replace(b"\n", b"\r\n", 2) + b"data: [DONE]\n\n"
    wanted = read([(0.1, whole)])
    source = random.Random(5)
    for _ in range(200):
        cuts = sorted(source.sample(range(1, len(whole)), source.randint(0, 12)))
        parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
        assert read([(0.1, part) for part in parts]) == wanted


def test_sse_fields_comments_and_joined_lines() -> None:
    reader = SseReader()
    assert reader.feed(b": hello\nevent: x\nid: 1\ndata: a\ndata:b\n\ndata: c") == [b"a\nb"]
    assert reader.close() == [b"c"]


def test_multi_token_chunks_are_counted_by_usage_on_each_chunk() -> None:
    pieces = [
        (0.1, text_chunk("a", usage={"prompt_tokens": 9, "completion_tokens": 1})),
        (0.2, text_chunk("bcd", usage={"prompt_tokens": 9, "completion_tokens": 4})),
        (0.3, text_chunk("", usage={"prompt_tokens": 9, "completion_tokens": 5})),
        (0.4, text_chunk("", "stop", usage={"prompt_tokens": 9, "completion_tokens": 5})),
    ]
    record = read(pieces)
    assert record.chunk_tokens == [1, 3, 1] and record.output_tokens == 5
    assert record.chunk_times == pytest.approx([0.1, 0.2, 0.3])  # the finish chunk held no token
    assert record.tpot == pytest.approx(0.2 / 4)


def test_token_ids_count_tokens() -> None:
    ids = [{"choices": [{"text": "", "token_ids": chunk}]} for chunk in ([5], [6, 7])]
    record = read([(0.1, event(ids[0])), (0.2, event(ids[1])), (0.3, text_chunk("", "length"))])
    assert record.chunk_tokens == [1, 2] and len(record.chunk_times) == 2


def test_a_completions_chunk_without_text_is_a_token_that_is_no_character_yet() -> None:
    record = read([(0.1, text_chunk("")), (0.2, text_chunk("界")), (0.3, text_chunk("", "length"))])
    assert record.ttft == pytest.approx(0.1) and len(record.chunk_times) == 2


def test_chat_role_chunk_is_no_output_but_reasoning_and_tool_calls_are() -> None:
    pieces = [
        (0.1, delta_chunk(role="assistant", content="")),
        (0.2, delta_chunk(reasoning_content="hm")),
        (0.3, delta_chunk(reasoning="hm")),
        (0.4, delta_chunk(tool_calls=[{"index": 0}])),
        (0.5, delta_chunk(content="a", tool_calls=None)),
        (0.6, delta_chunk("stop")),
    ]
    record = read(pieces, completions=False)
    assert record.chunk_times == pytest.approx([0.2, 0.3, 0.4, 0.5])


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([(0.1, text_chunk("a"))], "without a finish reason"),
        ([(0.1, text_chunk("a")), (0.2, event({"error": {"message": "engine died"}}))], "engine died"),
        ([(0.1, event(b"{nonsense"))], "not an OpenAI chunk"),
        ([(0.1, event(b'{"choices": 5}'))], "not an OpenAI chunk"),
        ([(0.1, b"data: [DONE]\n\n")], "no output"),
    ],
)
def test_broken_streams_are_errors_that_keep_what_came(pieces: list[tuple[float, bytes]], words: str) -> None:
    record = read(pieces)
    assert words in record.error
    assert len(record.chunk_times) == (1 if pieces[0][1] == text_chunk("a") else 0)


def test_error_text_reads_the_usual_shapes() -> None:
    assert error_text(b'{"error":{"message":"no such model","code":404}}') == "no such model"
    assert error_text(b'{"detail":"Not Found"}') == "Not Found"
    assert error_text(b'{"object":"error","message":"bad"}') == "bad"
    assert error_text(b"<html>") == "<html>"
