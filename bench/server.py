"""What the server under test says about itself, asked before the load and outside of it.

Owns the ready check, the choice of model, the vocabulary's size, and a trial request that finds out which extensions
the server understands. Knows nothing about workloads.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import msgspec

from tsd.bench.errors import ServerRefused, ServerUnreachable
from tsd.bench.http import HttpError, Pool, Response
from tsd.bench.load import Load
from tsd.bench.plan import Plan, RequestShape, Session, Turn
from tsd.bench.record import RequestRecord
from tsd.bench.store import PieceStore, Vocabulary

_ASK_TIMEOUT_S = 10.0
_SAFE_VOCABULARY = 16_000


@dataclass
class ServerFacts:
    """`info` and `model_info` are what the server's own routes said, whole, for the run record."""

    model: str
    models: list[str] = field(default_factory=list)
    max_model_len: int | None = None
    version: str | None = None
    info: dict[str, Any] = field(default_factory=dict)
    model_info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Features:
    """Extensions that the trial request found working."""

    usage: bool
    chunk_usage: bool
    token_ids: bool
    cached_tokens: bool


async def _ask(pool: Pool, path: str, api_key: str | None) -> Response:
    async with asyncio.timeout(_ASK_TIMEOUT_S):
        return await pool.fetch("GET", path, api_key=api_key)


async def _ask_json(pool: Pool, path: str, api_key: str | None) -> dict[str, Any]:
    """A JSON object from an optional route; empty when the server has no such route."""
    try:
        response = await _ask(pool, path, api_key)
        value = msgspec.json.decode(response.body) if response.status == 200 else {}
    except (HttpError, TimeoutError, msgspec.DecodeError):
        return {}
    return value if isinstance(value, dict) else {}


async def find_server(pool: Pool, model: str | None, api_key: str | None, wait_s: float) -> ServerFacts:
    """Wait up to `wait_s` for /v1/models, choose the model, collect what the server tells.

    Raises ServerUnreachable or ServerRefused.
    """
    deadline = perf_counter() + wait_s
    while True:
        problem: Exception
        try:
            response = await _ask(pool, "/v1/models", api_key)
            starting = response.status >= 500 or (await _ask(pool, "/ready", api_key)).status == 503
            if not starting:
                break
            problem = ServerUnreachable(f"{pool.origin} is not ready yet")
        except TimeoutError:
            problem = ServerUnreachable(f"{pool.origin} does not answer within {_ASK_TIMEOUT_S:g} s")
        except HttpError as error:
            problem = ServerUnreachable(str(error))
        if perf_counter() >= deadline:
            hint = "" if wait_s else " (--ready-check-timeout-sec N waits for a server that is starting)"
            raise ServerUnreachable(f"{problem}{hint}")
        await asyncio.sleep(min(1.0, max(0.05, deadline - perf_counter())))
    if response.status in (401, 403):
        raise ServerRefused(f"{pool.origin} wants an API key (--api-key): HTTP {response.status}")
    entries = _model_entries(response)
    names = [str(entry["id"]) for entry in entries]
    if model is None:
        if not names:
            raise ServerRefused(f"{pool.origin} lists no models: name one with --model")
        model = names[0]
    entry = next((entry for entry in entries if entry["id"] == model), {})
    facts = ServerFacts(model, names)
    length = entry.get("max_model_len")
    facts.max_model_len = length if isinstance(length, int) else None
    facts.info = await _ask_json(pool, "/get_server_info", api_key)
    facts.info.pop("limits", None)
    facts.model_info = await _ask_json(pool, "/get_model_info", api_key)
    version = facts.info.get("version") or (await _ask_json(pool, "/version", api_key)).get("version")
    facts.version = str(version) if version is not None else None
    return facts


def _model_entries(response: Response) -> list[dict[str, Any]]:
    if response.status != 200:
        return []
    try:
        value = msgspec.json.decode(response.body)
    except msgspec.DecodeError:
        return []
    data = value.get("data") if isinstance(value, dict) else None
    return [entry for entry in data if isinstance(entry, dict) and "id" in entry] if isinstance(data, list) else []


def vocabulary_of(facts: ServerFacts, given: int | None) -> Vocabulary:
    """Where random ids come from: the flag, the server's word, or a size that any common model exceeds."""
    if given is not None:
        return Vocabulary.of_size(given, "--vocab-size")
    for place, source in ((facts.model_info, "/get_model_info"), (facts.info, "/get_server_info")):
        size = place.get("vocab_size")
        if isinstance(size, int) and size > 1:
            return Vocabulary.of_size(size, source)
    return Vocabulary.of_size(_SAFE_VOCABULARY, "default: the server does not tell, --vocab-size does")


async def try_request(pool: Pool, shape: RequestShape, vocabulary: Vocabulary, facts: ServerFacts) -> Features:
    """One small request with every extension; a server that refuses it gets a plainer one.

    Raises ServerRefused with the server's words when even the plain request fails.
    """
    base = {key: value for key, value in shape.parameters.items() if key not in ("stream_options", "return_token_ids")}
    usage: dict[str, object] = {"stream_options": {"include_usage": True}}
    full: dict[str, object] = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    record = RequestRecord(session=0, turn=0)
    for extras in ({**full, "return_token_ids": True}, usage, {}):
        store = PieceStore(shape.kind, vocabulary, seed=int(perf_counter() * 1e6))
        turn = Turn([store.random("trial", 16)], 4, 16)
        trial = msgspec.structs.replace(shape, parameters={**base, **extras}, keep_text=False)
        plan = Plan(shape.kind, store.pieces, [Session([turn])])
        load = Load(plan, trial, 0, 0, lambda _record: None)
        record = RequestRecord(session=0, turn=0, requested_output=4)
        reader = await load.request(record, turn, [store.pieces[0]])
        load.pool.close()
        if record.ok:
            return Features(
                usage=record.usage_output is not None,
                chunk_usage=reader.usage_with_output,
                token_ids=bool(reader.token_ids),
                cached_tokens=record.cached_tokens is not None,
            )
        if record.status not in (400, 422):
            break
    known = f"; it has: {', '.join(facts.models)}" if facts.models and facts.model not in facts.models else ""
    raise ServerRefused(f"{pool.origin}{shape.endpoint} does not serve model {facts.model!r}: {record.error}{known}")
