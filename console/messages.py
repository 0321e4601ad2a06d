"""Every message that travels inside the console. Widgets say what happened; the app decides what it means."""

from __future__ import annotations

from textual.message import Message

from tsd.console.actions import Action


class MailArrived(Message):
    """The mailbox has something: sent once until it is emptied."""


class ScreenAsked(Message):
    """The operator wants another screen."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


class RowChosen(Message):
    """The cursor of a table is on another row. `opened` by Enter or a double click."""

    def __init__(self, key: str | None, opened: bool = False) -> None:
        super().__init__()
        self.key = key
        self.opened = opened


class SortAsked(Message):
    """The operator clicked a column's title."""

    def __init__(self, column: str) -> None:
        super().__init__()
        self.column = column


class BinChosen(Message):
    """The cursor of the page map is on another bin."""

    def __init__(self, engine: int, page_bin: int) -> None:
        super().__init__()
        self.engine = engine
        self.page_bin = page_bin


class RequestWanted(Message):
    """A request's timeline is to be fetched."""

    def __init__(self, request_id: str) -> None:
        super().__init__()
        self.request_id = request_id


class ActionAsked(Message):
    """The operator wants an action; the app asks to confirm it."""

    def __init__(self, action: Action, subject: str | None = None) -> None:
        super().__init__()
        self.action = action
        self.subject = subject
