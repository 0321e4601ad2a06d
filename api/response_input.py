"""Items of the responses dialect → chat messages and tools, and back into history. Unknown items are passed over."""

from __future__ import annotations

from typing import Any

from tsd.api.params import unsupported
from tsd.api.wire.chat import ChatMessage, FunctionCall, FunctionTool, Tool, ToolCall
from tsd.api.wire.responses import InputItem, ResponsePart, ResponseTool

TEXTS = frozenset(("input_text", "output_text", "text", "reasoning_text", "summary_text", "refusal"))


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


def chat_messages(items: str | list[InputItem]) -> list[ChatMessage]:
    if isinstance(items, str):
        return [ChatMessage(role="user", content=items)]
    found: list[ChatMessage] = []
    reasoning = ""
    for index, item in enumerate(items):
        where = f"input[{index}]"
        if item.type == "message":
            message = ChatMessage(role=item.role or "user", content=_text(item.content, f"{where}.content"))
            if message.role == "assistant" and reasoning:
                message.reasoning_content, reasoning = reasoning, ""
            found.append(message)
        elif item.type == "function_call":
            last = found[-1] if found and found[-1].role == "assistant" else None
            if last is None:
                last = ChatMessage(role="assistant", content="", reasoning_content=reasoning or None)
                found.append(last)
                reasoning = ""
            function = FunctionCall(name=item.name or "", arguments=item.arguments or "{}")
            last.tool_calls = [*(last.tool_calls or ()), ToolCall(id=item.call_id, type="function", function=function)]
        elif item.type == "function_call_output":
            output = _text(item.output, f"{where}.output")
            found.append(ChatMessage(role="tool", content=output, tool_call_id=item.call_id))
        elif item.type == "reasoning":
            reasoning = _text(item.content, where) or _text(item.summary, where)
    return found


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
    for part in content:
        if part.type not in TEXTS:
            raise unsupported(where, f"has a part of type {part.type[:40]!r}, which is not supported")
    return "\n".join(part.text or part.refusal or "" for part in content)
