"""gpt_oss (harmony): messages in channels. Analysis is reasoning, final is the answer, commentary to a function a call.

`<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json
<|message|>{…}<|call|>` … `<|channel|>final<|message|>…<|return|>`
"""

from __future__ import annotations

import re

from tsd.api.parsers.feed import Feed, Reading, text_until, until
from tsd.api.parsers.output import Out

_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
MARKERS = (*_ENDS, "<|channel|>", "<|message|>", "<|constrain|>")


def harmony(feed: Feed, out: Out) -> Reading[None]:
    """Text outside of any message is the answer's."""
    while True:
        marker = yield from until(feed, ("<|channel|>", "<|start|>", "<|message|>"), out.content)
        if marker is None:
            return
        head = ""
        if marker == "<|start|>":
            head, marker = yield from text_until(feed, ("<|channel|>", "<|message|>"))
        if marker == "<|channel|>":
            channel, marker = yield from text_until(feed, ("<|message|>",))
            head = f"{channel} {head}"
        if marker is None:
            return
        yield from _message(feed, out, head)
        if out.complete:
            return


def _message(feed: Feed, out: Out, head: str) -> Reading[None]:
    recipient = _RECIPIENT.search(head)
    channel = head.split()[0].split("<")[0] if head.split() else "final"
    # A tool that was not offered: what it was told is shown, not lost.
    is_call = recipient is not None and out.tools.knows(recipient[1])
    sink = out.reasoning if channel == "analysis" else out.content
    if recipient is not None and is_call:
        out.start(recipient[1])
        sink = out.arguments
    ended = yield from until(feed, _ENDS, sink)
    if is_call:
        out.end()
    if ended == "<|start|>":
        feed.unread(len(ended))
