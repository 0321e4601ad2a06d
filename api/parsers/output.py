"""Where a parser's generator puts what it found, and the `Parser` that runs one."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tsd.api.output import CallDelta, Delta
from tsd.api.parsers.feed import Feed, Reading

MAX_REFERENCES = 8
"""That are followed from one parameter's schema."""


@dataclass(frozen=True)
class ToolSet:
    """The tools of a request: name → JSON schema of its parameters. Empty: any name passes."""

    schemas: dict[str, dict[str, Any]] = field(default_factory=dict)
    single: bool = False
    """Only one call is wanted: what comes after it is dropped."""
    new_id: Callable[[], str] = lambda: f"call_{secrets.token_hex(12)}"

    def knows(self, name: str) -> bool:
        return bool(name) and (not self.schemas or name in self.schemas)

    def parameter(self, name: str, key: str) -> dict[str, Any]:
        """The schema of one parameter, a reference followed, or {}."""
        schema = self.schemas.get(name, {})
        properties = schema.get("properties")
        found = properties.get(key) if isinstance(properties, dict) else None
        for _ in range(MAX_REFERENCES):
            reference = found.get("$ref") if isinstance(found, dict) else None
            if not isinstance(reference, str):
                break
            found = schema
            for step in reference.removeprefix("#").strip("/").split("/"):
                found = found.get(step) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else {}


class Out:
    """The current delta. White space before a call is dropped, elsewhere it is kept."""

    def __init__(self, tools: ToolSet) -> None:
        self.tools = tools
        self.delta = Delta()
        self.calls = 0
        self.open = False
        self._space: list[str] = []
        self._any_content = False

    def content(self, text: str) -> None:
        if not text:
            return
        body = text.rstrip()
        if body:
            self.delta.content += "".join(self._space) + body
            self._any_content = True
            self._space = []
        if len(body) < len(text):
            self._space.append(text[len(body) :])

    def reasoning(self, text: str) -> None:
        self.delta.reasoning += text

    def start(self, name: str, call_id: str | None = None) -> None:
        """The caller has asked `tools.knows(name)`."""
        self._space = []
        self.open = True
        self._add(CallDelta(self.calls, "", call_id or self.tools.new_id(), name))

    def arguments(self, text: str) -> None:
        if text:
            self._add(CallDelta(self.calls, text))

    def end(self) -> None:
        self.open = False
        self.calls += 1

    def finish(self) -> None:
        if self._space:
            self.delta.content += "".join(self._space)
            self._space = []
        if self.open:
            self.end()

    @property
    def complete(self) -> bool:
        return self.tools.single and self.calls > 0

    def _add(self, call: CallDelta) -> None:
        last = self.delta.calls[-1] if self.delta.calls else None
        if last is not None and last.index == call.index and not call.id:
            last.arguments += call.arguments
        else:
            self.delta.calls.append(call)


Program = Callable[[Feed, Out], Reading[None]]


class GeneratorParser:
    """Runs a dialect's generator over the text as it comes."""

    def __init__(self, program: Program, tools: ToolSet) -> None:
        self._feed = Feed()
        self._out = Out(tools)
        self._reading = program(self._feed, self._out)
        self._over = False
        self._step()

    def push(self, text: str, delta: Delta) -> None:
        if self._out.complete:
            return
        self._out.delta = delta
        self._feed.append(text)
        self._step()

    def finish(self, delta: Delta) -> None:
        self._out.delta = delta
        self._feed.closed = True
        self._step()
        self._out.finish()

    @property
    def called(self) -> bool:
        return self._out.calls > 0 or self._out.open

    @property
    def complete(self) -> bool:
        """The one call that was wanted is there."""
        return self._out.complete

    def _step(self) -> None:
        if not self._over:
            try:
                next(self._reading)
            except StopIteration:
                self._over = True
        if self._over and not self._out.complete:
            self._out.content(self._feed.take_all())


def give_back(feed: Feed, out: Out, opening: str) -> None:
    """What was read since `feed.record` was set was no call: it is text."""
    out.content(opening + "".join(feed.record or ()))
    feed.record = None
