"""What the front is told at its start. Frozen; resolved once by the command line. Knows no engine setting."""

from __future__ import annotations

import msgspec

from tsd.api.limits import Limits


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """Targets shown to operators."""

    ttft_ms: float = 500.0
    tpot_ms: float = 50.0


class EngineEndpoint(msgspec.Struct, frozen=True):
    """Where one engine listens."""

    engine: int
    path: str
    """Of its Unix socket. The file may not exist yet: the front waits for it."""


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One front. Empty strings and tuples mean `off` or `derive`."""

    model: str
    """The path that the engines load; the tokenizer and chat template come from it."""
    host: str = "127.0.0.1"
    port: int = 8000
    served_names: tuple[str, ...] = ()
    """The first is what `/v1/models` and answers say. Empty: the folder's or file's name."""
    tokenizer: str = ""
    """Another folder or file to take the tokenizer from."""
    chat_template: str = ""
    """A Jinja file or the template itself, in place of the model's."""
    api_keys: tuple[str, ...] = ()
    admin_key: str = ""
    """Empty: an ordinary key (or none, where none is set) opens the admin routes."""
    salt_per_key: bool = False
    """Keep each API key's prefix cache apart."""
    reasoning_parser: str = ""
    tool_call_parser: str = ""
    chat_template_keys: tuple[str, ...] = ("enable_thinking", "thinking", "reasoning_effort", "preserve_thinking")
    """Template keywords that a request may set."""
    max_model_len: int = 0
    """Bounds what the engines announce; 0 takes theirs."""
    limits: Limits = Limits()
    slo: Slo = Slo()
    request_timeout_s: float = 0.0
    """Deadline of each request; 0 takes limits.deadline_seconds."""
    ping_s: float = 5.0
    """Between comment lines on a stream that has nothing to say."""
    stall_s: float = 10.0
    """Silence after which an engine counts as stuck."""
    drain_s: float = 30.0
    """How long a draining front waits for its streams."""
    log_level: str = "info"
    request_log: str = "-"
    """Per-request JSON lines: `-` is standard error, empty is off, else a file."""
    otlp_traces_endpoint: str = ""
    """Where finished requests are traced to: an OTLP/HTTP URL, as http://127.0.0.1:4318/v1/traces."""
    cors_origins: tuple[str, ...] = ()
    tls_certificate: str = ""
    tls_key: str = ""
    grammars_after_s: float | None = 2.0
    """When constraints on the output are made ready for, in seconds after the start; None: when the first one comes."""
    front: int = 0
    """This front's number among `fronts`; the first leads."""
    fronts: int = 1
    runtime_dir: str = ""
    """Private folder with the sockets between fronts; needed where there are several."""
    routing_secret: str = ""
    """Keys what fronts tell each other of prompts; the same for all, at most 64 characters. Empty for one front."""
    handle_signals: bool = True
    """SIGTERM and SIGINT drain; a second one forces."""
    freeze_gc: bool = True
    """What is alive when the front is ready is never scanned again: a full collection over a vocabulary's tables
    would stop every stream for tens of milliseconds."""

    @property
    def name(self) -> str:
        """The model name in answers."""
        if self.served_names:
            return self.served_names[0]
        return self.model.rstrip("/").rsplit("/", 1)[-1] or "model"
