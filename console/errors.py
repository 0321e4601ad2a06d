"""Faults that a command reports in one line.

CommandError          exit code 1
└── UsageError        exit code 2: a flag, an environment variable or the configuration file is wrong
"""

from __future__ import annotations


class CommandError(Exception):
    """Printed as `tsd: message`, without a traceback."""

    exit_code = 1


class UsageError(CommandError):
    exit_code = 2
