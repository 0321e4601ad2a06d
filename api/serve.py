"""Runs one front from a listening socket and engine endpoints to its exit code.

The caller (the supervisor) binds the port and starts the engines; `run` answers from its first moment: `/health`
and `/ready` say what the engines are doing while they load. Of several fronts the first (the lead) decides when the
server is ready, drains and ends; a member lives until its lead is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from aiohttp import web

from tsd.api.app import make_app
from tsd.api.conversations import ConversationStore
from tsd.api.engines import EngineClient
from tsd.api.front import Front
from tsd.api.fronts import whole
from tsd.api.fronts.group import http_socket
from tsd.api.fronts.lead import Lead
from tsd.api.fronts.member import Member
from tsd.api.listener import Listener
from tsd.api.metrics import Metrics, request_log
from tsd.api.options import EngineEndpoint, ServerOptions
from tsd.api.response_store import ResponseStore
from tsd.api.routes.admin import SNAPSHOTS
from tsd.api.routing import Fleet
from tsd.api.streaming import Outbox
from tsd.api.tracing import Tracer
from tsd.engine.protocol import Progress, Ready

log = logging.getLogger("tsd.api")

GC_THRESHOLDS = (20_000, 20, 50)
EXIT_OK = 0
EXIT_FAULT = 1
EXIT_FORCED = 130
LEAD_SEES_S = 0.5
FAULT_LINGER_S = 1.0
"""After an engine's death: time in which probes see 503 and streams get their error."""


def _always(engine: int) -> bool:
    return True


def _nothing(*_: object) -> None:
    return None


@dataclass
class Hooks:
    """How a supervisor looks in. All are called in the front's loop and must not block."""

    engine_alive: Callable[[int], bool] = _always
    """Asked while an engine does not listen yet; False ends the wait."""
    on_progress: Callable[[int, Progress], None] = _nothing
    on_engine_ready: Callable[[int, Ready], None] = _nothing
    on_ready: Callable[[], None] = _nothing
    """Once, when requests are taken."""
    on_fault: Callable[[int, str], None] = _nothing
    """An engine died, or (engine −1) the tokenizer could not be read or another front is gone."""
    on_draining: Callable[[], None] = _nothing
    stop: asyncio.Event | None = None
    """Set it to drain and return, in place of a signal."""
    lost: asyncio.Future[str] | None = None
    """Resolved by the supervisor with what it lost: a front that died, however far it had come."""


async def run(
    options: ServerOptions,
    engines: list[EngineEndpoint],
    listen_socket: socket.socket,
    hooks: Hooks | None = None,
) -> int:
    """Serves until it is told to stop (0) or an engine dies (1). A second signal while draining forces (130)."""
    server = _Server(options, engines, hooks or Hooks())
    return await server.run(listen_socket)


