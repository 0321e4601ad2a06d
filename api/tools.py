"""What a chat request says of tools → what the template, the parser and the grammar need. Knows no dialect's text."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tsd.api.conversation import tools_for_template
from tsd.api.errors import InvalidRequest
from tsd.api.limits import Limits, check_count, check_schema
from tsd.api.params import unsupported
from tsd.api.parsers.output import ToolSet
from tsd.api.schema_form import Unsupported, formed
from tsd.api.wire.chat import AllowedTools, NamedToolChoice, Tool
from tsd.engine.protocol import Grammar

_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


class ToolPlan(NamedTuple):
    template: list[dict[str, Any]] | None = None
    """For the chat template."""
    tools: ToolSet | None = None
    """Set when calls are to be parsed."""
    forced: Grammar | None = None
    """A call must come, as the list of `{"name", "parameters"}` objects that this allows."""
    strict: frozenset[str] = frozenset()
    """Those that are to follow their schema also where the model chooses whether to call."""
    shapes: Mapping[str, dict[str, Any]] = {}
    """The arguments of every tool that may be called, as a grammar can be held to them."""
    held: bool = False
    """Some tool must be kept from being called or from leaving its schema, also where the model chooses."""


def plan_tools(
    tools: list[Tool] | None, choice: str | NamedToolChoice | None, parallel: bool | None, limits: Limits
) -> ToolPlan:
    """Raises InvalidRequest naming what is wrong."""
    functions = check_tools(tools, limits)
    mode, allowed = _read_choice(choice, functions)
    if mode == "required" and not functions:
        raise InvalidRequest("tool_choice is required, but there are no tools", param="tool_choice")
    if not functions or mode == "none":
        return ToolPlan()
    template = tools_for_template(tools)
    strict = frozenset(t.function.name for t in tools or () if t.function is not None and t.function.strict)
    forced = mode in ("named", "required")
    only_one = parallel is False or mode == "named"
    shapes = {name: shape for name, shape in _shapes(functions, strict, forced).items() if name in allowed}
    offered = ToolSet({name: functions[name] for name in shapes}, only_one)
    if forced:
        return ToolPlan(template, offered, forced_calls(shapes, only_one))
    strict &= frozenset(shapes)
    held = bool(strict) or len(shapes) < len(functions)
    return ToolPlan(template, offered, strict=strict, shapes=shapes, held=held)


def _read_choice(choice: str | NamedToolChoice | None, functions: Iterable[str]) -> tuple[str, frozenset[str]]:
    """none, auto, required or named, and the tools that may be called."""
    every = frozenset(functions)
    if choice is None or isinstance(choice, str):
        if choice not in (None, "none", "auto", "required"):
            raise InvalidRequest("tool_choice must be none, auto, required or name a function", param="tool_choice")
        return choice or "auto", every
    if choice.type == "allowed_tools" and choice.allowed_tools is not None:
        return choice.allowed_tools.mode, _read_allowed(choice.allowed_tools, every)
    if choice.type != "function" or choice.function is None:
        raise InvalidRequest(
            "tool_choice must be a function with its name, or allowed_tools with a list", param="tool_choice"
        )
    name = choice.function.name
    if name not in every:
        raise InvalidRequest(f"tool_choice names {name[:100]!r}, which is not in tools", param="tool_choice")
    return "named", frozenset((name,))


def _read_allowed(allowed: AllowedTools, every: frozenset[str]) -> frozenset[str]:
    where = "tool_choice.allowed_tools"
    if allowed.mode not in ("auto", "required"):
        raise InvalidRequest(f"{where}.mode must be auto or required", param=f"{where}.mode")
    if not allowed.tools:
        raise InvalidRequest(f"{where}.tools must not be empty", param=f"{where}.tools")
    for index, tool in enumerate(allowed.tools):
        if tool.function.name not in every:
            param = f"{where}.tools[{index}]"
            raise InvalidRequest(f"{param} names {tool.function.name[:100]!r}, which is not in tools", param=param)
    return frozenset(tool.function.name for tool in allowed.tools)


def _shapes(functions: dict[str, dict[str, Any]], strict: frozenset[str], forced: bool) -> dict[str, dict[str, Any]]:
    """Schemas as a grammar can be held to them. What a tool that is not strict asks beyond that is not kept to: its
    arguments are then any object."""
    found = {}
    for index, (name, schema) in enumerate(functions.items()):
        shape = {"type": "object", "additionalProperties": True}
        if name in strict:
            shape = formed(schema, f"tools[{index}].function.parameters")
        elif forced:
            with contextlib.suppress(Unsupported):
                shape = formed(schema, "tools")
        found[name] = shape
    return found


def check_tools(tools: list[Tool] | None, limits: Limits) -> dict[str, dict[str, Any]]:
    """Name → schema of its parameters."""
    check_count("tools", len(tools or ()), limits.tools)
    found: dict[str, dict[str, Any]] = {}
    for index, tool in enumerate(tools or ()):
        where = f"tools[{index}]"
        if tool.type != "function":
            raise unsupported(f"{where}.type", f"{tool.type[:40]!r} is not supported; function is")
        if tool.function is None:
            raise InvalidRequest(f"{where}.function is missing", param=f"{where}.function")
        name = tool.function.name
        if not _NAME.fullmatch(name):
            raise InvalidRequest(
                f"{where}.function.name must be 1 to 128 letters, digits or _.:/-", param=f"{where}.function.name"
            )
        if name in found:
            raise InvalidRequest(f"{where}.function.name {name!r} is given twice", param=f"{where}.function.name")
        found[name] = tool.function.parameters or {"type": "object", "properties": {}}
        check_schema(f"{where}.function.parameters", found[name], limits)
    return found


def forced_calls(functions: dict[str, dict[str, Any]], only_one: bool) -> Grammar:
    """A JSON list of at least one call."""
    definitions: dict[str, Any] = {}
    options = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "parameters": lift(schema, f"t{number}_", definitions)},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for number, (name, schema) in enumerate(functions.items())
    ]
    schema: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": options[0] if len(options) == 1 else {"anyOf": options},
    }
    if only_one:
        schema["maxItems"] = 1
    if definitions:
        schema["$defs"] = definitions
    return Grammar("json_schema", json.dumps(schema, ensure_ascii=False))


def lift(schema: dict[str, Any], prefix: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """Moves a schema's own definitions to the root of another, under prefixed names, and follows its references."""

    def rename(value: Any) -> Any:
        if isinstance(value, dict):
            changed = {key: rename(item) for key, item in value.items()}
            reference = changed.get("$ref")
            if isinstance(reference, str):
                for root in ("#/$defs/", "#/definitions/"):
                    if reference.startswith(root):
                        changed["$ref"] = "#/$defs/" + prefix + reference.removeprefix(root)
            return changed
        return [rename(item) for item in value] if isinstance(value, list) else value

    body = rename(schema)
    for key in ("$defs", "definitions"):
        for name, definition in (body.pop(key, None) or {}).items():
            definitions[prefix + name] = definition
    return body


TOOL_PROMPT = """You may call functions to help with the user's request. These JSON objects describe them:
{tools}
To call one, write a JSON object with its name and arguments inside <tool_call></tool_call> tags:
<tool_call>
{{"name": <function name>, "arguments": <arguments object>}}
</tool_call>"""


def describe_tools(messages: list[dict[str, Any]], template: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For a chat template that knows no tools: they are described in the system message, in the hermes dialect,
    and calls and results of the history are written out as text."""
    text = TOOL_PROMPT.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in template))
    plain = [_as_text(message) for message in messages]
    if plain and plain[0]["role"] == "system":
        return [{**plain[0], "content": f"{plain[0]['content']}\n\n{text}"}, *plain[1:]]
    return [{"role": "system", "content": text}, *plain]


def _as_text(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] in ("tool", "function"):
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if not message.get("tool_calls"):
        return message
    calls = [
        f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>"
        for call in message["tool_calls"]
    ]
    return {"role": message["role"], "content": "\n".join(filter(None, [message["content"], *calls]))}
