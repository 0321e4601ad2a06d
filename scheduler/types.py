"""The scheduler's vocabulary: what goes in, what comes out. Plain data, no torch, no wall time.

Steps: `next_plan` hands out at most `max_in_flight` plans that have not been reported landed. A plan made while
another is in flight assumes that no row of that one stops by its token; when one did, the row's token of the
later step is dropped by `advance` and is never emitted, counted or cached.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class SchedulerConfig:
    """Sizes in tokens unless the name says otherwise."""

    max_num_seqs: int
    """Request slots; a slot indexes the executor's per-row state while a request runs."""
    max_model_len: int
    num_pages: int
    page_size: int = 16
    chunked_prefill_size: int = 2048
    """Token budget of one step, decode rows included."""
    mixed_chunk_size: int = 0
    """The same of a step that has decode rows, which wait for its prefill rows; 0 is chunked_prefill_size. Grows to
    8 tokens for each decode row, so that prefill keeps its share of the work when many rows decode."""
    prefill_hold: int = 0
    """Steps that may decode while prompts wait, so that these are computed together: see `pacing`. 0: each step takes
    all that `mixed_chunk_size` allows."""
    prefill_balance: int = 0
    """Tokens whose arithmetic takes as long as the rest of a step. Where prompts are held, a step that decodes takes
    twice as many, within mixed_chunk_size; 0 is no such bound."""
    mixed_batch: bool = True
    prefix_cache: bool = True
    max_in_flight: int = 2
    max_queued_requests: int = 4096
    max_queued_tokens: int = 16_777_216
    overtake_window: int = 16
    """How many waiting requests a small one may pass when the head does not fit, and how often one may be passed."""
    ageing_s: float = 30.0
    """A request blocked for so long is passed by no smaller one; and each such time in the queue counts as a level of
    priority against those that arrive later."""
    room_to_grow: int = 1
    """Pages left free for each running row when a request starts, twice as many when it was pushed out once. With 0,
    what was just admitted is pushed out again by the next rows that grow."""
    host_pages: int = 0
    disk_blocks: int = 0
    disk_threshold_pages: int = 4
    hash_secret: bytes = b""
    """Random per start when empty."""
    namespace: bytes = b""
    """Weights version: pages of another never match."""
    kv_events: bool = False
    """Record what the tiers gain and lose, for `take_kv_events`."""
    share_in_flight: bool = True
    """Let a request wait for a prefix that a running prefill is computing, when that spares it most of its own."""
    debug_retract_every: int = 0
    """Tests: retract the latest arrival (never the oldest) every that many steps, pages short or not."""


@dataclass
class RequestSpec:
    """A request as the control plane sees it."""

    request_id: int
    """Unique among live requests; engine-internal."""
    prompt: np.ndarray
    """int32 [P], P >= 1."""
    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    priority: int = 0
    salt: bytes = b""
    deadline: float | None = None
    """On the scheduler's clock."""
    payload: object = None
    """Carried, never looked at: the executor's and front's per-request data."""


class Admission(NamedTuple):
    """`slot` now belongs to this request: the executor loads its parameters before the step runs.

    `num_prompt` is the original prompt's length; `num_tokens` includes tokens generated before a retraction, so
    the next token to be sampled has index `num_tokens - num_prompt`. `history` holds all num_tokens ids.
    """

    slot: int
    request_id: int
    num_prompt: int
    num_tokens: int
    num_cached: int
    history: np.ndarray
    payload: object


class Move(NamedTuple):
    """A copy between tiers; its completion comes back as `MoveDone`."""

    move_id: int
    kind: str
    """load_back (host→device), write_back (device→host), prefetch (disk→host), store (host→disk), discard (disk).

    Pages are in `sources` and `targets`; the disk's end is -1 there, its blocks go by their `keys`. load_back and
    write_back start after every step launched before this plan, on their own streams.
    """
    sources: np.ndarray
    targets: np.ndarray
    keys: list[bytes]


@dataclass(slots=True)
class ExecutionPlan:
    """One step. Arrays are views that stay valid until the plan lands. Decode rows come first.

    The executor applies, in this order: `released` (a slot freed and given away again since the last plan is in both),
    `admitted`, the page-table changes (each cell at most once), `zero_pages`, the moves, the rows. Every plan is
    reported landed, in step order, also one without rows (it only carries moves).
    """

    step: int
    num_rows: int
    num_decode: int
    num_tokens: int
    slots: np.ndarray
    """int32 [B] request slot of each row."""
    starts: np.ndarray
    """int32 [B] position of the row's first token in this step."""
    counts: np.ndarray
    """int32 [B] tokens of the row in this step (1 for decode rows)."""
    samples: np.ndarray
    """uint8 [B] 1 where a token is sampled (decode rows, and the chunk that ends a prompt)."""
    prefill_tokens: np.ndarray
    """int32 ids of the prefill rows' tokens, concatenated; decode rows read theirs from the slot's last token."""
    admitted: list[Admission]
    table_slots: np.ndarray
    """int32 [K] page-table changes since the last plan: table[slot][index] = page."""
    table_index: np.ndarray
    table_pages: np.ndarray
    released: np.ndarray
    """int32 slots freed since the last plan."""
    zero_pages: np.ndarray
    moves: list[Move] = field(default_factory=list)
    waits: tuple[int, ...] = ()
    """Load-backs of earlier plans that rows of this step read and that are not done: before a layer of the step runs,
    the executor waits, on the device, until their pages of that layer are in place. Their MoveDone comes before the
    step's StepLanded. Steps behind this one need not wait again.
    """


class StepLanded(NamedTuple):
    """`tokens[i]` is row i's sampled token (ignored where samples[i] is 0). `failed` rows end with an error.

    After a load-back that failed, what the steps that waited for it give to its request is dropped, and it starts anew.
    """

    step: int
    tokens: np.ndarray
    failed: tuple[int, ...] = ()


class LayersLanded(NamedTuple):
    """The first layers of a load_back are in place and the rest is on its way in order: its request may run, in steps
    that wait for it. Optional: without it, the request runs after MoveDone."""

    move_id: int


class MoveDone(NamedTuple):
    move_id: int
    ok: bool
    good: int = -1
    """prefetch only: how many leading pages are sound; -1 means all when ok, else none."""


class FinishedRequest(NamedTuple):
    """The terminal event. Reasons: stop, length, abort, deadline, error."""

    request_id: int
    reason: str
    num_prompt: int
    num_cached: int
    num_output: int
    stop_token: int
    queue_s: float
    prefill_s: float
    decode_s: float
    retractions: int
    retracted_s: float
    message: str
    payload: object


class StepOutcome(NamedTuple):
    """What a landed step gave: emitted token i went to request_ids[i], from batch row rows[i] of that step."""

    step: int
    request_ids: np.ndarray
    """int64 [K]."""
    tokens: np.ndarray
    """int32 [K]; a stop token that matched is emitted too (the front strips it from the text)."""
    rows: np.ndarray
    """int32 [K]."""


class Refused(Exception):
    """A request that can never run, or not now. `code`: context_length, never_fits, queue_full, duplicate_id."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class SchedulerFault(RuntimeError):
    """The scheduler contradicts itself, or was driven wrongly (a step landed out of order): our bug."""