class _Server:
    def __init__(self, options: ServerOptions, engines: list[EngineEndpoint], hooks: Hooks) -> None:
        self._hooks = hooks
        self._options = options
        self._stop = asyncio.Event()
        self._force = asyncio.Event()
        self._faulted = asyncio.Event()
        outbox = Outbox()
        clients = [EngineClient(endpoint, outbox, self._on_change) for endpoint in engines]
        for client in clients:
            client.on_progress = hooks.on_progress
        fleet = Fleet(clients, options.limits, options.routing_secret.encode())
        responses, conversations = ResponseStore(options.fronts), ConversationStore(options.fronts)
        self.front = Front(
            options, fleet, outbox, Metrics(options.name), responses=responses, conversations=conversations
        )
        self._lead: Lead | None = None
        self._member: Member | None = None
        self.front.metrics.log_requests = bool(options.request_log)
        if options.fronts > 1:
            self._join(options)
        if options.otlp_traces_endpoint:
            self.front.metrics.tracer = Tracer(options.otlp_traces_endpoint, options.name)
        self.front.idle.set()
        self._told_ready = False
        self._fault = ""
        self._warming: asyncio.Task[None] | None = None
        self._closing = False

    def _join(self, options: ServerOptions) -> None:
        """The group of fronts."""
        folder, count = options.runtime_dir, options.fronts
        if options.front == 0:
            self.front.group = self._lead = Lead(folder, count, options.stall_s)
            self._lead.on_lost = self._lost
        else:
            self.front.group = self._member = Member(folder, options.front, count, options.stall_s)
            self._member.acts.update(whole.acts(self.front))
        self.front.group.on_change = self._group_changed
        self.front.group.on_prefixes = self.front.fleet.learn
        self.front.fleet.on_learned = self.front.group.tell_prefixes

    async def run(self, listen_socket: socket.socket) -> int:
        handler = _set_request_log(self._options)
        app = make_app(self.front)
        runner = web.AppRunner(
            app,
            handler_cancellation=True,
            access_log=None,
            max_line_size=self._options.limits.header_bytes,
            max_field_size=self._options.limits.header_bytes,
            shutdown_timeout=1.0,
        )
        await runner.setup()
        assert runner.server is not None
        listener = Listener(runner.server, self._options.limits.header_seconds)
        self.front.heard = listener.heard
        await listener.start(listen_socket, _tls(self._options))
        if self._options.fronts > 1:
            await web.UnixSite(runner, http_socket(self._options.runtime_dir, self._options.front)).start()
        if self._lead is not None:
            await self._lead.listen()
        tasks = [asyncio.create_task(client.connect(self._hooks.engine_alive)) for client in self.front.fleet.engines]
        tasks.append(asyncio.create_task(self._load_text()))
        if self._member is not None:
            tasks.append(asyncio.create_task(self._member.connect()))
        if self._hooks.lost is not None:
            self._hooks.lost.add_done_callback(self._on_lost)
        tracer = self.front.metrics.tracer
        if tracer is not None:
            tasks.append(asyncio.create_task(tracer.run()))
        try:
            with self._signals():
                code = await self._until_told()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.front.state = "stopped"
            listener.close()
            self._closing = True
            await app[SNAPSHOTS].close()
            if tracer is not None:
                await tracer.close()
            if self._warming is not None:
                self._warming.cancel()
                await asyncio.gather(self._warming, return_exceptions=True)
            if self.front.grammars is not None:
                await self.front.grammars.close()
            if self.front.group is not None:
                await self.front.group.close()
            await runner.cleanup()
            for client in self.front.fleet.engines:
                client.close()
            if handler is not None:
                request_log.removeHandler(handler)
                handler.close()
        return code

    async def _until_told(self) -> int:
        ended = None if self._member is None else self._member.ended
        events = (self._stop, self._faulted, self._hooks.stop, ended)
        await _first([event for event in events if event is not None])
        if self._faulted.is_set():
            return await self._fail()
        if self._member is not None:
            return EXIT_OK  # the lead has drained, or is gone
        return await self._drain()

    async def _fail(self) -> int:
        """Streams get their error and probes see 503, for a moment."""
        if self._member is not None:
            # An engine's death is the lead's to see too, and its streams are to say so.
            await _first([self._member.ended], LEAD_SEES_S)
            self._member.tell_broken(self._fault)
            await _first([self._member.ended], FAULT_LINGER_S + 1.0)
            return EXIT_FAULT
        await whole.fail_all(self.front, self._fault)
        await asyncio.sleep(FAULT_LINGER_S)
        return EXIT_FAULT

    async def _drain(self) -> int:
        """No new requests; those in flight end, or are cut off after drain_s or by a second signal."""
        self._hooks.on_draining()
        done = asyncio.create_task(whole.drain(self.front))
        force = asyncio.create_task(self._force.wait())
        fault = asyncio.create_task(self._faulted.wait())
        try:
            await asyncio.wait([done, force, fault], timeout=self._options.drain_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in (done, force, fault):
                wait.cancel()
        if self._force.is_set():
            return EXIT_FORCED
        return EXIT_FAULT if self._faulted.is_set() else EXIT_OK

    def _on_change(self, client: EngineClient) -> None:
        if self._closing:
            return
        self.front.update_state()
        if client.state == "ready" and client.ready is not None:
            self._hooks.on_engine_ready(client.engine, client.ready)
        if client.state == "dead":
            log.error("engine %d is dead: %s", client.engine, client.fault)
            self._hooks.on_fault(client.engine, client.fault)
            self._fault = f"engine {client.engine}: {client.fault}"
            self._faulted.set()
        self._tell_ready()

    def _group_changed(self) -> None:
        self.front.update_state()
        self._tell_ready()

    def _on_lost(self, lost: asyncio.Future[str]) -> None:
        if not lost.cancelled():
            self._lost(lost.result())

    def _lost(self, why: str) -> None:
        """Another front is gone: the server ends as for this one."""
        if self._closing or self._faulted.is_set():
            return
        self.front.state = "failed"
        self._hooks.on_fault(-1, why)
        self._fault = "a front process of the server died"
        self._faulted.set()

    def _tell_ready(self) -> None:
        if self.front.state == "ready" and not self._told_ready:
            self._told_ready = True
            if self._options.freeze_gc:
                gc.collect()
                gc.freeze()
                gc.set_threshold(*GC_THRESHOLDS)
            self._hooks.on_ready()
            if self._options.grammars_after_s is not None and self.front.knows_grammars:
                self._warming = asyncio.create_task(self._warm_grammars(self._options.grammars_after_s))

    async def _warm_grammars(self, after_s: float) -> None:
        """Later than ready: it takes a second of one core, and memory that a short run never needs."""
        await asyncio.sleep(after_s)
        await self.front.start_grammars()

    async def _load_text(self) -> None:
        try:
            await self.front.load_text()
        except Exception as error:  # whatever is wrong with the model's text files, the server cannot serve
            log.error("the tokenizer or chat template cannot be used: %s", error)
            self._hooks.on_fault(-1, str(error))
            self.front.state = "failed"
            self._fault = f"the tokenizer or chat template cannot be used: {error}"
            self._faulted.set()
        self._tell_ready()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if not self._options.handle_signals:
            yield
            return
        loop = asyncio.get_running_loop()

        def told() -> None:
            (self._force if self._stop.is_set() else self._stop).set()

        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, told)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


async def _first(events: list[asyncio.Event], timeout_s: float | None = None) -> None:
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _tls(options: ServerOptions) -> ssl.SSLContext | None:
    if not options.tls_certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(options.tls_certificate, options.tls_key or None)
    return context


def _set_request_log(options: ServerOptions) -> logging.Handler | None:
    """One JSON line a request, without a prefix."""
    if not options.request_log:
        return None
    to_stderr = options.request_log == "-"
    handler = logging.StreamHandler(sys.stderr) if to_stderr else logging.FileHandler(options.request_log)
    handler.setFormatter(logging.Formatter("%(message)s"))
    request_log.addHandler(handler)
    request_log.propagate = False
    request_log.setLevel(logging.INFO)
    return handler
