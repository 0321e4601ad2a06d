"""The table of options: sources in their order, and errors that name place and nearest match."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tsd.console import cli, options
from tsd.console.errors import CommandError, UsageError
from tsd.console.options import OPTIONS, resolve


def text_of(option: options.Option) -> str:
    """A valid text for an option that differs from its default."""
    if option.choices:
        return option.choices[-1]
    if option.kind is bool:
        return "false" if option.default else "true"
    return {"gpus": "0-3", "port": "8123", "gpu-memory-utilization": "0.5"}.get(option.name, "7")


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_each_option_comes_from_each_source_in_order(option: options.Option, tmp_path: Path) -> None:
    text = text_of(option)
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump({option.name: text}))
    assert resolve({}, {}, None)[option.key] == (option.default, "default")
    from_file = resolve({}, {}, str(file))[option.key]
    assert from_file.source == str(file) and from_file.value != option.default
    from_environment = resolve({}, {option.variable: text}, str(file))[option.key]
    assert from_environment == (from_file.value, "environment")
    raw = [text] if option.repeat else text
    assert resolve({option.key: raw}, {option.variable: "junk"}, str(file))[option.key] == (
        from_file.value,
        "command line",
    )


@pytest.mark.parametrize(
    ("text", "value"), [("0", (0,)), ("0,2-4", (0, 2, 3, 4)), ("none", ()), ("cpu", ()), ("auto", None)]
)
def test_gpu_lists(text: str, value: tuple[int, ...] | None) -> None:
    assert options.gpu_list(text) == value


@pytest.mark.parametrize("text", ["", "x", "1-", "-1", "0,0", "3-1", "0,,1"])
def test_bad_gpu_lists_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        options.gpu_list(text)


@pytest.mark.parametrize(
    ("given", "environ", "content", "words"),
    [
        ({"port": "70000"}, {}, None, ["--port", "65535"]),
        ({"dtype": "bfloat61"}, {}, None, ["--dtype", "bfloat16"]),
        ({}, {"TSD_MAX_NUM_SEQS": "0"}, None, ["TSD_MAX_NUM_SEQS", "at least 1"]),
        ({}, {"TSD_MAX_NUM_SEQ": "4"}, None, ["TSD_MAX_NUM_SEQ", "TSD_MAX_NUM_SEQS"]),
        ({}, {}, "max-modellen: 4", ["max-modellen", "max-model-len"]),
        ({}, {}, "prefix-cache: maybe", ["prefix-cache", "true or false"]),
        ({}, {}, "- a\n- b", ["mapping"]),
        ({}, {}, "a: [", ["not YAML"]),
    ],
)
def test_bad_values_name_their_place(
    given: dict[str, str], environ: dict[str, str], content: str | None, words: list[str], tmp_path: Path
) -> None:
    file = None
    if content is not None:
        file = tmp_path / "c.yaml"
        file.write_text(content)
    with pytest.raises(UsageError) as caught:
        resolve(given, environ, str(file) if file else None)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_missing_configuration_file_is_named() -> None:
    with pytest.raises(UsageError, match=r"/nowhere/c\.yaml"):
        resolve({}, {}, "/nowhere/c.yaml")


def test_secrets_are_not_shown() -> None:
    rows = options.describe(resolve({"api_key": ["topsecret"], "admin_key": "alsosecret"}, {}, None))
    assert "secret" not in str(rows)


def test_an_unknown_flag_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["start", "--max-model-length", "4"]) == 2
    assert "--max-model-len?" in capsys.readouterr().err


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["strat"]) == 2
    assert "tsd start" in capsys.readouterr().err


def test_a_command_error_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(argv: list[str]) -> int:
        raise CommandError("the disk is full")

    monkeypatch.setattr("tsd.console.version.main", fail)
    assert cli.main(["version"]) == 1
    assert capsys.readouterr().err == "tsd: the disk is full\n"


@pytest.mark.parametrize("command", [[], *([name] for name in cli.SUBCOMMANDS)], ids=lambda c: c[0] if c else "tsd")
def test_every_command_has_help_and_imports_no_torch(command: list[str]) -> None:
    script = (
        "import sys; from tsd.console import cli\n"
        "try: code = cli.main(sys.argv[1:])\n"
        "except SystemExit as end: code = end.code or 0\n"
        "heavy = {'torch', 'transformers'} & set(sys.modules)\n"
        "sys.exit(code or (f'imported {heavy}' if heavy else 0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *command, "--help"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 60


def test_limits_are_changed_by_name() -> None:
    from tsd.console.serving import limits

    changed = limits(["n=16", "deadline-seconds=1.5"], 10, 20)
    assert (changed.n, changed.deadline_seconds, changed.queued_requests, changed.queued_tokens) == (16, 1.5, 10, 20)


@pytest.mark.parametrize(
    ("text", "words"), [("nn=1", "did you mean n?"), ("n=x", "number"), ("n", "number"), ("n=0", "over 0")]
)
def test_bad_limits_are_refused(text: str, words: str) -> None:
    from tsd.console.serving import limits

    with pytest.raises(UsageError) as caught:
        limits([text], 1, 1)
    assert words in str(caught.value)
