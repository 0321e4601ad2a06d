"""Data sets by name: each turns options into sessions of a plan. Readers import nothing until they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from tsd.bench.plan import Kind, Session
from tsd.bench.store import PieceStore


@dataclass(frozen=True)
class DatasetOptions:
    """What shapes a data set. Lengths are tokens, times seconds. None: the data set's own default."""

    num_prompts: int
    path: str | None = None
    input_len: int = 1024
    output_len: int | None = None
    range_ratio: float = 0.0
    prefix_len: int = 0
    turns: int | None = None
    turn_wait_s: float = 0.0
    time_scale: float = 1.0
    max_input_len: int | None = None
    seed: int = 0


class Dataset(Protocol):
    """A module of this package."""

    def kind(self, options: DatasetOptions) -> Kind | None:
        """The kind of prompt that the data itself dictates (given texts or ids), or None."""

    def build(self, options: DatasetOptions, store: PieceStore) -> list[Session]:
        """Sessions; raises DatasetError naming file and line."""


NAMES = ("random", "agentic", "swe", "mooncake", "azure", "sharegpt", "custom")


def dataset(name: str) -> Dataset:
    """The reader or generator of that name."""
    assert name in NAMES, name
    module: Dataset = import_module(f"tsd.bench.datasets.{name}")  # type: ignore[assignment]
    return module
