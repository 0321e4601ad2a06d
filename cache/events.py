"""Prefix-cache events for routers: what the tiers of this engine gained and lost, in vLLM's vocabulary.

Owns the events and their two encodings. Knows no sockets (`event_publisher`) and no requests. A batch is the array
[time, [event, ...], rank]. An event is a map with its name under "type", as vLLM publishes since June 2026
(vllm-project/vllm#42892), or, for routers of before, an array that begins with the name; readers of either kind skip
fields that they do not know. Block hashes are the page keys, which are keyed and random per start: equal prefixes of
two engines have other hashes, a router compares token ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

MEDIA = ("GPU", "CPU", "STORAGE")
"""Where a block lies: the device tier (whatever device it is), the host tier, the disk."""
DEVICE, HOST, DISK = range(3)
MASK = (1 << 64) - 1


class Change(NamedTuple):
    """One page in one tier, as `Scheduler.take_kv_events` tells it."""

    tier: int
    stored: bool
    key: bytes
    parent: bytes | None
    """None for the first page of a chain, and where nothing was stored."""
    tokens: bytes
    """Raw int32 ids of the page; empty where nothing was stored."""


class BlockStored(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    """Pages in chain order; `token_ids` are those of all of them."""

    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str, ...] | None] | None = None
    """Never told: what else is in a hash here (a tenant's salt) is nobody's business."""
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    block_hashes: list[int | bytes]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True):
    """Of every medium."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, frozen=True, array_like=True):
    ts: float
    events: Sequence[KvEvent | list[object]]
    data_parallel_rank: int | None = None


def as_array(event: KvEvent) -> list[object]:
    """The event as older releases encode it: its name, then its fields in order."""
    return [type(event).__name__, *msgspec.structs.astuple(event)]


def to_events(changes: Iterable[Change], block_size: int, whole_keys: bool = False) -> list[KvEvent]:
    """Changes as events, neighbours joined: a chain of stored pages is one event, a run of removals another.

    A hash is the key's low 64 bits, or all 16 bytes with `whole_keys`.
    """
    out: list[KvEvent] = []
    hashes: list[int | bytes] = []
    tokens: list[int] = []
    parent: bytes | None = None
    last: Change | None = None

    def name(key: bytes) -> int | bytes:
        return key if whole_keys else int.from_bytes(key[:8], "little") & MASK

    def close() -> None:
        if last is None:
            return
        medium = MEDIA[last.tier]
        if last.stored:
            above = None if parent is None else name(parent)
            out.append(
                BlockStored(
                    hashes,
                    above,
                    tokens,
                    block_size,
                    None,
                    medium,
                    None,
                    group_idx=0,
                    kv_cache_spec_kind="full_attention",
                )
            )
        else:
            out.append(BlockRemoved(hashes, medium, group_idx=0))

    for raw in changes:
        change = Change(*raw)
        joins = last is not None and last[:2] == change[:2] and (not change.stored or change.parent == last.key)
        if not joins:
            close()
            hashes, tokens, parent = [], [], change.parent
        hashes.append(name(change.key))
        if change.stored:
            tokens.extend(memoryview(change.tokens).cast("i"))
        last = change
    close()
    return out
