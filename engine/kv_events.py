"""Prefix-cache events of this engine for routers (`--kv-events-config`): from the scheduler to the publisher."""

from __future__ import annotations

import asyncio
import time

import zmq

from tsd.cache.event_config import EventsConfig, EventsConfigError, parse_config
from tsd.cache.event_publisher import EventPublisher
from tsd.engine.config import EngineConfig
from tsd.engine.errors import ConfigurationError
from tsd.scheduler.core import Scheduler


def parse_events(config: EngineConfig) -> EventsConfig | None:
    """None where events are off. Raises ConfigurationError."""
    try:
        return parse_config(config.kv_events_config)
    except EventsConfigError as error:
        raise ConfigurationError(str(error)) from error


class KvEventFeed:
    """Publishes what changed after each turn, and answers replays. Never blocks the loop."""

    REPLAY_S = 0.05
    BUSY_S = 0.002
    """Between two parts of a replay: the loop's turns come first."""

    def __init__(self, scheduler: Scheduler, config: EventsConfig, page_size: int, rank: int) -> None:
        self._scheduler = scheduler
        self._known = 0
        """Pages announced and not withdrawn."""
        try:
            self._publisher = EventPublisher(config, page_size, rank)
        except (zmq.ZMQError, ValueError) as error:
            raise ConfigurationError(f"--kv-events-config: {config.endpoint}: {error}") from error
        self._publisher.clear(time.time())
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        if self._publisher.replay_endpoint is not None:
            self._serve()

    def publish(self) -> None:
        changes = self._scheduler.take_kv_events()
        if changes:
            self._known += sum(1 if change[1] else -1 for change in changes)
            self._publisher.publish(changes, time.time())

    def cleared(self) -> None:
        """The cache was flushed: one word for all of it when nothing is left that a request still holds."""
        changes = self._scheduler.take_kv_events()
        self._known += sum(1 if change[1] else -1 for change in changes)
        if self._known:
            self._publisher.publish(changes, time.time())
        else:
            self._publisher.clear(time.time())

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._publisher.close()

    def _serve(self) -> None:
        self._publisher.serve_replays()
        pause = self.BUSY_S if self._publisher.replaying else self.REPLAY_S
        self._timer = self._loop.call_later(pause, self._serve)

    @property
    def endpoint(self) -> str:
        """Where subscribers connect."""
        return self._publisher.endpoint

    @property
    def replay_endpoint(self) -> str | None:
        """Where they ask for what they missed."""
        return self._publisher.replay_endpoint
