"""Splits thinking from the answer by tags. Pure: any cut of the text gives the same two texts.

Thinking may only be the first thing: either the prompt already opened it (`inside`), or the text begins with the
opening tag. Everything after its end is the answer, tags included; text that begins otherwise is all answer.
"""

from __future__ import annotations

from tsd.api.output import Delta
from tsd.api.parsers.feed import Feed, Reading, accept, skip_space, until


class TagSplitter:
    """`begin` and `end` tags; white space around them is dropped."""

    def __init__(self, begin: str, end: str, inside: bool) -> None:
        self.reasoning = inside
        self._begin = begin
        self._end = end
        self._feed = Feed()
        self._delta = Delta()
        self._answer: list[str] = []
        self._over = False
        self._reading = self._read(inside)
        self._step()

    def push(self, text: str, delta: Delta) -> str:
        if self._over:
            return text
        self._delta = delta
        self._feed.append(text)
        return self._step()

    def finish(self, delta: Delta) -> str:
        self._delta = delta
        self._feed.closed = True
        return self._step()

    def _step(self) -> str:
        if not self._over:
            try:
                next(self._reading)
            except StopIteration:
                self._over = True
                self._answer.append(self._feed.take_all())
        text = "".join(self._answer)
        self._answer.clear()
        return text

    def _read(self, inside: bool) -> Reading[None]:
        lead: list[str] = []
        self._feed.record = lead
        yield from skip_space(self._feed)
        opened = yield from accept(self._feed, self._begin)
        self._feed.record = None
        if opened is None and not inside:
            self.reasoning = False
            self._answer.append("".join(lead))
            return
        self.reasoning = True
        if opened is None:
            self._think("".join(lead))
        else:
            yield from skip_space(self._feed)
        ended = yield from until(self._feed, (self._end,), self._think)
        self.reasoning = False
        if ended is not None:
            yield from skip_space(self._feed)

    def _think(self, text: str) -> None:
        self._delta.reasoning += text
