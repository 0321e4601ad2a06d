"""The messages between front and engine, one module, append-only.

Every message is a tagged `msgspec.Struct` encoded as msgpack and framed by a 4-byte little-endian length on a
Unix stream socket. Arrays travel as raw little-endian bytes (`array('q').tobytes()`), never as lists of boxed
integers. A front numbers its own requests: an id is unique per connection while the request lives. To operators a
request is known by its name, which is unique over fronts.

Front to engine: `Submit`, `Abort`, `Command`, `Vocabulary`.
Engine to front: `Progress`*, then `Ready`, then one `StepOutput` a step, `Reply` to each `Command`, `Heartbeat`
when idle, and `Fatal` before the connection closes for a fault.
"""

from __future__ import annotations

import msgspec

PROTOCOL_VERSION = 1


class SamplingParams(msgspec.Struct, frozen=True, array_like=True):
    """How one row is sampled. Values are validated by the front's limits table before they are sent."""

    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    """0 <= seed < 2**63. None draws one per request; the stream is a counter keyed by (seed, token index)."""
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    logprobs: int = -1
    """-1 none, 0 the sampled token's only, k > 0 also the k most likely."""


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """A constraint on the output, already checked by the front."""

    kind: str
    """json_schema, json_object, regex, ebnf, choice or structural_tag."""
    text: str
    after_reasoning: bool = False
    """The constraint begins only after `reasoning_end` was generated."""
    reasoning_end: tuple[int, ...] = ()
    """Token ids that end reasoning."""


class Submit(msgspec.Struct, tag="submit"):
    """A request, in token ids."""

    id: int
    prompt: bytes
    """int32 token ids."""
    max_tokens: int
    sampling: SamplingParams
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    """Includes the model's end-of-sequence ids unless the client asked to ignore them."""
    priority: int = 0
    """Lower runs earlier."""
    cache_salt: str | None = None
    deadline_s: float | None = None
    """Seconds from arrival after which the request is ended with reason `deadline`."""
    prompt_logprobs: int = -1
    grammar: Grammar | None = None
    client: str = ""
    """Shown to operators."""
    name: str = ""
    """What the request is called outside: unique over fronts; the sequences of one client request share it."""


class Vocabulary(msgspec.Struct, tag="vocabulary"):
    """What each token id stands for. Sent once, before the first request with a grammar: engines hold no text."""

    pieces: list[bytes]
    """Empty for special tokens: a grammar never allows them, except those that end the output."""
    stop_token_ids: tuple[int, ...]


class Abort(msgspec.Struct, tag="abort"):
    """Ends a request. `stop` is for the front's own stop strings: it is counted as a normal finish."""

    id: int
    reason: str = "abort"


class Command(msgspec.Struct, tag="command"):
    """An operator's order: pause, resume, drain, flush_cache, snapshot, requests, kernels, log_level, abort."""

    serial: int
    name: str
    argument: str = ""


ToEngine = Submit | Abort | Command | Vocabulary


class Progress(msgspec.Struct, tag="progress"):
    """Start-up phases: weights, kernels, kv, graphs, warmup."""

    phase: str
    detail: str
    elapsed_s: float
    fraction: float | None = None


class Ready(msgspec.Struct, tag="ready"):
    """What the front must know of the engine to validate and route requests."""

    engine: int
    model: str
    architecture: str
    vocab_size: int
    max_model_len: int
    page_size: int
    num_pages: int
    max_num_seqs: int
    max_total_tokens: int
    device: str
    dtype: str
    startup_s: float
    phases: dict[str, float]
    eos_token_ids: tuple[int, ...]
    info: dict[str, str] = {}


class TokenLogprobs(msgspec.Struct, array_like=True):
    """For one emitted token: its log-probability, rank (0 is most likely) and the most likely alternatives."""

    logprob: float
    rank: int
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


class Started(msgspec.Struct, array_like=True):
    """A request left the queue."""

    id: int
    prompt_tokens: int
    cached_tokens: int
    queue_s: float


class Finished(msgspec.Struct, array_like=True):
    """The one terminal event of a request."""

    id: int
    reason: str
    """stop, length, abort, deadline, refused or error."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    stop_token: int = -1
    """The stop token id that matched, or -1."""
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    retractions: int = 0
    retracted_s: float = 0.0
    message: str = ""
    """For refused and error: a sentence for the client."""
    code: str = ""
    """For refused: context_length, queue_full, draining, never_fits, duplicate_id, …"""


class StepOutput(msgspec.Struct, tag="step"):
    """Everything one step tells one front. `ids[i]` received `tokens[i]`; a request may appear several times."""

    step: int
    ids: bytes = b""
    """int64."""
    tokens: bytes = b""
    """int32."""
    started: list[Started] = []
    finished: list[Finished] = []
    logprobs: dict[int, TokenLogprobs] = {}
    """Index into `ids` → the token's log-probabilities, for requests that asked."""
    prompt_logprobs: dict[int, list[TokenLogprobs | None]] = {}
    """Request id → one entry a prompt token (the first is None), sent before its first token."""


class Heartbeat(msgspec.Struct, tag="beat"):
    """Sent at least every second: the engine's loop turns. `step` stands still only while it is idle."""

    step: int
    running: int
    waiting: int
    queued_tokens: int
    stats: dict[str, float] = {}
    """Cumulative counters and gauges for metrics; names as in `EngineStats`."""


class Reply(msgspec.Struct, tag="reply"):
    serial: int
    ok: bool
    payload: bytes = b""
    """JSON, or an error sentence when not ok."""


class Fatal(msgspec.Struct, tag="fatal"):
    """The engine ends. Every open stream gets `message` as an error."""

    message: str
    code: int = 1


ToFront = Progress | Ready | StepOutput | Heartbeat | Reply | Fatal
