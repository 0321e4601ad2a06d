"""Errors of the bench room, each with the exit code that `tsd bench` ends with.

    BenchError (1)
    ├─ UsageError (2)         a flag or a combination of flags that means nothing
    ├─ DatasetError (2)       a data set or trace that cannot be read; names the file and the line
    ├─ ResultError (2)        a result file that cannot be read
    ├─ ServerUnreachable (3)  nothing answers at the URL
    ├─ ServerRefused (4)      the server answers and says no (wrong model, no such route, bad key)
    └─ WorkerDied (5)         one of our own client processes ended early

Failures of single requests are data, not exceptions: they are kept in the request's record.
"""

from __future__ import annotations


class BenchError(Exception):
    """Base of what `tsd bench` reports in one line."""

    exit_code = 1


class UsageError(BenchError):
    exit_code = 2


class DatasetError(BenchError):
    exit_code = 2

    def __init__(self, path: str, line: int | None, reason: str) -> None:
        self.path, self.line, self.reason = path, line, reason
        super().__init__(f"{path}, line {line}: {reason}" if line is not None else f"{path}: {reason}")


class ResultError(BenchError):
    exit_code = 2


class ServerUnreachable(BenchError):
    exit_code = 3


class ServerRefused(BenchError):
    exit_code = 4


class WorkerDied(BenchError):
    exit_code = 5
