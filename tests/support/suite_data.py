"""Other people's test data, fetched once by `scripts/setup --test` into the cache folder. Tests skip where it is not
there."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

SUITE = "jsonschema-4.26.0.tar.gz"
SUITE_SHA256 = "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326"


class SchemaCase(NamedTuple):
    keyword: str
    description: str
    schema: Any
    tests: list[dict[str, Any]]
    """Each with `data` and `valid`."""


def folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "tsd" / "test-data"


def json_schema_suite(draft: str) -> Iterator[SchemaCase]:
    """The JSON-Schema-Test-Suite, as the source archive of `jsonschema` carries it."""
    path = folder() / SUITE
    if not path.exists():
        pytest.skip(f"{SUITE} is not there: run scripts/setup --test")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == SUITE_SHA256, f"{path} is not what was published"
    with tarfile.open(path) as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            parts = member.name.split("/")
            if parts[1:4] == ["json", "tests", draft] and len(parts) == 5 and parts[4].endswith(".json"):
                file = archive.extractfile(member)
                assert file is not None
                for case in json.load(file):
                    yield SchemaCase(parts[4].removesuffix(".json"), case["description"], case["schema"], case["tests"])
