"""Chat messages of the wire → the dicts that chat templates read. Knows no template."""

from __future__ import annotations

from typing import Any

import msgspec

from tsd.api.errors import InvalidRequest
from tsd.api.limits import Limits, check_count
from tsd.api.params import unsupported
from tsd.api.wire.chat import ChatMessage, ContentPart, Tool

ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function"))
TEXT_PARTS = frozenset(("text", "input_text", "output_text", "refusal", "thinking"))


def to_template(messages: list[ChatMessage], limits: Limits, *, knows_developer: bool = False) -> list[dict[str, Any]]:
    """Content is always a string ("" for null); tool arguments are objects where they parse as one."""
    if not messages:
        raise InvalidRequest("messages must not be empty", param="messages")
    check_count("messages", len(messages), limits.messages)
    return [_message(message, index, knows_developer) for index, message in enumerate(messages)]


def _message(message: ChatMessage, index: int, knows_developer: bool) -> dict[str, Any]:
    where = f"messages[{index}]"
    if message.role not in ROLES:
        raise InvalidRequest(f"{where}.role {message.role[:40]!r} is unknown", param=f"{where}.role")
    role = "system" if message.role == "developer" and not knows_developer else message.role
    found: dict[str, Any] = {"role": role, "content": content_text(message.content, f"{where}.content")}
    if message.name is not None:
        found["name"] = message.name
    if message.tool_call_id is not None:
        found["tool_call_id"] = message.tool_call_id
    reasoning = message.reasoning_content or message.reasoning
    if reasoning:
        found["reasoning_content"] = reasoning
        found["reasoning"] = reasoning
    if message.tool_calls:
        found["tool_calls"] = [
            {
                "type": "function",
                "id": call.id or "",
                "function": {"name": call.function.name, "arguments": _arguments(call.function.arguments)},
            }
            for call in message.tool_calls
            if call.function is not None
        ]
    return found


def content_text(content: str | list[ContentPart] | None, where: str) -> str:
    """Text parts joined by a newline. Raises InvalidRequest for a part that is not text."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for index, part in enumerate(content):
        if part.type not in TEXT_PARTS:
            name = f"{where}[{index}]"
            raise unsupported(name, f"is a part of type {part.type[:40]!r}; only text is supported")
        texts.append(part.text or part.refusal or "")
    return "\n".join(texts)


def _arguments(arguments: str | dict[str, Any] | None) -> Any:
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def tools_for_template(tools: list[Tool] | None) -> list[dict[str, Any]] | None:
    found: list[dict[str, Any]] = []
    for tool in tools or []:
        if tool.function is None:
            continue
        function: dict[str, Any] = {"name": tool.function.name}
        if tool.function.description is not None:
            function["description"] = tool.function.description
        function["parameters"] = tool.function.parameters or {"type": "object", "properties": {}}
        found.append({"type": "function", "function": function})
    return found or None


def size_of(messages: list[ChatMessage]) -> int:
    """Characters of the contents, to choose where the work is done."""
    total = 0
    for message in messages:
        if isinstance(message.content, str):
            total += len(message.content)
        elif message.content:
            total += sum(len(part.text or "") for part in message.content)
        for call in message.tool_calls or ():
            if call.function is not None and isinstance(call.function.arguments, str):
                total += len(call.function.arguments)
    return total
