"""What the server says about its own build: no secret in it, and a commit that is the checkout's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tsd.api.about import about, git_commit, masked_command


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["/usr/bin/tsd", "start", "--api-key", "s3cret", "--port", "1"], "tsd start --api-key '***' --port 1"),
        (["tsd", "start", "--admin-api-key=s3cret"], "tsd start '--admin-api-key=***'"),
        (["tsd", "start", "--hf-token", "s3cret", "m"], "tsd start --hf-token '***' m"),
        (["tsd", "start", "--max-total-tokens", "5", "a b"], "tsd start --max-total-tokens 5 'a b'"),
    ],
)
def test_secrets_are_masked(argv: list[str], shown: str) -> None:
    assert masked_command(argv) == shown


def test_commit_of_a_checkout(tmp_path: Path) -> None:
    def git(*args: str, cwd: Path = tmp_path) -> str:
        config = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main")
        return subprocess.run(
            ["git", *config, *args], cwd=cwd, check=True, capture_output=True, text=True
        ).stdout.strip()

    assert git_commit(tmp_path) is None
    git("init", "-q", ".")
    assert git_commit(tmp_path) is None  # no commit yet
    git("commit", "-q", "--allow-empty", "-m", "a")
    head = git("rev-parse", "HEAD")
    assert git_commit(tmp_path) == head
    git("worktree", "add", "-q", str(tmp_path / "tree"), "-b", "other")
    assert git_commit(tmp_path / "tree") == head
    git("pack-refs", "--all")
    assert git_commit(tmp_path) == head and git_commit(tmp_path / "tree") == head
    git("checkout", "-q", "--detach")
    assert git_commit(tmp_path) == head


def test_about_has_what_a_measurement_names() -> None:
    assert {"version", "commit", "launch_command", "gpu", "driver", "cuda", "libraries"} <= about().keys()
