"""schemathesis on our OpenAPI document and on OpenAI's: generated requests, good and bad, get documented answers.

TSD_SCHEMATHESIS sets how many are made of each operation and kind (60 for a long run of two and a half minutes).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from support.served import served
from support.suite_data import cut_down, published_openapi

from tsd.api.openapi import document

schemathesis = pytest.importorskip("schemathesis")
from schemathesis import GenerationMode  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

EXAMPLES = int(os.environ.get("TSD_SCHEMATHESIS", "6"))
# Streams without an end, and orders that close the server to the next request.
LEFT_OUT = frozenset(("/admin/stream", "/pause", "/drain", "/resume", "/admin/log_level"))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(tokens_per_step=64) as found:
        yield found


def run(operation: Any, mode: Any, url: str, checks: list[Any], refused: list[Any], examples: int) -> Counter[int]:
    """Statuses seen; empty where nothing of that kind can be made. `refused` checks what is not answered with 200."""
    seen: Counter[int] = Counter()
    good = mode is GenerationMode.POSITIVE

    @settings(
        max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        if good and isinstance(case.body, dict) and "model" in case.body:
            case.body["model"] = "test"
        response = case.call(base_url=url, timeout=30)
        seen[response.status_code] += 1
        case.validate_response(response, checks=checks if response.status_code == 200 else refused)

    try:
        check()
    except Unsatisfiable:
        assert not seen
    return seen


def all_of(schema: Any, url: str, checks: list[Any], refused: list[Any], examples: int) -> Counter[int]:
    total: Counter[int] = Counter()
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path in LEFT_OUT:
            continue
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            total += run(operation, mode, url, checks, refused, examples)
    return total


def ours(url: str, examples: int) -> None:
    schema = schemathesis.openapi.from_dict(json.loads(document()))
    checks = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
    seen = all_of(schema, url, checks, checks, examples)
    print("ours", dict(seen))
    assert seen[200] and seen[400] and seen[404]


SERVED = {
    ("post", "/chat/completions"),
    ("post", "/completions"),
    ("post", "/responses"),
    *((method, "/responses/{response_id}") for method in ("get", "delete")),
    ("post", "/responses/{response_id}/cancel"),
    ("get", "/responses/{response_id}/input_items"),
    ("get", "/models"),
    ("get", "/models/{model}"),
    ("post", "/conversations"),
    *((method, "/conversations/{conversation_id}") for method in ("get", "post", "delete")),
    *((method, "/conversations/{conversation_id}/items") for method in ("get", "post")),
    *((method, "/conversations/{conversation_id}/items/{item_id}") for method in ("get", "delete")),
}


def theirs(url: str, examples: int) -> None:
    whole = cut_down(published_openapi("openai"), SERVED)
    assert {(method, path) for path, item in whole["paths"].items() for method in item} == SERVED
    checks = [not_a_server_error, response_schema_conformance]
    # Of errors the document tells several forms, some by mistake; ours is checked with our own document.
    seen = all_of(schemathesis.openapi.from_dict(whole), f"{url}/v1", checks, checks[:1], examples)
    print("theirs", dict(seen))
    assert seen[200] and seen[400] and seen[404]


def test_our_document(url: str) -> None:
    ours(url, EXAMPLES)


def test_the_document_that_openai_publishes(url: str) -> None:
    theirs(url, EXAMPLES)
