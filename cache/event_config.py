"""What `--kv-events-config` says: where events go and how they are written. Opens nothing."""

from __future__ import annotations

import msgspec


class EventsConfigError(ValueError):
    """`--kv-events-config` is not JSON of the known fields."""


class EventsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON of `--kv-events-config`; the first eight fields as operators know them from vLLM."""

    enable_kv_cache_events: bool = True
    publisher: str | None = None
    """zmq, which is what leaving it out means, or "null" for none."""
    endpoint: str = "tcp://127.0.0.1:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    """Batches kept for replay."""
    hwm: int = 100_000
    """Batches that wait for one slow subscriber before it loses some."""
    max_queue_size: int = 100_000
    """For compatibility: batches never wait to be published."""
    topic: str = ""
    block_hashes: str = "int"
    """int: the key's low 64 bits, as most subscribers expect; bytes: all 16."""
    event_format: str = "map"
    """map: as vLLM writes events and replays since June 2026; array: as releases before."""


def parse_config(text: str) -> EventsConfig | None:
    """The configuration, or None when it is empty or switches events off. Raises EventsConfigError."""
    if not text:
        return None
    try:
        config = msgspec.json.decode(text, type=EventsConfig)
    except msgspec.MsgspecError as fault:
        raise EventsConfigError(f"--kv-events-config: {fault}") from fault
    for name, known in (
        ("publisher", (None, "zmq", "null")),
        ("block_hashes", ("int", "bytes")),
        ("event_format", ("map", "array")),
    ):
        if getattr(config, name) not in known:
            words = " or ".join(word for word in known if word)
            raise EventsConfigError(f"--kv-events-config: {name} is {words}, not {getattr(config, name)}")
    for name in ("buffer_steps", "hwm", "max_queue_size"):
        if getattr(config, name) < 1:
            raise EventsConfigError(f"--kv-events-config: {name} is at least 1, not {getattr(config, name)}")
    return config if config.enable_kv_cache_events and config.publisher != "null" else None
