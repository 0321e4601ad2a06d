"""The console's Textual application: snapshot → mailbox → frame → the screen in sight.

Owns the event loop's side of things: the source's task, painting at most twice a second, the operator's keys, and the
calls behind them. Widgets never do I/O; this does, in workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Protocol

from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widgets import ContentSwitcher

from tsd.console.actions import ABORT, ACTIONS, DRAIN, FLUSH, LOG_LEVEL, PAUSE, RESUME, Action
from tsd.console.errors import CommandError
from tsd.console.events.pane import EventsPane
from tsd.console.flags import THEMES
from tsd.console.history import Frame, History
from tsd.console.kernels.pane import KernelsPane
from tsd.console.link import Link, LinkState
from tsd.console.mailbox import Mailbox
from tsd.console.messages import ActionAsked, BinChosen, MailArrived, RequestWanted, ScreenAsked
from tsd.console.overview.pane import OverviewPane
from tsd.console.pages.pane import PagesPane
from tsd.console.record import Recorder
from tsd.console.requests.pane import RequestsPane
from tsd.console.shell.bars import SCREENS, Banner, BottomBar, Notice, Tabs, TopBar, banner_needed
from tsd.console.shell.dialogs import ChooseLevel, Confirm, Help
from tsd.console.shell.pane import Pane
from tsd.console.source import Source
from tsd.console.theme import themes

PAINT_S = 0.5
SETTLE_S = 0.15


class Operates(Protocol):
    """What acts on the server: `actions.Operator`, or the demo's."""

    read_only: bool

    async def act(self, action: Action, body: dict[str, str] | None = None) -> str: ...
    async def request_detail(self, request_id: str) -> dict[str, Any]: ...
    async def page_detail(self, engine: int, page_bin: int) -> dict[str, Any]: ...
    async def kernels(self) -> list[Any]: ...


