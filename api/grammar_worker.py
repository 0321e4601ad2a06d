"""A process that compiles grammars before they are let in: its crash or its time limit costs one request.

Reads frames (u32 length, msgpack) on standard input: first the vocabulary, then `[kind, text]`; answers each with
`[ok, message]`. Memory is bounded; time is bounded by its owner, who kills it.
"""

from __future__ import annotations

import os
import resource
import struct
import sys
from typing import BinaryIO

import msgspec

from tsd.engine import life
from tsd.engine.protocol import Grammar, Vocabulary
from tsd.engine.stand_ins import keep_out_tensors

MEMORY_BYTES = 2 * 1024**3
"""Beyond what the process holds once it is ready."""


def read_frame(stream: BinaryIO) -> bytes | None:
    head = stream.read(4)
    if len(head) < 4:
        return None
    return stream.read(struct.unpack("<I", head)[0])


def frame(value: object) -> bytes:
    data = msgspec.msgpack.encode(value)
    return struct.pack("<I", len(data)) + data


def main() -> int:
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    # It reads nothing while it compiles, and would not see that its owner is gone.
    life.die_with_parent(os.getppid())
    # While the vocabulary is on its way.
    keep_out_tensors()
    from tsd.engine.grammar import GrammarBackend, GrammarError

    first = read_frame(stdin)
    if first is None:
        return 0
    vocabulary = msgspec.msgpack.decode(first, type=Vocabulary)
    backend = GrammarBackend(vocabulary, len(vocabulary.pieces))
    _bound_memory()
    stdout.write(frame((True, "")))
    stdout.flush()
    while (data := read_frame(stdin)) is not None:
        kind, text = msgspec.msgpack.decode(data, type=tuple[str, str])
        try:
            backend.compile(Grammar(kind, text))
            answer = (True, "")
        except GrammarError as error:
            answer = (False, str(error))
        except MemoryError:
            answer = (False, "the constraint takes too much memory to compile")
        stdout.write(frame(answer))
        stdout.flush()
    return 0


def _bound_memory() -> None:
    with open("/proc/self/statm") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY_BYTES, held + MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    sys.exit(main())
