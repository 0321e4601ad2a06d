"""The parsers by name, the marker tokens each must see, and which ones a chat template speaks of."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tsd.api.output import ReasoningSplitter
from tsd.api.parsers import harmony as harmony_dialect
from tsd.api.parsers.harmony import harmony
from tsd.api.parsers.json_dialects import deepseek_v3, deepseek_v31, hermes, json_calls, kimi_k2, mistral
from tsd.api.parsers.output import GeneratorParser, Program, ToolSet
from tsd.api.parsers.pythonic import pythonic
from tsd.api.parsers.reasoning import TagSplitter
from tsd.api.parsers.xml_dialects import deepseek_v32, glm45, minimax_m2, qwen3_coder


class ToolDialect(NamedTuple):
    program: Program
    markers: tuple[str, ...] = ()
    """Texts of special tokens that the parser reads: they are not stripped while it is on."""


class ReasoningDialect(NamedTuple):
    begin: str
    end: str
    assumed: bool = False
    """Thinking is open at the start even where the prompt's end does not show it."""


_DEEPSEEK = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
)
_KIMI = (
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    "<|tool_call_argument_begin|>",
)
_TOOL_CALL = ("<tool_call>", "</tool_call>")

TOOLS: dict[str, ToolDialect] = {
    "hermes": ToolDialect(hermes, _TOOL_CALL),
    "qwen": ToolDialect(hermes, _TOOL_CALL),
    "qwen3_coder": ToolDialect(qwen3_coder, _TOOL_CALL),
    "llama3_json": ToolDialect(json_calls, ("<|python_tag|>",)),
    "pythonic": ToolDialect(pythonic, ("<|python_start|>", "<|python_end|>")),
    "mistral": ToolDialect(mistral, ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")),
    "deepseek_v3": ToolDialect(deepseek_v3, _DEEPSEEK),
    "deepseek_v31": ToolDialect(deepseek_v31, _DEEPSEEK),
    "deepseek_v32": ToolDialect(deepseek_v32, ("｜DSML｜",)),
    "kimi_k2": ToolDialect(kimi_k2, _KIMI),
    "glm45": ToolDialect(glm45, (*_TOOL_CALL, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")),
    "glm47": ToolDialect(glm45, (*_TOOL_CALL, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")),
    "gpt_oss": ToolDialect(harmony, harmony_dialect.MARKERS),
    "minimax_m2": ToolDialect(minimax_m2, ("<minimax:tool_call>", "</minimax:tool_call>")),
    "json": ToolDialect(json_calls),
}

DEFAULT_TOOLS = "hermes"
"""The dialect that a model is told to call in when its template knows no tools (`tools.describe_tools`)."""

_THINK = ("<think>", "</think>")
REASONING: dict[str, ReasoningDialect | None] = {
    "deepseek_r1": ReasoningDialect(*_THINK, assumed=True),
    "deepseek_v31": ReasoningDialect(*_THINK),
    "qwen3": ReasoningDialect(*_THINK),
    "kimi_k2": ReasoningDialect(*_THINK),
    "kimi_k25": ReasoningDialect(*_THINK),
    "glm45": ReasoningDialect(*_THINK),
    "minimax": ReasoningDialect(*_THINK, assumed=True),
    "step3": ReasoningDialect(*_THINK, assumed=True),
    "gpt_oss": None,
    "passthrough": None,
}
"""gpt_oss reasoning is read by its tool parser: both are one grammar."""


class Dialects(NamedTuple):
    """What one server reads its model's output with; names may be empty."""

    reasoning: str = ""
    tools: str = ""

    @property
    def is_harmony(self) -> bool:
        return "gpt_oss" in (self.reasoning, self.tools)


def tool_parser(name: str, tools: ToolSet) -> GeneratorParser:
    return GeneratorParser(TOOLS[name].program, tools)


def reasoning_splitter(name: str, prompt_tail: str) -> Callable[[], ReasoningSplitter] | None:
    """A maker of splitters for a prompt that ends in `prompt_tail`; None where the dialect has no tags."""
    dialect = REASONING[name]
    if dialect is None:
        return None
    tail = prompt_tail.rstrip()
    inside = tail.endswith(dialect.begin) or (dialect.assumed and not tail.endswith(dialect.end))
    return lambda: TagSplitter(dialect.begin, dialect.end, inside)


def is_thinking(name: str, prompt_tail: str) -> bool:
    """Whether the answer begins inside reasoning."""
    dialect = REASONING.get(name)
    if dialect is None:
        return False
    tail = prompt_tail.rstrip()
    return tail.endswith(dialect.begin) or (dialect.assumed and not tail.endswith(dialect.end))


def detect(template: str) -> Dialects:
    """By the markers that a chat template writes; empty where there are none."""
    if "<|channel|>" in template:
        return Dialects("gpt_oss", "gpt_oss")
    reasoning = "qwen3" if "<think>" in template else ""
    for marker, tools in (
        ("｜DSML｜", "deepseek_v32"),
        ("<function=", "qwen3_coder"),
        ("<arg_key>", "glm45"),
        ("minimax:tool_call", "minimax_m2"),
        ("<|tool_calls_section_begin|>", "kimi_k2"),
        ("<tool_call>", "hermes"),
        ("[TOOL_CALLS]", "mistral"),
        ("<|python_tag|>", "llama3_json"),
        ("<|python_start|>", "pythonic"),
    ):
        if marker in template:
            return Dialects(reasoning, tools)
    if "<｜tool▁sep｜>" in template:
        return Dialects(reasoning, "deepseek_v3" if "```json" in template else "deepseek_v31")
    if "Environment: ipython" in template:
        return Dialects(reasoning, "llama3_json")
    return Dialects(reasoning, "")
