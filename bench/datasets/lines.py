"""Reading of line-based files for the data sets: opening, numbering, and errors that name the line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from tsd.bench.errors import DatasetError

T = TypeVar("T")


def numbered_lines(path: str | None, dataset: str) -> Iterator[tuple[int, str]]:
    """(line number from 1, line) of the lines that are not empty."""
    if path is None:
        raise DatasetError(dataset, None, "this data set needs --dataset-path FILE")
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise DatasetError(path, None, error.strerror or str(error)) from None
    except UnicodeDecodeError as error:
        raise DatasetError(path, None, f"not UTF-8 text ({error.reason} at byte {error.start})") from None


def decode_line(path: str, number: int, line: str, kind: type[T]) -> T:
    """One JSON object of a known shape."""
    try:
        return msgspec.json.decode(line.encode(), type=kind)
    except msgspec.DecodeError as error:  # includes ValidationError
        raise DatasetError(path, number, str(error)) from None
