"""The documents against the code: the table of parameters, the OpenAPI document, and what `tsd connect` prints."""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from openapi_spec_validator import validate
from support.byte_model import model_that_says
from support.front_server import run_async

from tsd.api import connect
from tsd.api.app import ROUTES
from tsd.api.openapi import document
from tsd.api.wire.chat import ChatRequest
from tsd.api.wire.completions import CompletionRequest
from tsd.api.wire.messages import MessagesRequest
from tsd.api.wire.native import GenerateRequest, NativeSampling
from tsd.api.wire.responses import ResponsesRequest

README = Path(__file__).parents[2] / "api" / "README.md"
COLUMNS: dict[str, tuple[str, tuple[type[msgspec.Struct], ...], dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", (ChatRequest,), {"messages": [{"role": "user", "content": "x"}]}),
    "completions": ("/v1/completions", (CompletionRequest,), {"prompt": "x"}),
    "responses": ("/v1/responses", (ResponsesRequest,), {"input": "x"}),
    "messages": (
        "/v1/messages",
        (MessagesRequest,),
        {"max_tokens": 5, "messages": [{"role": "user", "content": "x"}]},
    ),
    "generate": ("/generate", (GenerateRequest, NativeSampling), {"input_ids": [1]}),
}
# A value that asks for something, where the default would not.
ASKS: dict[str, Any] = {
    "allowed_token_ids": [1],
    "audio": {"voice": "a"},
    "bad_words": ["x"],
    "best_of": 3,
    "chat_template": "{{ 1 }}",
    "documents": [{"text": "x"}],
    "echo": True,
    "function_call": "auto",
    "functions": [{"name": "f"}],
    "length_penalty": 2.0,
    "logits_processors": ["x"],
    "modalities": ["audio"],
    "prediction": {"content": "x"},
    "prompt": {"id": "pmpt_1"},
    "prompt_embeds": "x",
    "prompt_logprobs": 1,
    "suffix": "x",
    "top_logprobs": 2,
    "truncate_prompt_tokens": 5,
    "use_beam_search": True,
    "web_search_options": {},
}


def table() -> dict[str, dict[str, str]]:
    """Column → parameter → its cell."""
    found: dict[str, dict[str, str]] = {name: {} for name in COLUMNS}
    for line in README.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if re.fullmatch(r"`\w+`", cells[0]) and len(cells) == len(COLUMNS) + 1:
            for column, cell in zip(COLUMNS, cells[1:], strict=True):
                if cell:
                    found[column][cells[0].strip("`")] = cell
    return found


def test_every_field_is_in_the_table_and_the_other_way_round() -> None:
    for column, (_, kinds, _) in COLUMNS.items():
        fields = {name for kind in kinds for name in kind.__struct_fields__}
        assert set(table()[column]) == fields, column
        assert set(table()[column].values()) <= {"yes", "400", "taken"}


def test_what_the_table_refuses_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with model_that_says(tmp_path, "ok") as server:
            for column, (path, _, base) in COLUMNS.items():
                assert (await server.post(path, base))[0] == 200, column
                for name, cell in table()[column].items():
                    status, _ = await server.post(path, {**base, name: None}) if name not in base else (200, None)
                    assert status == 200, (column, name)
                    if cell == "400":
                        status, answer = await server.post(path, {**base, name: ASKS[name]})
                        assert status == 400, (column, name, answer)
                        assert (answer["error"]["param"], answer["error"]["code"]) == (name, "unsupported")

    run_async(test)


def test_openapi_is_valid_and_whole(tmp_path: Path) -> None:
    validate(json.loads(document()))
    known = {(method.upper(), path) for path, item in json.loads(document())["paths"].items() for method in item}
    assert known == {(method, path.replace(":.+}", "}")) for method, path, _ in ROUTES}

    async def test() -> None:
        async with model_that_says(tmp_path, "ok") as server:
            assert (await server.get("/openapi.json"))[1] == json.loads(document())

    run_async(test)


@pytest.mark.parametrize("agent", sorted(connect.AGENTS))
def test_connect(agent: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def test() -> None:
        async with model_that_says(tmp_path, "ok", options_keys=("k'y",)) as server:
            loop = asyncio.get_running_loop()
            assert await loop.run_in_executor(None, connect.main, [agent, "--url", server.url]) == 4
            arguments = [agent, "--url", f"{server.url}/v1/", "--api-key", "k'y"]
            assert await loop.run_in_executor(None, connect.main, arguments) == 0
            printed = capsys.readouterr().out
            assert server.url in printed and "test" in printed
            if agent == "codex":
                config = tomllib.loads(printed)
                assert config["model_providers"]["tsd"] == {
                    "name": "tsd",
                    "base_url": f"{server.url}/v1",
                    "wire_api": "responses",
                    "env_key": "TSD_API_KEY",
                }
            elif agent == "opencode":
                assert json.loads(printed)["provider"]["tsd"]["models"]["test"]["limit"]["context"] == 8192
            else:
                assert """'k'"'"'y'""" in printed

    run_async(test)
    assert connect.main([agent, "--url", "http://127.0.0.1:9"]) == 3
    assert "tsd start" in capsys.readouterr().err
