"""Renders a conversation with the model's chat template, in a sandbox, within a time and a size.

What a client typed never becomes a control token: see `ChatPrompt`. The request never supplies a template.
"""

from __future__ import annotations

import datetime
import json
import re
import secrets
import time
from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes
from jinja2.parser import Parser

from tsd.api.errors import InvalidRequest
from tsd.api.limits import Limits
from tsd.api.text.tokenizer import Tokenizer, check_tokens

PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""For a tokenizer that comes without one."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks what a model wrote, for training; here it only renders."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


class ChatTemplate:
    """A compiled template. Raises jinja2.TemplateSyntaxError when the source is broken."""

    def __init__(self, source: str, tokenizer: Tokenizer, limits: Limits) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _now
        self._template = environment.from_string(source)
        self._constants = {"bos_token": tokenizer.bos_token, "eos_token": tokenizer.eos_token}
        self._limits = limits
        self.source = source

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        keywords: dict[str, Any] | None = None,
    ) -> str:
        """Raises InvalidRequest when the template refuses the messages, or at a limit."""
        context = {
            **self._constants,
            **(keywords or {}),
            "messages": messages,
            "tools": tools or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        # Time of this thread alone: a machine that stands still is not the template's fault.
        started, size, parts = time.thread_time(), 0, []
        try:
            for part in self._template.generate(context):
                parts.append(part)
                size += len(part)
                if size > self._limits.template_bytes:
                    raise InvalidRequest(
                        f"the rendered prompt is over {self._limits.template_bytes} characters",
                        param="messages",
                        code="too_long",
                    )
                if time.thread_time() - started > self._limits.template_seconds:
                    raise InvalidRequest("the chat template took too long", param="messages", code="template_timeout")
        except jinja2.TemplateError as error:
            raise InvalidRequest(
                f"the chat template refuses this conversation: {error.message}", param="messages"
            ) from error
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise InvalidRequest("the messages do not fit the model's chat template", param="messages") from error
        return "".join(parts)


class _Guarded(NamedTuple):
    value: Any
    texts: list[str]
    """texts[i] is what sentinel i stands for."""


class ChatPrompt:
    """Conversation → token ids.

    Special tokens' texts inside what the client sent are replaced by sentinels (unguessable ASCII words) before
    rendering. Of the rendered text, the special tokens that remain are the template's own; between them, stretches
    that hold a sentinel are restored and encoded with special tokens off. Without any, the whole is encoded at once,
    exactly as `transformers.apply_chat_template` does.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self.tokenizer = tokenizer
        self.template = template

    def encode(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        keywords: dict[str, Any] | None = None,
        limit: int | None = None,
        continue_final: bool = False,
    ) -> array[int]:
        """`continue_final`: the prompt ends where the last message's content does, for the model to go on from there.
        Raises InvalidRequest from the template, TextTooLong over `limit` tokens."""
        guard = f"tsd{secrets.token_hex(8)}x"
        if continue_final:
            # With a space after it: where the template trims the content, the mark loses it.
            messages = [*messages[:-1], {**messages[-1], "content": f"{messages[-1]['content']}{guard}end "}]
        guarded = self._guard({"messages": messages, "tools": tools}, guard)
        text = self.template.render(
            guarded.value["messages"],
            guarded.value["tools"],
            add_generation_prompt=add_generation_prompt,
            keywords=keywords,
        )
        if continue_final:
            text = _cut(text, f"{guard}end")
        if not guarded.texts:
            return self.tokenizer.encode(text, False, limit)
        return self._encode_guarded(text, guard, guarded.texts, limit)

    def _guard(self, value: Any, guard: str) -> _Guarded:
        pattern = self.tokenizer.vocabulary.pattern
        texts: list[str] = []
        if pattern is None:
            return _Guarded(value, texts)

        def hide(match: Any) -> str:
            texts.append(match[0])
            return f"{guard}{len(texts) - 1}z"

        return _Guarded(_map_strings(value, lambda text: pattern.sub(hide, text)), texts)

    def _encode_guarded(self, text: str, guard: str, texts: list[str], limit: int | None) -> array[int]:
        vocabulary = self.tokenizer.vocabulary
        assert vocabulary.pattern is not None
        ids: array[int] = array("i")
        sentinel = re.compile(guard + r"(\d+)z")

        def stretch(piece: str) -> None:
            if not piece:
                return
            if guard not in piece:
                ids.extend(self.tokenizer.encode(piece, False, limit))
                return
            ids.extend(self.tokenizer.encode_plain(sentinel.sub(lambda match: texts[int(match[1])], piece), limit))
            check_tokens(len(ids), limit)

        start = 0
        for match in vocabulary.pattern.finditer(text):
            stretch(text[start : match.start()])
            ids.append(vocabulary.specials[match[0]])
            start = match.end()
        stretch(text[start:])
        return ids


def _cut(text: str, mark: str) -> str:
    """What the template wrote before the mark at the end of the last message's content."""
    at = text.rfind(mark)
    if at < 0:
        raise InvalidRequest("the chat template does not write the final message", param="continue_final_message")
    return text[:at] if text[at + len(mark) :].startswith(" ") else text[:at].rstrip()


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _map_strings(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_map_strings(item, change) for item in value]
    return value
