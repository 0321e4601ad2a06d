"""From a chat request to a prompt and a plan for its output. Shared by every dialect that chats."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

import msgspec

from tsd.api.conversation import content_text, size_of, to_template
from tsd.api.errors import InvalidRequest
from tsd.api.front import Front, Text, TextPlan
from tsd.api.output import Parser
from tsd.api.params import Params, resolve, unsupported
from tsd.api.parsers.output import ToolSet
from tsd.api.parsers.registry import DEFAULT_TOOLS, REASONING, TOOLS, is_thinking, reasoning_splitter, tool_parser
from tsd.api.structured import output_grammar
from tsd.api.tool_grammar import Tools, auto_calls
from tsd.api.tools import ToolPlan, describe_tools, plan_tools
from tsd.api.wire.chat import ChatRequest
from tsd.engine.protocol import Grammar

TAIL_TOKENS = 16
"""Enough of a prompt's end to see whether the template opened or closed thinking."""
NO_TOOLS = ToolSet({"": {}})
"""No name is known."""


class Prepared(NamedTuple):
    model: str
    params: Params
    prompt: array[int]
    plan: TextPlan


async def prepare_chat(front: Front, body: ChatRequest) -> Prepared:
    """Raises InvalidRequest (and kin) for anything that cannot be done as asked."""
    model = front.check_model(body.model)
    params = chat_params(front, body)
    limits, text = front.options.limits, front.loaded
    tools = plan_tools(body.tools, body.tool_choice, body.parallel_tool_calls, limits)
    answer = output_grammar(body, body.response_format, limits)
    grammar = _with_calls(text, tools, answer)
    prompt = await render_chat(front, body, tools.template)
    tail = _tail(text, body, prompt)
    if grammar is not None:
        grammar = await _checked(front, text, grammar, tail, "tools" if answer is None else "response_format")
    may_think = tools.forced is None and answer is None
    plan = text_plan(text, tools, grammar, tail, may_think)
    return Prepared(model, params, prompt, plan._replace(continues=bool(body.continue_final_message)))


def _tail(text: Text, body: ChatRequest, prompt: array[int]) -> str:
    """The prompt's end, in which it can be seen whether thinking is open there."""
    dialect = REASONING.get(text.dialects.reasoning)
    if body.continue_final_message and dialect is not None:
        said = content_text(body.messages[-1].content, "messages")
        if said.rfind(dialect.begin) > said.rfind(dialect.end):
            return dialect.begin
        if said.strip():
            return dialect.end
    return text.tokenizer.decode(prompt[-TAIL_TOKENS:], skip_special=False)


def _with_calls(text: Text, tools: ToolPlan, answer: Grammar | None) -> Grammar | None:
    """The constraint on the whole output, where `answer` is that on its text."""
    if tools.forced is not None:
        if answer is not None:
            raise InvalidRequest("a forced tool call excludes response_format", param="tool_choice")
        return tools.forced
    if tools.tools is None or (answer is None and not tools.held):
        return answer
    offered = Tools(tools.shapes, tools.strict)
    return auto_calls(text.dialects.tools or DEFAULT_TOOLS, offered, answer) or answer


async def render_chat(front: Front, body: ChatRequest, tools: list[dict[str, Any]] | None) -> array[int]:
    text = front.loaded
    source = text.chat.template.source
    messages = to_template(body.messages, front.options.limits, knows_developer="developer" in source)
    if tools and "tools" not in source:
        messages, tools = describe_tools(messages, tools), None
    keywords = template_keywords(front, body)
    generation = body.add_generation_prompt is not False
    continues = bool(body.continue_final_message)
    if continues:
        _check_continues(messages, generation)
    size = size_of(body.messages) + (len(msgspec.json.encode(tools)) if tools else 0)
    return await front.render(
        size,
        lambda limit: text.chat.encode(
            messages,
            tools,
            add_generation_prompt=generation,
            keywords=keywords,
            limit=limit,
            continue_final=continues,
        ),
    )


