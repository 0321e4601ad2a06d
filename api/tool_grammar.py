"""What keeps a call that the model may make or not within its tool's schema: `strict` tools, and tools beside a
constrained answer. One form for each tool dialect, as a structural tag. Knows no xgrammar.

Text is free until a dialect's trigger; from there on only a call of an offered tool may follow, in the spelling that
the dialect's models are taught. A strict tool's arguments follow its schema, another's are free up to the call's end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from tsd.api.xml_arguments import MEMBERS, members
from tsd.engine.protocol import Grammar

Format = dict[str, Any]


class CallForm(NamedTuple):
    """How a dialect writes one call: `begin` (with NAME in it), the arguments, `end`."""

    trigger: str
    begin: str
    end: str
    free_end: str
    """Where a call ends whose arguments are free."""
    after_name: tuple[str, ...] = ("",)
    """What must follow a name so that it is not the beginning of another, where `begin` does not end it."""


_HERMES = CallForm("<tool_call>", '<tool_call>\n{"name": "NAME", "arguments": ', "}\n</tool_call>", "</tool_call>")
_GLM = CallForm("<tool_call>", "<tool_call>NAME", "</tool_call>", "</tool_call>", ("\n", "<arg_key>"))
_DEEPSEEK_END = "<｜tool▁call▁end｜>"

FORMS: dict[str, CallForm] = {
    "hermes": _HERMES,
    "qwen": _HERMES,
    "qwen3_coder": CallForm("<function=", "<function=NAME>", "</function>", "</function>"),
    "glm45": _GLM,
    "glm47": _GLM,
    "minimax_m2": CallForm("<invoke", '<invoke name="NAME">', "</invoke>", "</invoke>"),
    "deepseek_v3": CallForm(
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n",
        f"\n```{_DEEPSEEK_END}",
        _DEEPSEEK_END,
    ),
    "deepseek_v31": CallForm(
        "<｜tool▁call▁begin｜>", "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>", _DEEPSEEK_END, _DEEPSEEK_END
    ),
    "deepseek_v32": CallForm(
        "<｜DSML｜invoke", '<｜DSML｜invoke name="NAME">', "</｜DSML｜invoke>", "</｜DSML｜invoke>"
    ),
}
"""mistral, kimi_k2, llama3_json and json are built below. pythonic and gpt_oss have none: no grammar is known that
holds the first to a schema, and the second's calls end with a token that also ends the output."""

CONSTRAINABLE = frozenset((*FORMS, "mistral", "kimi_k2", "llama3_json", "json"))


class Tools(NamedTuple):
    """`schemas` are those that `schema_form` made of the strict tools', and any object for the others."""

    schemas: Mapping[str, dict[str, Any]]
    strict: frozenset[str]

    def arguments(self, name: str) -> Format:
        """As JSON. Of a tool that is not strict: any object."""
        return {"type": "json_schema", "json_schema": self.schemas[name]}


def auto_calls(dialect: str, tools: Tools, answer: Grammar | None = None) -> Grammar | None:
    """The constraint of a request whose tools may be called, with `answer` as that of its text (None: free text).
    None where the dialect has no form."""
    if dialect not in CONSTRAINABLE:
        return None
    if answer is None:
        form = _free_or_calls(dialect, tools)
    else:
        text = answer_format(answer)
        if text is None:
            return None
        form = _either(text, _only_calls(dialect, tools))
    return Grammar("structural_tag", json.dumps({"type": "structural_tag", "format": form}, ensure_ascii=False))


def answer_format(grammar: Grammar) -> Format | None:
    """A constraint as a part of a structural tag; None for one that is a structural tag itself."""
    if grammar.kind == "json_object":
        return {"type": "json_schema", "json_schema": {"type": "object", "additionalProperties": True}}
    if grammar.kind == "json_schema":
        return {"type": "json_schema", "json_schema": json.loads(grammar.text)}
    if grammar.kind == "regex":
        return {"type": "regex", "pattern": grammar.text}
    if grammar.kind == "ebnf":
        return {"type": "grammar", "grammar": grammar.text}
    if grammar.kind == "choice":
        return _either(*(_text(choice) for choice in json.loads(grammar.text)))
    return None


def _free_or_calls(dialect: str, tools: Tools) -> Format:
    if dialect in ("llama3_json", "json"):
        # Such an answer is calls, or it is text that does not begin as one.
        free = r"[ \t\r\n]*(([^ \t\r\n{\[<]|<[^|]|\[[ \t\r\n]*[^ \t\r\n{\[])(.|\n)*)?"
        return _either({"type": "regex", "pattern": free}, _json_calls(tools))
    tags = _tags(dialect, tools)
    return {"type": "triggered_tags", "triggers": [_trigger(dialect)], "tags": tags}


