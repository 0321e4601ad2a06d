"""What can be wrong with a model that a user names. Knows nothing about processes or HTTP.

ModelError
├── ConfigError            a field of config.json or of the GGUF metadata
│   └── UnknownArchitecture
└── WeightsError           a weights file or one tensor in it
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class ModelError(Exception):
    """The model cannot be served as asked; the message is for the person who named it."""


class ConfigError(ModelError):
    """A configuration field is missing, inconsistent or asks for something that is not implemented."""

    def __init__(self, where: str | Path, what: str) -> None:
        super().__init__(f"{where}: {what}" if str(where) else what)
        self.where = str(where)


class UnknownArchitecture(ConfigError):
    """No registered model has this architecture name."""

    def __init__(self, where: str | Path, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]}?" if close else ""
        super().__init__(where, f"unknown architecture {name!r}{hint} (known: {', '.join(names)})")
        self.name = name


class WeightsError(ModelError):
    """A weights file is unreadable, or a tensor in it is missing, unexpected, or of a wrong shape or type."""

    def __init__(self, file: str | Path, what: str, tensor: str = "") -> None:
        super().__init__(f"{file}: tensor {tensor!r}: {what}" if tensor else f"{file}: {what}")
        self.file = str(file)
        self.tensor = tensor
