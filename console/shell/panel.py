"""A titled box whose content is a pure function of the frame. Owns when to redraw; its subclasses own what."""

from __future__ import annotations

from collections.abc import Callable

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.geometry import Region, Size
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from tsd.console.draw import ink
from tsd.console.history import Frame
from tsd.console.palette import NIGHT, PALETTES, Palette


def palette_of(widget: Widget) -> Palette:
    """The palette of the theme in use."""
    return PALETTES.get(widget.app.theme, NIGHT)


class Panel(Widget):
    """Subclasses give `lines`; the panel is as high as they are unless its CSS says otherwise."""

    DEFAULT_CSS = "Panel { height: auto; }"

    frame: reactive[Frame | None] = reactive(None, init=False, repaint=False)
    title = ""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.border_title = self.title or None
        self._height = 0
        self._lines: list[Text] = []
        self._shown: dict[int, Strip] = {}

    def lines(self, frame: Frame, width: int, height: int, palette: Palette) -> list[Text]:
        """What to show in `width` columns. `height` is 0 when the panel may be as high as it likes."""
        raise NotImplementedError

    def watch_frame(self, frame: Frame | None) -> None:
        self.redraw()

    def redraw(self) -> None:
        """Draws again what changed, and lays out again when the content's height changed."""
        width = self.size.width
        if not width:
            return
        auto = self.styles.is_auto_height
        self._lines = self._draw(width, 0 if auto else self.size.height)
        if auto and len(self._lines) != self._height:
            self._height = len(self._lines)
            self.refresh(layout=True)
        else:
            refresh_changed(self, self._shown, self._line)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        self._height = len(self._draw(width, 0))
        return max(1, self._height)

    def on_resize(self) -> None:
        self._shown.clear()
        self.redraw()

    def render_line(self, y: int) -> Strip:
        strip = self._shown[y] = self._line(y)
        return strip

    def _line(self, y: int) -> Strip:
        line = self._lines[y] if y < len(self._lines) else Text()
        return to_strip(self, line, self.size.width)

    def _draw(self, width: int, height: int) -> list[Text]:
        if self.frame is None or width <= 0:
            return []
        return self.lines(self.frame, width, height, palette_of(self))


def set_titles(widget: Widget, title: str, subtitle: str | None = None) -> None:
    """Sets the words in the border, only when they changed: setting them repaints the whole widget."""
    if widget.border_title != title:
        widget.border_title = title
    if subtitle is not None and widget.border_subtitle != subtitle:
        widget.border_subtitle = subtitle


def refresh_changed(widget: Widget, shown: dict[int, Strip], line: Callable[[int], Strip]) -> None:
    """Repaints those lines of `widget` that differ from what it has `shown`: a slow terminal sees only changes."""
    width, height = widget.size
    changed = [y for y in range(height) if shown.get(y) != line(y)]
    if changed:
        widget.refresh(*(Region(0, y, width, 1) for y in changed))


def to_strip(widget: Widget, text: Text, width: int, base: Style | None = None) -> Strip:
    """A line of text on the widget's background, cut or filled to `width`."""
    style = widget.rich_style if base is None else base
    if text.cell_len > width:
        text = text.copy()
        text.truncate(width, overflow="ellipsis")
    parts = text.render(widget.app.console)
    segments = [Segment(part.text, style + part.style if part.style else style) for part in parts if part.text != "\n"]
    return Strip(segments).adjust_cell_length(width, style)


def fields(items: list[tuple[str, str]], palette: Palette, gap: str = "   ") -> Text:
    """Name–value pairs on one line, names dimmed."""
    text = Text()
    for place, (name, value) in enumerate(items):
        text.append(gap if place else "").append(f"{name} ", palette.dim).append(value, palette.text)
    return text


def wrap(text: str, width: int, style: str, indent: str = "") -> list[Text]:
    """`text` broken at blanks into lines of at most `width` columns."""
    lines: list[Text] = []
    line = ""
    room = max(8, width - len(indent))
    for word in text.split():
        while len(word) > room:
            if line:
                lines.append(ink(indent + line, style))
                line = ""
            lines.append(ink(indent + word[:room], style))
            word = word[room:]
        if line and len(line) + 1 + len(word) > room:
            lines.append(ink(indent + line, style))
            line = word
        else:
            line = f"{line} {word}" if line else word
    if line:
        lines.append(ink(indent + line, style))
    return lines