class ConsoleApp(App[int]):
    TITLE = "tsd console"
    CSS_PATH = "console.tcss"
    HORIZONTAL_BREAKPOINTS: list[tuple[int, str]] | None = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS: list[tuple[int, str]] | None = [(0, "-short"), (34, "-tall")]  # noqa: RUF012

    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(n), f"go('{name}')", title, show=False) for n, (name, title) in enumerate(SCREENS, 1)),
        Binding("q,ctrl+c,ctrl+q", "quit", "quit", show=False),
        Binding("question_mark,f1", "help", "help", show=False),
        Binding("space", "freeze", "freeze", show=False),
        Binding("t", "next_theme", "theme", show=False),
        Binding("left_square_bracket", "engine(-1)", "previous engine", show=False),
        Binding("right_square_bracket", "engine(1)", "next engine", show=False),
        Binding("P", "act('pause')", "pause", show=False),
        Binding("R", "act('resume')", "resume", show=False),
        Binding("D", "act('drain')", "drain", show=False),
        Binding("F", "act('flush')", "flush cache", show=False),
        Binding("L", "act('log')", "log level", show=False),
        Binding("ctrl+z", "suspend_process", "to the shell", show=False),
    ]

    def __init__(
        self,
        source: Source,
        operator: Operates | None,
        *,
        url: str,
        theme: str = "night",
        recorder: Recorder | None = None,
        replay: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self.animation_level = "none"
        self.source = source
        self.operator = operator
        self.recorder = recorder
        self.first_theme = theme
        self.history = History(Link(LinkState.CONNECTING, url, "", clock()), clock)
        self.history.frame = replace(
            self.history.frame,
            read_only=operator is None or operator.read_only,
            recording=recorder.path.name if recorder else "",
            replay=replay,
        )
        self.mailbox = Mailbox(lambda: self.post_message(MailArrived()), recorder.snapshot if recorder else None)
        self.paints = 0
        self._shown = SCREENS[0][0]
        self._painted = 0.0
        self._waiting = False
        self._told_recording = False
        self._task: asyncio.Task[None] | None = None
        for found in themes():
            self.register_theme(found)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return {"edge": "#2a3650"}

    @property
    def frame(self) -> Frame:
        return self.history.frame

    def compose(self) -> ComposeResult:
        yield TopBar()
        yield Tabs()
        yield Banner()
        with Container(id="notice-body"):
            yield Notice()
        with ContentSwitcher(initial=self._shown, id="screens"):
            yield OverviewPane(id="overview")
            yield PagesPane(id="pages")
            yield RequestsPane(id="requests")
            yield EventsPane(id="events")
            yield KernelsPane(id="kernels")
        yield BottomBar()

    def on_mount(self) -> None:
        self.theme = self.first_theme
        self.theme_changed_signal.subscribe(self, lambda _: self.show())
        self.query_one("#screens").display = False
        self.show()
        self._task = asyncio.create_task(self._follow(), name="console-source")
        self.set_interval(1.0, self._age)

    async def _follow(self) -> None:
        """Runs the source; a fault of it that is no ConsoleError is ours and ends the console with its traceback."""
        try:
            await self.source.run(self.mailbox)
        except Exception:
            self._handle_exception_of_source()
            raise

    def _handle_exception_of_source(self) -> None:
        import sys

        error = sys.exc_info()[1]
        if isinstance(error, Exception):
            self._handle_exception(error)

    async def on_unmount(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._task
        if self.recorder is not None:
            self.recorder.close()

    # -- painting -----------------------------------------------------------------------------------------------

    def on_mail_arrived(self) -> None:
        """Paints now, or when half a second has passed since the last time."""
        if self._waiting:
            return
        wait = self._painted + PAINT_S - time.monotonic()
        if wait <= 0:
            self.paint()
        else:
            self._waiting = True
            self.set_timer(wait, self.paint)

    def paint(self) -> None:
        self._waiting = False
        self._painted = time.monotonic()
        self.paints += 1
        delivery = self.mailbox.take()
        if delivery.link is not None and self.recorder is not None:
            self.recorder.link(delivery.link)
        self.history.absorb(delivery)
        self._say_recording_trouble()
        self.show(new_data=True)

    def _age(self) -> None:
        """Ages grow while nothing arrives."""
        if not self.frame.link.live:
            self.history.frame = replace(self.frame, now=self.history.clock())
            self._bars()

    def _say_recording_trouble(self) -> None:
        if self.recorder is not None and self.recorder.error and not self._told_recording:
            self._told_recording = True
            self.history.frame = replace(self.frame, recording="")
            self.notify(self.recorder.error, severity="error", timeout=10)

    def show(self, new_data: bool = False) -> None:
        """Hands the frame to the bars and to the screen in sight. A frozen screen takes no new data."""
        self._bars()
        has = self.frame.snapshot is not None
        body, screens = self.base.query_one("#notice-body"), self.base.query_one("#screens")
        if screens.display != has:
            screens.display, body.display = has, not has
            if has:
                self._pane().focus_first()
        if has and not (new_data and self.frame.frozen):
            self._pane().frame = None
            self._pane().frame = self.frame

    @property
    def base(self) -> Screen[Any]:
        """The screen under any dialog."""
        return self.screen_stack[0]

    def _bars(self) -> None:
        for kind in (TopBar, Tabs, Banner, Notice, BottomBar):
            with contextlib.suppress(NoMatches):
                self.base.query_one(kind).frame = self.frame
        with contextlib.suppress(NoMatches):
            banner, needed = self.base.query_one(Banner), banner_needed(self.frame)
            if banner.display != needed:
                banner.display = needed

    def _pane(self) -> Pane:
        return self.base.query_one(f"#{self._shown}", Pane)

    # -- looking ------------------------------------------------------------------------------------------------

    def action_go(self, name: str) -> None:
        self._shown = name
        self.base.query_one("#screens", ContentSwitcher).current = name
        self.base.query_one(Tabs).show(name)
        self.base.query_one(BottomBar).show(name)
        self.show()
        if self.frame.snapshot is not None:
            self._pane().focus_first()
        if name == "kernels" and not self.frame.kernels and self.operator is not None:
            self._background(self._fetch_kernels, group="kernels", exclusive=True)

    def on_screen_asked(self, message: ScreenAsked) -> None:
        self.action_go(message.name)

    def action_engine(self, step: int) -> None:
        engines = self.frame.snapshot.engines if self.frame.snapshot else ()
        if engines:
            self.history.frame = replace(
                self.frame, chosen=(min(self.frame.chosen, len(engines) - 1) + step) % len(engines)
            )
            self.show()

    def action_freeze(self) -> None:
        self.history.frame = replace(self.frame, frozen=not self.frame.frozen)
        self.show()

    def action_next_theme(self) -> None:
        place = THEMES.index(self.theme) if self.theme in THEMES else -1
        self.theme = THEMES[(place + 1) % len(THEMES)]

    def action_help(self) -> None:
        self.push_screen(Help())

    def on_request_wanted(self, message: RequestWanted) -> None:
        self._background(partial(self._fetch_request, message.request_id), group="request", exclusive=True)

    def on_bin_chosen(self, message: BinChosen) -> None:
        self._background(partial(self._fetch_bin, message.engine, message.page_bin), group="bin", exclusive=True)

    async def _fetch_request(self, request_id: str) -> None:
        pane = self.base.query_one(RequestsPane)
        if self.operator is None:
            pane.tell(request_id, None, "A recording holds no timelines.")
            return
        await asyncio.sleep(SETTLE_S)
        try:
            pane.tell(request_id, await self.operator.request_detail(request_id))
        except CommandError as error:
            pane.tell(request_id, None, str(error))

    async def _fetch_bin(self, engine: int, page_bin: int) -> None:
        pane = self.base.query_one(PagesPane)
        if self.operator is None:
            pane.tell(engine, page_bin, None, "a recording holds no owners")
            return
        await asyncio.sleep(SETTLE_S)
        try:
            pane.tell(engine, page_bin, await self.operator.page_detail(engine, page_bin))
        except CommandError as error:
            pane.tell(engine, page_bin, None, str(error))

    async def _fetch_kernels(self) -> None:
        assert self.operator is not None
        try:
            self.history.learn_kernels(await self.operator.kernels())
        except CommandError as error:
            self.notify(str(error), severity="warning")
        else:
            self.show()

    def _background(self, work: Callable[[], Coroutine[None, None, None]], group: str, exclusive: bool = False) -> None:
        """Runs `work` beside the event loop's other tasks; a newer one of an exclusive group ends the older."""
        # Its annotation has a type variable that None does not bind.
        self.run_worker(work, group=group, exclusive=exclusive)  # type: ignore[arg-type]

    # -- acting -------------------------------------------------------------------------------------------------

    def action_act(self, name: str) -> None:
        self.ask({"pause": PAUSE, "resume": RESUME, "drain": DRAIN, "flush": FLUSH, "log": LOG_LEVEL}[name])

    def on_action_asked(self, message: ActionAsked) -> None:
        self.ask(message.action, message.subject)

    def ask(self, action: Action, subject: str | None = None) -> None:
        """Asks to confirm an action, and does it."""
        if self.operator is None:
            self.notify("There is no server behind a recording.", severity="warning")
        elif self.operator.read_only:
            self.notify("This console is read-only: start it without --read-only to act.", severity="warning")
        elif action is LOG_LEVEL:
            self.push_screen(ChooseLevel(), self._level_chosen)
        elif action is ABORT and subject is None:
            self.notify("Select a request first: 3, then x.", severity="warning")
        else:
            self.push_screen(Confirm(action, subject), partial(self._confirmed, action, subject))

    def _level_chosen(self, level: str | None) -> None:
        if level:
            self._background(partial(self._act, LOG_LEVEL, {"level": level}), group="action")

    def _confirmed(self, action: Action, subject: str | None, yes: bool | None) -> None:
        if yes:
            body = {"request_id": subject} if action is ABORT and subject else {}
            self._background(partial(self._act, action, body), group="action")

    async def _act(self, action: Action, body: dict[str, str]) -> None:
        assert self.operator is not None
        what = " ".join([action.title, *body.values()])
        try:
            answer = await self.operator.act(action, body)
        except CommandError as error:
            self.notify(f"{what}: {error}", severity="error", timeout=8)
        else:
            self.notify(f"{what}: {answer}")

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """What the command palette offers."""
        selected = self.base.query_one(RequestsPane).selected
        for action in ACTIONS:
            subject = selected if action is ABORT else None
            title = f"{action.title} {subject}" if subject else action.title
            yield SystemCommand(title, f"{action.warning} ({action.key})", partial(self.ask, action, subject))
        for number, (name, title) in enumerate(SCREENS, 1):
            yield SystemCommand(f"Show {title}", f"the screen ({number})", partial(self.action_go, name))
        for name in THEMES:
            yield SystemCommand(f"Theme {name}", "colours (t goes through them)", partial(setattr, self, "theme", name))
        yield SystemCommand("Freeze or go on", "stop taking new numbers (space)", self.action_freeze)
        yield SystemCommand("Keys", "every key (?)", self.action_help)
        yield SystemCommand("Quit", "leave the console (q)", self.action_quit)
