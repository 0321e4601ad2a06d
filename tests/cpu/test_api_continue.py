"""Going on with the final message: the prompt is what transformers makes of it, and the text goes on from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anthropic
import pytest
import transformers
from support.byte_model import CHATML, model_that_says, write_model
from support.front_server import run_async

CHAT = "/v1/chat/completions"
TRIMS = CHATML.replace("message.content }}", "message.content | trim }}")
USER = {"role": "user", "content": "List two colours."}


def ask(content: Any, **fields: Any) -> dict[str, Any]:
    messages = [USER, {"role": "assistant", "content": content}]
    return {
        "messages": messages,
        "continue_final_message": True,
        "add_generation_prompt": False,
        "max_tokens": 2000,
        **fields,
    }


def prompt_of(server: Any) -> list[int]:
    return memoryview(server.engine.seen[-1].prompt).cast("i").tolist()


@pytest.mark.parametrize("template", [CHATML, TRIMS], ids=["verbatim", "trims"])
@pytest.mark.parametrize("content", ["Red and", "Red and ", "{", "x<|im_end|>y", "a\n\n"])
def test_the_prompt_is_that_of_transformers(tmp_path: Path, template: str, content: str) -> None:
    folder = write_model(tmp_path, template)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    messages = [USER, {"role": "assistant", "content": content.replace("<|im_end|>", "(end)")}]
    wanted = tokenizer.apply_chat_template(messages, continue_final_message=True, tokenize=False)

    async def test() -> None:
        async with model_that_says(tmp_path, " blue.", template) as server:
            status, answer = await server.post(CHAT, ask(content))
            assert status == 200, answer
            assert answer["choices"][0]["message"]["content"] == " blue."
            ids = prompt_of(server)
            names = {256: b"<|im_start|>", 257: b"<|im_end|>"}
            text = b"".join(names.get(token) or bytes([token]) for token in ids).decode()
            assert text == wanted.replace("(end)", "<|im_end|>")
            assert ids.count(257) == 1  # what the client typed is text
            events = await server.events(CHAT, ask(content, stream=True))
            assert "".join(e["choices"][0]["delta"].get("content") or "" for e in events[:-1]) == " blue."

    run_async(test)


def test_echo_puts_the_final_message_before_the_answer(tmp_path: Path) -> None:
    async def test() -> None:
        async with model_that_says(tmp_path, " blue.") as server:
            for body, wanted in (
                (ask("Red and", echo=True), "Red and blue."),
                (ask([{"type": "text", "text": "Red and"}], echo=True, n=2), "Red and blue."),
                ({"messages": [USER], "echo": True, "max_tokens": 2000}, " blue."),
            ):
                status, answer = await server.post(CHAT, body)
                assert status == 200, answer
                assert {choice["message"]["content"] for choice in answer["choices"]} == {wanted}
                said = ["", ""]
                for event in (await server.events(CHAT, {**body, "stream": True}))[:-1]:
                    for choice in event["choices"]:
                        said[choice["index"]] += choice["delta"].get("content") or ""
                assert said[: body.get("n", 1)] == [wanted] * body.get("n", 1)

    run_async(test)


def test_it_is_refused_beside_a_generation_prompt(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}

    async def test() -> None:
        async with model_that_says(tmp_path, "ok") as server:
            for fields in ({"add_generation_prompt": None}, {"add_generation_prompt": True}):
                status, answer = await server.post(CHAT, ask("x", **fields))
                assert (status, answer["error"]["param"]) == (400, "continue_final_message")
            calling = ask("x")
            calling["messages"][-1]["tool_calls"] = [call]
            status, answer = await server.post(CHAT, calling)
            assert (status, answer["error"]["param"]) == (400, "continue_final_message")

    run_async(test)


def test_whether_thinking_is_open_is_seen_in_the_message(tmp_path: Path) -> None:
    async def test() -> None:
        async with model_that_says(tmp_path, "b</think>c", reasoning_parser="deepseek_r1") as server:
            for content, reasoning, text in (
                ("<think>a", "b", "c"),
                ("<think>a</think>x", None, "b</think>c"),
                ("x", None, "b</think>c"),
            ):
                _, answer = await server.post(CHAT, ask(content))
                message = answer["choices"][0]["message"]
                assert (message.get("reasoning_content"), message["content"]) == (reasoning, text), content

    run_async(test)


def test_anthropic_prefill(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            model_that_says(tmp_path, '"a": 1}') as server,
            anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as client,
        ):
            messages: list[Any] = [USER, {"role": "assistant", "content": [{"type": "text", "text": "{"}]}]
            message = await client.messages.create(model="test", max_tokens=50, messages=messages)
            assert message.content[0].text == '"a": 1}'  # type: ignore[union-attr]
            prompt = prompt_of(server)
            assert bytes(t for t in prompt if t < 256).endswith(b"assistant\n{") and prompt.count(257) == 1
            counted = await client.messages.count_tokens(model="test", messages=messages)
            assert counted.input_tokens == len(prompt)

    run_async(test)
