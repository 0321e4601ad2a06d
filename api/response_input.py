"""Items of the responses dialect → chat messages and tools, and back into history. Unknown items are passed over."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from tsd.api.params import unsupported
from tsd.api.sse import encode
from tsd.api.wire.chat import ChatMessage, FunctionCall, FunctionTool, Tool, ToolCall
from tsd.api.wire.responses import InputItem, ResponsePart, ResponseTool

TEXTS = frozenset(("input_text", "output_text", "text", "reasoning_text", "summary_text", "refusal"))


CALLS = frozenset(("function_call", "custom_tool_call", "local_shell_call"))
CALL_OUTPUTS = frozenset(f"{call}_output" for call in CALLS)


def _called(item: InputItem) -> tuple[str, str]:
    """Name and arguments. What is no function was called by another model: it stays in the history as one."""
    if item.type == "custom_tool_call":
        return item.name or "", encode({"input": item.input or ""}).decode()
    if item.type == "local_shell_call":
        return "local_shell", encode(item.action or {}).decode()
    return item.name or "", item.arguments or "{}"


def functions_of(tools: list[ResponseTool] | None) -> list[Tool] | None:
    """Only functions: what another server would run (web_search, …) or groups of tools (namespace) is passed over."""
    found = [
        Tool(
            type="function",
            function=FunctionTool(
                name=tool.name or "",
                description=tool.description,
                parameters=tool.parameters,
                strict=tool.strict,
            ),
        )
        for tool in tools or ()
        if tool.type == "function"
    ]
    return found or None


def chat_messages(items: str | list[InputItem], name: str = "input") -> list[ChatMessage]:
    """Raises InvalidRequest, naming the part of `name`, for what is not text."""
    if isinstance(items, str):
        return [ChatMessage(role="user", content=items)]
    found: list[ChatMessage] = []
    reasoning = ""
    for index, item in enumerate(items):
        where = f"{name}[{index}]"
        if item.type == "message":
            message = ChatMessage(role=item.role or "user", content=_text(item.content, f"{where}.content"))
            if message.role == "assistant" and reasoning:
                message.reasoning_content, reasoning = reasoning, ""
            found.append(message)
        elif item.type in CALLS:
            last = found[-1] if found and found[-1].role == "assistant" else None
            if last is None:
                last = ChatMessage(role="assistant", content="", reasoning_content=reasoning or None)
                found.append(last)
                reasoning = ""
            name, arguments = _called(item)
            function = FunctionCall(name=name, arguments=arguments)
            last.tool_calls = [*(last.tool_calls or ()), ToolCall(id=item.call_id, type="function", function=function)]
        elif item.type in CALL_OUTPUTS:
            output = _text(item.output, f"{where}.output")
            found.append(ChatMessage(role="tool", content=output, tool_call_id=item.call_id))
        elif item.type == "reasoning":
            reasoning = _text(item.content, where) or _text(item.summary, where)
    return found


def stored_items(items: str | list[InputItem]) -> list[dict[str, Any]]:
    """As they are kept and listed: each with an id, its text as parts."""
    if isinstance(items, str):
        items = [InputItem(role="user", content=items)]
    found = []
    for item in items:
        fields = {key: value for key, value in msgspec.to_builtins(item).items() if value is not None}
        if item.type == "message":
            role = fields.setdefault("role", "user")
            if isinstance(item.content, str):
                kind = "output_text" if role == "assistant" else "input_text"
                fields["content"] = [{"type": kind, "text": item.content}]
            fields.setdefault("status", "completed")
        found.append({**fields, "id": item.id or f"{_PREFIXES.get(item.type, 'item_')}{secrets.token_hex(16)}"})
    return found


_PREFIXES = {"message": "msg_", "function_call": "fc_", "function_call_output": "fco_", "reasoning": "rs_"}


def output_messages(output: list[dict[str, Any]]) -> list[ChatMessage]:
    """What a finished response adds to the conversation."""
    found: list[ChatMessage] = []
    for item in output:
        if item["type"] == "message":
            found.append(ChatMessage(role="assistant", content="".join(part["text"] for part in item["content"])))
        elif item["type"] == "function_call":
            if not found:
                found.append(ChatMessage(role="assistant", content=""))
            function = FunctionCall(name=item["name"], arguments=item["arguments"])
            call = ToolCall(id=item["call_id"], type="function", function=function)
            found[-1].tool_calls = [*(found[-1].tool_calls or ()), call]
    return found


def _text(content: str | list[ResponsePart] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for index, part in enumerate(content):
        if part.type not in TEXTS:
            raise unsupported(f"{where}[{index}]", f"is a part of type {part.type[:40]!r}; only text is supported")
    return "\n".join(part.text or part.refusal or "" for part in content)
