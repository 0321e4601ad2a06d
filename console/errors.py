"""Faults that a command reports in one line.

CommandError              exit code 1
├── UsageError            2: a flag, an environment variable, a file or the configuration is wrong
└── ConsoleError          1: the console and its server
    ├── ServerDown        3: nothing answers, or the stream ended
    ├── KeyRefused        4: the server wants another key
    ├── ForeignServer     5: what answers is no tsd server, or one too old or too new
    ├── GarbageStream     6: the stream is no stream of snapshots
    ├── ActionFailed      7: the server answered an action with an error
    └── ReadOnly          8: an action was asked of a read-only console
"""

from __future__ import annotations


class CommandError(Exception):
    """Printed as `tsd: message`, without a traceback."""

    exit_code = 1


class UsageError(CommandError):
    exit_code = 2


class ConsoleError(CommandError):
    """Base of the console's errors; `str(error)` is one plain sentence for the operator."""


class ServerDown(ConsoleError):
    exit_code = 3


class KeyRefused(ConsoleError):
    exit_code = 4


class ForeignServer(ConsoleError):
    exit_code = 5


class GarbageStream(ConsoleError):
    exit_code = 6


class ActionFailed(ConsoleError):
    exit_code = 7


class ReadOnly(ConsoleError):
    exit_code = 8
