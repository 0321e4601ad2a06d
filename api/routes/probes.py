"""What is served and how it is: models, health, readiness, load, metrics, server facts."""

from __future__ import annotations

import datetime
import time
from typing import Any

import msgspec
from aiohttp import web

from tsd.api.about import about
from tsd.api.errors import NotFound, Unavailable
from tsd.api.exposition import exposition
from tsd.api.front import Front, front_of
from tsd.api.fronts import whole
from tsd.api.respond import json_response
from tsd.api.wire.messages import ModelInfo, ModelInfos
from tsd.api.wire.sampling import ModelCard, ModelList


def _card(front: Front, name: str) -> ModelCard:
    try:
        length = front.facts.max_model_len
    except Unavailable:
        length = None
    return ModelCard(name, int(front.started_at), length, front.options.name)


def _info(front: Front, name: str) -> ModelInfo:
    card = _card(front, name)
    created = datetime.datetime.fromtimestamp(card.created, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return ModelInfo(name, name, created, card.max_model_len, card.max_model_len)


def _is_anthropic(request: web.Request) -> bool:
    """Both dialects ask the same paths; Anthropic's clients say so."""
    return "anthropic-version" in request.headers


async def models(request: web.Request) -> web.StreamResponse:
    front = front_of(request)
    if _is_anthropic(request):
        infos = [_info(front, name) for name in front.names]
        return json_response(ModelInfos(infos, infos[0].id, infos[-1].id))
    return json_response(ModelList([_card(front, name) for name in front.names]))


async def model(request: web.Request) -> web.StreamResponse:
    front = front_of(request)
    name = request.match_info["model"]
    if name not in front.names:
        raise NotFound(f"the model {name[:100]!r} is not served here", param="model", code="model_not_found")
    return json_response(_info(front, name) if _is_anthropic(request) else _card(front, name))


async def health(request: web.Request) -> web.StreamResponse:
    """200 while every engine answers (also while they load and drain), 503 when one is dead or stuck."""
    front = front_of(request)
    fault = front.fault()
    return json_response({"status": "failed" if fault else front.state, "fault": fault}, 503 if fault else 200)


async def ready(request: web.Request) -> web.StreamResponse:
    """200 when requests are taken; until then 503 with the phases of the start."""
    front = front_of(request)
    fault = front.fault()
    is_ready = front.state == "ready" and not fault
    body: dict[str, Any] = {
        "status": "failed" if fault else front.state,
        "engines": [_phases(e) for e in front.fleet.engines],
    }
    headers = None if is_ready else {"Retry-After": "2"}
    return json_response(body, 200 if is_ready else 503, headers)


def _phases(engine: Any) -> dict[str, Any]:
    return {
        "engine": engine.engine,
        "state": engine.state,
        "phases": [
            {"phase": p.phase, "detail": p.detail, "elapsed_s": round(p.elapsed_s, 3), "fraction": p.fraction}
            for p in engine.phases[-32:]
        ],
    }


async def metrics(request: web.Request) -> web.StreamResponse:
    front = front_of(request)
    body = exposition(await whole.figures(front), front.fleet, front.options.name)
    return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


async def load(request: web.Request) -> web.StreamResponse:
    front = front_of(request)
    beats = {engine.engine: engine.beat for engine in front.fleet.engines}
    engines = []
    for found in (await whole.figures(front)).loads:
        beat = beats.get(found.engine)
        engines.append({**msgspec.structs.asdict(found), "running": beat.running if beat else 0})
    return json_response({"requests": sum(engine["requests"] for engine in engines), "engines": engines})


async def server_info(request: web.Request) -> web.StreamResponse:
    front = front_of(request)
    options = front.options
    return json_response(
        {
            "name": "tsd",
            **about(),
            "model": options.name,
            "served_model_names": list(front.names),
            "state": front.state,
            "uptime_s": round(time.time() - front.started_at, 3),
            "constraints": front.grammars.state if front.grammars is not None else "off",
            "reasoning_parser": options.reasoning_parser or None,
            "tool_call_parser": options.tool_call_parser or None,
            "limits": options.limits,
            "slo": options.slo,
            "engines": [
                {
                    "engine": engine.engine,
                    "state": engine.state,
                    **({} if engine.ready is None else _facts(engine.ready)),
                }
                for engine in front.fleet.engines
            ],
        }
    )


def _facts(ready: Any) -> dict[str, Any]:
    names = (
        "architecture", "vocab_size", "max_model_len", "page_size", "num_pages", "max_num_seqs", "max_total_tokens",
        "device", "dtype", "startup_s", "phases", "eos_token_ids", "info",
    )  # fmt: skip
    return {name: getattr(ready, name) for name in names}


async def model_info(request: web.Request) -> web.StreamResponse:
    front = front_of(request)
    facts = front.facts
    return json_response(
        {
            "model_path": front.options.name,
            "tokenizer_path": front.options.name,
            "is_generation": True,
            "max_model_len": facts.max_model_len,
            "vocab_size": facts.vocab_size,
            "eos_token_ids": list(facts.eos_ids),
            "has_chat_template": front.loaded.tokenizer.chat_template is not None,
        }
    )
