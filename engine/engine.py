"""One engine: scheduler, executor, the loop that drives them, and what fronts and operators may ask of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from tsd.cache.disk import DiskStore
from tsd.engine.config import EngineConfig
from tsd.engine.executor.base import Executor
from tsd.engine.grammars import GrammarIntake
from tsd.engine.kv_events import KvEventFeed, parse_events
from tsd.engine.loop import StepLoop
from tsd.engine.memory import MemoryPlan
from tsd.engine.operator_view import OperatorView
from tsd.engine.protocol import Abort, Command, Heartbeat, Ready, Reply, Submit, Vocabulary
from tsd.engine.requests import LiveRequests
from tsd.engine.stats import heartbeat_stats
from tsd.engine.trace import Trace
from tsd.engine.transport import Channel
from tsd.scheduler.core import Scheduler
from tsd.scheduler.types import SchedulerConfig

log = logging.getLogger("tsd.engine")


@dataclass
class EngineParts:
    """What a build gives: everything that an engine is made of, loaded and warmed up."""

    config: EngineConfig
    memory: MemoryPlan
    executor: Executor
    architecture: str
    model_name: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    phases: dict[str, float]
    info: dict[str, str]
    weights_version: bytes
    disk: DiskStore | None = None


class Engine:
    """Methods are called from the event loop's thread."""

    def __init__(
        self,
        parts: EngineParts,
        on_fault: Callable[[BaseException], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        config, memory = parts.config, parts.memory
        events = parse_events(config)
        self.parts = parts
        self.clock = clock
        self.born = clock()
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=memory.max_num_seqs,
                max_model_len=memory.max_model_len,
                num_pages=memory.num_pages,
                page_size=memory.page_size,
                chunked_prefill_size=memory.chunked_prefill_size,
                mixed_chunk_size=memory.mixed_chunk_size,
                prefill_hold=memory.prefill_hold,
                prefill_balance=memory.prefill_balance,
                mixed_batch=config.mixed_batch,
                prefix_cache=config.prefix_cache,
                max_in_flight=2 if config.overlap else 1,
                max_queued_requests=config.max_queued_requests,
                max_queued_tokens=config.max_queued_tokens,
                host_pages=memory.host_pages,
                disk_blocks=memory.disk_blocks if parts.disk is not None else 0,
                # Pages on disk are found again after a restart only under the secret that named them.
                hash_secret=parts.disk.secret if parts.disk is not None else b"",
                namespace=parts.disk.namespace if parts.disk is not None else parts.weights_version,
                kv_events=events is not None,
            )
        )
        if parts.disk is not None:
            self.scheduler.adopt_disk(parts.disk.stored_keys())
        self.grammars = GrammarIntake(parts.vocab_size)
        self.requests = LiveRequests(self.scheduler, parts.vocab_size, self.grammars, self.kick)
        self.operator_view = OperatorView(self.scheduler, self.requests.names, clock)
        self.trace = Trace(config.trace, config.engine) if config.trace else None
        self.events = KvEventFeed(self.scheduler, events, memory.page_size, config.engine) if events else None
        self.loop = StepLoop(self.scheduler, parts.executor, self.requests, on_fault, clock, self.trace, self.events)
        self._commands: dict[str, Callable[[str], bytes]] = {
            "pause": self._pause,
            "resume": self._resume,
            "drain": self._drain,
            "flush_cache": self._flush_cache,
            "abort": self._abort_by_name,
            "snapshot": lambda _: msgspec.json.encode(self.snapshot()),
            "requests": self._request_detail,
            "pages": self._pages,
            "kernels": lambda _: msgspec.json.encode(parts.executor.describe_kernels()),
            "log_level": self._log_level,
        }

    def ready(self, startup_s: float) -> Ready:
        parts, memory = self.parts, self.parts.memory
        return Ready(
            engine=parts.config.engine,
            model=parts.model_name,
            architecture=parts.architecture,
            vocab_size=parts.vocab_size,
            max_model_len=memory.max_model_len,
            page_size=memory.page_size,
            num_pages=memory.num_pages,
            max_num_seqs=memory.max_num_seqs,
            max_total_tokens=memory.total_tokens,
            device=parts.config.device,
            dtype=parts.dtype,
            startup_s=startup_s,
            phases=parts.phases,
            eos_token_ids=parts.eos_token_ids,
            info=parts.info,
        )

    def submit(self, channel: Channel[Any], message: Submit) -> None:
        self.requests.submit(channel, message, self.clock())
        self.loop.kick()

    def kick(self) -> None:
        self.loop.kick()

    def learn_vocabulary(self, vocabulary: Vocabulary) -> None:
        """What grammars are compiled for."""
        self.grammars.learn(vocabulary)

    def abort(self, channel: Channel[Any], message: Abort) -> None:
        self.requests.abort(channel, message, self.clock())
        self.loop.kick()

    def front_closed(self, channel: Channel[Any]) -> None:
        self.requests.closed(channel, self.clock())
        self.loop.kick()

    def heartbeat(self) -> Heartbeat:
        self.loop.tick()
        view = self.scheduler.snapshot()
        graphs = self.parts.executor.statistics().get("graphs") or {}
        return Heartbeat(
            step=self.loop.last_step,
            running=int(view["running"]),
            waiting=int(view["waiting"]),
            queued_tokens=int(self.scheduler.queued_tokens),
            stats={
                **heartbeat_stats(view, int(graphs.get("compilations_after_ready", 0))),
                **self.loop.step_tokens.stats(),
            },
        )

    def command(self, command: Command) -> Reply:
        """Runs an operator's order. Unknown ones and bad arguments are answered, never raised."""
        run = self._commands.get(command.name)
        if run is None:
            return Reply(command.serial, False, f"unknown command {command.name}".encode())
        try:
            return Reply(command.serial, True, run(command.argument))
        except ValueError as error:
            return Reply(command.serial, False, str(error).encode())
        except Exception:
            # An operator's order must not end the engine under its streams; what broke is in the log.
            log.exception("the command %s failed", command.name)
            return Reply(command.serial, False, f"the command {command.name} failed; the log says why".encode())

    def snapshot(self) -> dict[str, Any]:
        """The operator's view; the console's schema names the fields."""
        prefill, decode, tokens = self.loop.last_batch
        view = dict(self.scheduler.snapshot())
        view.update(
            engine=self.parts.config.engine,
            device=self.parts.config.device,
            state="paused" if self.loop.paused else "draining" if self.requests.draining else "ready",
            step=self.loop.last_step,
            page_size=self.parts.memory.page_size,
            dtype=self.parts.dtype,
            phases=self.parts.phases,
            batch={"prefill_rows": prefill, "decode_rows": decode, "tokens": tokens, "padding": 0},
            **self.loop.pace.percentiles(),
            **self.operator_view.parts(),
        )
        statistics = self.parts.executor.statistics()
        view["graphs"] = statistics.get("graphs")
        if "padding" in statistics:
            view["batch"]["padding"] = statistics["padding"]
        return view

    def close(self) -> None:
        self.loop.close()
        self.grammars.close()
        if self.events is not None:
            self.events.close()
        self.parts.executor.close()
        if self.trace is not None:
            self.trace.close()

    def _pause(self, _: str) -> bytes:
        self.loop.paused = True
        return b"{}"

    def _resume(self, _: str) -> bytes:
        self.loop.paused = False
        self.loop.kick()
        return b"{}"

    def _drain(self, _: str) -> bytes:
        self.requests.draining = True
        return b"{}"

    def _flush_cache(self, argument: str) -> bytes:
        """Argument "disk": the blocks on disk too, which other processes may use."""
        if argument not in ("", "disk"):
            raise ValueError(f"flush_cache takes nothing or disk, not {argument}")
        self.scheduler.flush_cache(disk=argument == "disk")
        if self.events is not None:
            self.events.cleared()
        # The disk's blocks are removed by a move.
        self.loop.kick()
        return b"{}"

    def _abort_by_name(self, name: str) -> bytes:
        found = [self.scheduler.abort(key, self.clock()) for key in self.requests.names.keys_of(name)]
        self.loop.kick()
        if not any(found):
            raise ValueError(f"no request {name} is running here")
        return b"{}"

    def _request_detail(self, name: str) -> bytes:
        """The first sequence's, where a request has several."""
        key = next(iter(self.requests.names.keys_of(name)), None)
        timeline = self.operator_view.timeline(key) if key is not None else None
        if key is None or timeline is None:
            raise ValueError(f"no request {name} is known here")
        live = self.requests.find(key)
        detail = {
            "id": name,
            "state": self.scheduler.state_of(key) or "finished",
            "client": live.submit.client if live is not None else "",
            "timeline": timeline,
        }
        return msgspec.json.encode(detail)

    def _pages(self, argument: str) -> bytes:
        return msgspec.json.encode(self.operator_view.pages(_number(argument)))

    def _log_level(self, argument: str) -> bytes:
        level = argument.upper()
        if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            raise ValueError("the log level must be debug, info, warning or error")
        logging.getLogger().setLevel(level)
        return b"{}"


def _number(argument: str) -> int:
    if not argument.isdigit():
        raise ValueError(f"expected a number, not {argument!r}")
    return int(argument)
