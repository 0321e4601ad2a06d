"""`tsd connect`: prints the exact settings with which an agent uses a running server. Knows only HTTP.

Exit codes: 0, 2 for a usage error, 3 when no server answers, 4 when it wants another key.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import NamedTuple

DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT_S = 5.0


class Target(NamedTuple):
    """The server as the agents need to know it."""

    url: str
    """Without a final slash, without /v1."""
    key: str
    model: str
    context: int

    @property
    def output(self) -> int:
        """A sensible longest answer: a quarter of the context."""
        return max(256, min(32_000, self.context // 4))


def claude(target: Target) -> str:
    values = {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_AUTH_TOKEN": target.key or "none",
        "ANTHROPIC_MODEL": target.model,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": target.model,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": target.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": target.model,
        "CLAUDE_CODE_SUBAGENT_MODEL": target.model,
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(target.output),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    return "# Claude Code: set these, then start `claude`\n" + _exports(values)


def codex(target: Target) -> str:
    lines = [
        "# Codex: put this into ~/.codex/config.toml, then start `codex`",
        f"model = {json.dumps(target.model)}",
        'model_provider = "tsd"',
        f"model_context_window = {target.context}",
        f"model_max_output_tokens = {target.output}",
        "",
        "[model_providers.tsd]",
        'name = "tsd"',
        f"base_url = {json.dumps(target.url + '/v1')}",
        'wire_api = "responses"',
    ]
    if target.key:
        lines += ['env_key = "TSD_API_KEY"', "", f"# and: export TSD_API_KEY={shlex.quote(target.key)}"]
    return "\n".join(lines)


def opencode(target: Target) -> str:
    config = {
        "$schema": "https://opencode.ai/config.json",
        "model": f"tsd/{target.model}",
        "provider": {
            "tsd": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "tsd",
                "options": {"baseURL": f"{target.url}/v1", "apiKey": target.key or "none"},
                "models": {
                    target.model: {
                        "name": target.model,
                        "limit": {"context": target.context, "output": target.output},
                    }
                },
            }
        },
    }
    return json.dumps(config, indent=2)


def openai(target: Target) -> str:
    values = {"OPENAI_BASE_URL": f"{target.url}/v1", "OPENAI_API_KEY": target.key or "none"}
    code = (
        f"# Python: openai.OpenAI().chat.completions.create(model={target.model!r}, "
        'messages=[{"role": "user", "content": "Hello"}])'
    )
    return _exports(values) + "\n" + code


AGENTS: dict[str, Callable[[Target], str]] = {
    "claude": claude,
    "codex": codex,
    "opencode": opencode,
    "openai": openai,
}


def _exports(values: dict[str, str]) -> str:
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in values.items())


class _Down(Exception):
    """No server answers as one should."""


class _KeyRefused(Exception):
    """The server wants another key."""


def ask(url: str, key: str) -> Target:
    """What `/v1/models` says."""
    request = urllib.request.Request(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            card = json.load(response)["data"][0]
            return Target(url, key, str(card["id"]), int(card.get("max_model_len") or 32_768))
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise _KeyRefused(f"the server at {url} wants a key: give --api-key or set TSD_API_KEY") from error
        raise _Down(f"the server at {url} answers {error.code}") from error
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise _Down(f"no server answers at {url}: start one with `tsd start`") from error


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="tsd connect",
        description="Print the environment or configuration with which an agent uses a running server.",
        epilog='Example: eval "$(tsd connect claude)" && claude',
    )
    parser.add_argument("agent", choices=sorted(AGENTS), help="which agent")
    parser.add_argument("--url", default=DEFAULT_URL, help=f"the server (default {DEFAULT_URL})")
    parser.add_argument("--api-key", default="", help="its key, where it has one (default: TSD_API_KEY)")
    options = parser.parse_args(argv)
    url = options.url.rstrip("/").removesuffix("/v1")
    try:
        target = ask(url, options.api_key or os.environ.get("TSD_API_KEY", ""))
    except _Down as error:
        print(f"tsd connect: {error}", file=sys.stderr)
        return 3
    except _KeyRefused as error:
        print(f"tsd connect: {error}", file=sys.stderr)
        return 4
    print(AGENTS[options.agent](target))
    return 0