def _only_calls(dialect: str, tools: Tools) -> Format:
    """One call or more, with white space between, and the dialect's section markers around them."""
    if dialect in ("llama3_json", "json"):
        return _json_calls(tools)
    calls: Format = {"type": "plus", "content": _sequence(_either(*_tags(dialect, tools)), _SPACE)}
    begin, end = _SECTIONS.get(dialect, ("", ""))
    return _sequence(_text(begin), _SPACE, calls, _optional(_text(end))) if begin else calls


_SECTIONS = {
    "qwen3_coder": ("<tool_call>", "</tool_call>"),
    "minimax_m2": ("<minimax:tool_call>", "</minimax:tool_call>"),
    "deepseek_v3": ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    "deepseek_v31": ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    "deepseek_v32": ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
    "kimi_k2": ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
}
_SPACE: Format = {"type": "regex", "pattern": r"[ \t\r\n]{0,4}"}


def _trigger(dialect: str) -> str:
    return {"mistral": "[TOOL_CALLS]", "kimi_k2": "<|tool_call_begin|>"}.get(dialect) or FORMS[dialect].trigger


def _tags(dialect: str, tools: Tools) -> list[Format]:
    if dialect == "mistral":
        return _mistral(tools)
    if dialect == "kimi_k2":
        return [_kimi(name, tools) for name in tools.schemas]
    form = FORMS[dialect]
    found = []
    for name in tools.schemas:
        begin = form.begin.replace("NAME", name)
        if name not in tools.strict:
            found += [_tag(begin + after, {"type": "any_text"}, form.free_end) for after in form.after_name]
            found += [_tag(begin + form.free_end, _text(""), "")] if form.after_name != ("",) else []
        elif dialect in MEMBERS:
            found.append(_tag(begin, members(dialect, tools.schemas[name]), form.end))
        else:
            found.append(_tag(begin, tools.arguments(name), form.end))
    return found


def _kimi(name: str, tools: Tools) -> Format:
    """`<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`."""
    number = {"type": "regex", "pattern": "[0-9]{1,4}"}
    content = _sequence(number, _text("<|tool_call_argument_begin|>"), tools.arguments(name))
    return _tag(f"<|tool_call_begin|>functions.{name}:", content, "<|tool_call_end|>")


def _mistral(tools: Tools) -> list[Format]:
    """A list of call objects after the marker, or a name and its arguments."""
    call_id = _sequence(_text("[CALL_ID]"), {"type": "regex", "pattern": "[A-Za-z0-9]{1,32}"})
    head = _sequence(_optional(call_id), _optional(_text("[ARGS]")))
    named = [_tag(f"[TOOL_CALLS]{name}", _sequence(head, tools.arguments(name)), "") for name in tools.schemas]
    calls = _list_of(_call_objects(tools, ("arguments",)), r",[ \n]?")
    return [*named, *(_tag(f"[TOOL_CALLS]{space}[", calls, "]") for space in ("", " "))]


def _json_calls(tools: Tools) -> Format:
    call = _call_objects(tools, ("parameters", "arguments"))
    bare = _list_of(call, r"[ \t\r\n]{0,4}[;,]?[ \t\r\n]{0,4}")
    listed = _sequence(_text("["), _SPACE, _list_of(call, r"[ \n]{0,4},[ \n]{0,4}"), _SPACE, _text("]"))
    return _sequence(_SPACE, _optional(_text("<|python_tag|>")), _SPACE, _either(bare, listed), _SPACE)


def _call_objects(tools: Tools, keys: tuple[str, ...]) -> Format:
    """`{"name": "f", "parameters": {…}}`, also after `"type": "function"`."""
    kind = _optional({"type": "regex", "pattern": '"type": ?"function", ?'})
    found = []
    for name in tools.schemas:
        which = _either(*({"type": "regex", "pattern": f'"name": ?"{_escaped(name)}", ?"{key}": ?'} for key in keys))
        found.append(_sequence(_text("{"), kind, which, tools.arguments(name), _text("}")))
    return _either(*found)


def _escaped(name: str) -> str:
    """A tool's name holds no character that a pattern reads but the point."""
    return name.replace(".", r"\.").replace("/", r"\/")


def _list_of(item: Format, separator: str) -> Format:
    more = _sequence({"type": "regex", "pattern": separator}, item)
    return _sequence(item, {"type": "star", "content": more})


def _tag(begin: str, content: Format, end: str) -> Format:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _text(value: str) -> Format:
    return {"type": "const_string", "value": value}


def _optional(content: Format) -> Format:
    return {"type": "optional", "content": content}


def _sequence(*elements: Format) -> Format:
    return {"type": "sequence", "elements": list(elements)}


def _either(*elements: Format) -> Format:
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": list(elements)}