def _check_continues(messages: list[dict[str, Any]], generation: bool) -> None:
    name = "continue_final_message"
    if generation:
        raise InvalidRequest(f"{name} needs add_generation_prompt: false", param=name)
    if messages[-1].get("tool_calls"):
        raise InvalidRequest(f"{name}: the final message calls tools; only text can be continued", param=name)


async def _checked(front: Front, text: Text, grammar: Grammar, tail: str, param: str) -> Grammar:
    """The grammar after a trial compilation, told to begin after reasoning where that is open."""
    await front.check_grammar(grammar, param)
    if is_thinking(text.dialects.reasoning, tail):
        return msgspec.structs.replace(grammar, after_reasoning=True, reasoning_end=text.reasoning_end)
    return grammar


def text_plan(text: Text, tools: ToolPlan, grammar: Grammar | None, tail: str, may_think: bool) -> TextPlan:
    """`may_think`: nothing keeps the output from opening with reasoning."""
    dialects = text.dialects
    wanted = tools.tools
    splitter = None
    if dialects.reasoning and (may_think or grammar is None or grammar.after_reasoning):
        splitter = reasoning_splitter(dialects.reasoning, tail)
    if wanted is not None and tools.forced is not None:
        return TextPlan(splitter, _parser("json", wanted), grammar=grammar)
    if dialects.is_harmony and grammar is None:
        return TextPlan(None, _parser("gpt_oss", wanted or NO_TOOLS), True, TOOLS["gpt_oss"].markers, grammar)
    if wanted is not None:
        name = dialects.tools or DEFAULT_TOOLS
        return TextPlan(splitter, _parser(name, wanted), False, (*TOOLS[name].markers, *_THINK), grammar)
    return TextPlan(splitter, grammar=grammar, markers=_THINK if splitter else ())


_THINK = ("<think>", "</think>")


def _parser(name: str, tools: ToolSet) -> Any:
    def make() -> Parser:
        return tool_parser(name, tools)

    return make


def chat_params(front: Front, body: ChatRequest) -> Params:
    _refuse_unsupported(body)
    limits = front.options.limits
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream: true", param="stream_options")
    top = body.top_logprobs or 0
    if not 0 <= top <= limits.top_logprobs:
        raise InvalidRequest(
            f"top_logprobs must be at least 0 and at most {limits.top_logprobs}",
            param="top_logprobs",
            code="out_of_range",
        )
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    return resolve(body, front.facts, limits, logprobs=top if body.logprobs else -1, max_tokens=limit)


def echoed(body: ChatRequest) -> str:
    """What comes before each answer: with `echo`, the final message's text where the assistant said that, too."""
    final = body.messages[-1]
    return content_text(final.content, "messages") if body.echo and final.role == "assistant" else ""


def _refuse_unsupported(body: ChatRequest) -> None:
    for name in ("functions", "function_call", "audio", "prediction", "documents", "chat_template"):
        if getattr(body, name) not in (None, []):
            raise unsupported(name)
    if body.web_search_options is not None:
        raise unsupported("web_search_options")
    if body.modalities not in (None, [], ["text"]):
        raise unsupported("modalities", "other than text are not supported")


def template_keywords(front: Front, body: ChatRequest) -> dict[str, object]:
    """Raises InvalidRequest for a keyword that is not on the allow-list."""
    keywords: dict[str, object] = {}
    if body.reasoning_effort is not None:
        keywords["reasoning_effort"] = body.reasoning_effort
        if body.reasoning_effort == "none":
            keywords["enable_thinking"] = False
    for name, value in (body.chat_template_kwargs or {}).items():
        if name not in front.options.chat_template_keys:
            raise InvalidRequest(
                f"chat_template_kwargs.{name[:40]} is not allowed", param="chat_template_kwargs", code="unsupported"
            )
        if not isinstance(value, (str, bool, int, float, type(None))):
            raise InvalidRequest(f"chat_template_kwargs.{name} must be a plain value", param="chat_template_kwargs")
        keywords[name] = value
    return keywords
