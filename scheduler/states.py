"""The life of a request as data: states, events, and the one table of legal transitions.

Owns nothing at run time; `core` compiles the table into an array and raises IllegalTransition for anything else.
`tsd scheduler --states` prints it as text and as a Mermaid diagram.
"""

from __future__ import annotations

import argparse
from enum import IntEnum


class State(IntEnum):
    """Where a request is. What each state holds is in HOLDS; leaving the state gives it up or hands it on."""

    SUBMITTED = 0
    PREFETCHING = 1
    BOOTSTRAPPING = 2
    PREFILLING = 3
    PREFILLED = 4
    DECODING = 5
    DRAINING = 6
    WRITING_BACK = 7
    RETRACTING = 8
    RETRACTED = 9
    ABORTING = 10
    FINISHED = 11


class Event(IntEnum):
    """What happens to a request."""

    RESERVE = 0
    FETCH = 1
    FETCHED = 2
    REQUEUE = 3
    CHUNK = 4
    LAST_CHUNK = 5
    TOKEN = 6
    FINISH = 7
    ABORT = 8
    RETRACT = 9
    DRAINED = 10
    WRITE_BACK = 11
    WRITTEN = 12


HOLDS: dict[State, str] = {
    State.SUBMITTED: "a place in the queue",
    State.PREFETCHING: "a slot, all pages of its prompt, references; waits for copies (or waits in the queue for disk)",
    State.BOOTSTRAPPING: "a slot, all pages of its prompt, references to the prefix; waits for token budget",
    State.PREFILLING: "as before; chunks launched",
    State.PREFILLED: "as before; the last chunk launched, its token not yet known",
    State.DECODING: "a slot, its pages, references; one page more each page_size tokens",
    State.DRAINING: "ended; its slot and pages stay fenced until the launched steps land",
    State.WRITING_BACK: "ended or retracted; references stay until the copies to the host tier land",
    State.RETRACTING: "chosen as victim; runs no more, its launched steps still land",
    State.RETRACTED: "its tokens and a place at the head of the queue, no page",
    State.ABORTING: "ended by abort; fenced until launched steps and copies land",
    State.FINISHED: "nothing",
}

TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.SUBMITTED, Event.RESERVE): State.BOOTSTRAPPING,
    (State.SUBMITTED, Event.FETCH): State.PREFETCHING,
    (State.SUBMITTED, Event.ABORT): State.FINISHED,
    (State.PREFETCHING, Event.FETCHED): State.BOOTSTRAPPING,
    (State.PREFETCHING, Event.REQUEUE): State.SUBMITTED,
    (State.PREFETCHING, Event.ABORT): State.ABORTING,
    (State.BOOTSTRAPPING, Event.CHUNK): State.PREFILLING,
    (State.BOOTSTRAPPING, Event.LAST_CHUNK): State.PREFILLED,
    (State.BOOTSTRAPPING, Event.ABORT): State.ABORTING,
    (State.BOOTSTRAPPING, Event.RETRACT): State.RETRACTING,
    (State.PREFILLING, Event.CHUNK): State.PREFILLING,
    (State.PREFILLING, Event.LAST_CHUNK): State.PREFILLED,
    (State.PREFILLING, Event.FINISH): State.DRAINING,
    (State.PREFILLING, Event.ABORT): State.ABORTING,
    (State.PREFILLING, Event.RETRACT): State.RETRACTING,
    (State.PREFILLED, Event.TOKEN): State.DECODING,
    (State.PREFILLED, Event.FINISH): State.DRAINING,
    (State.PREFILLED, Event.ABORT): State.ABORTING,
    (State.PREFILLED, Event.RETRACT): State.RETRACTING,
    (State.DECODING, Event.TOKEN): State.DECODING,
    (State.DECODING, Event.FINISH): State.DRAINING,
    (State.DECODING, Event.ABORT): State.ABORTING,
    (State.DECODING, Event.RETRACT): State.RETRACTING,
    (State.DRAINING, Event.DRAINED): State.FINISHED,
    (State.DRAINING, Event.WRITE_BACK): State.WRITING_BACK,
    (State.WRITING_BACK, Event.WRITTEN): State.FINISHED,
    (State.RETRACTING, Event.TOKEN): State.RETRACTING,
    (State.RETRACTING, Event.FINISH): State.DRAINING,
    (State.RETRACTING, Event.ABORT): State.ABORTING,
    (State.RETRACTING, Event.DRAINED): State.RETRACTED,
    (State.RETRACTED, Event.RESERVE): State.BOOTSTRAPPING,
    (State.RETRACTED, Event.FETCH): State.PREFETCHING,
    (State.RETRACTED, Event.ABORT): State.FINISHED,
    (State.ABORTING, Event.DRAINED): State.FINISHED,
}


def as_text() -> str:
    """The table for a terminal: each state, what it holds, and where its events lead."""
    lines: list[str] = []
    for state in State:
        lines.append(f"{state.name.lower()}: holds {HOLDS[state]}")
        for (source, event), target in TRANSITIONS.items():
            if source is state:
                lines.append(f"    {event.name.lower():<12} -> {target.name.lower()}")
    return "\n".join(lines)


def as_mermaid() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> submitted: submit"]
    for (source, event), target in TRANSITIONS.items():
        lines.append(f"    {source.name.lower()} --> {target.name.lower()}: {event.name.lower()}")
    lines.append("    finished --> [*]")
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """`tsd scheduler --states [--format text|mermaid|both]`."""
    parser = argparse.ArgumentParser(prog="tsd scheduler", description="Show the scheduler's request states.")
    parser.add_argument("--states", action="store_true", required=True, help="print the table of states and events")
    parser.add_argument("--format", choices=("text", "mermaid", "both"), default="both")
    options = parser.parse_args(argv)
    if options.format != "mermaid":
        print(as_text())
    if options.format == "both":
        print()
    if options.format != "text":
        print(as_mermaid())
    return 0
