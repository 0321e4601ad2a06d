"""Malformed and extreme requests, by number: the same number is always the same request."""

from __future__ import annotations

import json
import random
from typing import Any, NamedTuple

from tsd.api.wire.chat import ChatRequest
from tsd.api.wire.completions import CompletionRequest
from tsd.api.wire.conversations import ConversationRequest
from tsd.api.wire.messages import MessagesRequest
from tsd.api.wire.native import DetokenizeRequest, GenerateRequest, NativeSampling, TokenizeRequest
from tsd.api.wire.responses import ResponsesRequest


class Bad(NamedTuple):
    path: str
    body: bytes


BASES: tuple[tuple[str, type, dict[str, Any]], ...] = (
    ("/v1/chat/completions", ChatRequest, {"messages": [{"role": "user", "content": "1"}], "max_tokens": 2}),
    ("/v1/completions", CompletionRequest, {"prompt": "1", "max_tokens": 2}),
    ("/v1/responses", ResponsesRequest, {"input": "1", "max_output_tokens": 2}),
    ("/v1/conversations", ConversationRequest, {"items": [{"role": "user", "content": "1"}]}),
    ("/v1/messages", MessagesRequest, {"max_tokens": 2, "messages": [{"role": "user", "content": "1"}]}),
    ("/generate", GenerateRequest, {"input_ids": [1], "sampling_params": {"max_new_tokens": 2}}),
    ("/tokenize", TokenizeRequest, {"prompt": "1"}),
    ("/detokenize", DetokenizeRequest, {"tokens": [1]}),
)
VALUES: tuple[Any, ...] = (
    *(0, -1, 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 0.0, -0.0, 1e-300, 1e300, 0.5, -0.5),
    *(
        True,
        False,
        None,
        "",
        "x",
        "\0",
        "\u2028",
        "\ud7ff",
        "🎉" * 100,
        "a" * 5000,
        "null",
        "{}",
        "<|im_end|>",
        "../etc",
    ),
    *([], [[]], {}, [None], [0], [-1], [10**9], ["a"] * 300, [""], [True], [[1], ["a"]], [{}] * 200, {"a": None}),
    *({"type": "function"}, [{"type": "function", "function": {"name": "f", "parameters": {"type": 5}}}], {"1": 1e9}),
    *({"9999999": 5}, {"-1": 1}, {"type": "json_schema"}, {"type": "json_object"}, [{"role": "user"}]),
    *({"id": "conv_1"}, {"not": {}}, {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
    *([{"role": "user", "content": [{"type": "text"}]}], [{"role": "assistant", "tool_calls": [{}]}], "required"),
)
RAW = (b"NaN", b"Infinity", b"1e999", b"-", b'"', b"[", b"{", b'"\\ud800"', b'"\\x"', b"\xff", b"01", b"0x1", b"'a'")


def bad_request(number: int) -> Bad:
    chooser = random.Random(number)
    path, kind, base = chooser.choice(BASES)
    fields = list(kind.__struct_fields__)  # type: ignore[attr-defined]
    body: dict[str, Any] = json.loads(json.dumps(base))
    for _ in range(chooser.choice((1, 1, 2, 4))):
        target = body
        names = fields
        if kind is GenerateRequest and chooser.random() < 0.5:
            target, names = body.setdefault("sampling_params", {}), list(NativeSampling.__struct_fields__)
        if not isinstance(target, dict):
            continue
        name = chooser.choice(names)
        target[name] = chooser.choice(VALUES)
        if name == "stream":
            target[name] = chooser.random() < 0.5
    style = chooser.random()
    data = json.dumps(body, ensure_ascii=chooser.random() < 0.5).encode("utf-8", "surrogatepass")
    if style < 0.10:
        name = chooser.choice(fields)
        data = data[:-1] + b', "' + name.encode() + b'": ' + chooser.choice(RAW) + b"}"
    elif style < 0.15:
        data = data[: chooser.randrange(len(data))]
    elif style < 0.20:
        at = chooser.randrange(len(data))
        data = data[:at] + bytes([chooser.randrange(256)]) + data[at + 1 :]
    elif style < 0.24:
        depth = chooser.choice((63, 64, 65, 1000, 100_000))
        data = data[:-1] + b', "junk": ' + b"[" * depth + b"]" * depth + b"}"
    return Bad(path, data)
