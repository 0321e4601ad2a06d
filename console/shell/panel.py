"""A titled box whose content is a pure function of the frame. Owns when to redraw; its subclasses own what."""

from __future__ import annotations

from rich.text import Text
from textual.geometry import Size
from textual.reactive import reactive
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

    frame: reactive[Frame | None] = reactive(None, init=False)
    title = ""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.border_title = self.title or None
        self._height = 0

    def lines(self, frame: Frame, width: int, height: int, palette: Palette) -> list[Text]:
        """What to show in `width` columns. `height` is 0 when the panel may be as high as it likes."""
        raise NotImplementedError

    def watch_frame(self, frame: Frame | None) -> None:
        self.redraw()

    def redraw(self) -> None:
        """Draws again, and lays out again when the content's height changed."""
        if self.styles.is_auto_height and self.size.width:
            height = len(self._draw(self.size.width, 0))
            if height != self._height:
                self._height = height
                self.refresh(layout=True)
                return
        self.refresh()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        self._height = len(self._draw(width, 0))
        return max(1, self._height)

    def render(self) -> Text:
        height = 0 if self.styles.is_auto_height else self.size.height
        lines = self._draw(self.size.width, height)
        for line in lines:
            line.truncate(self.size.width, overflow="ellipsis")
        return Text("\n", no_wrap=True, end="").join(lines)

    def _draw(self, width: int, height: int) -> list[Text]:
        if self.frame is None or width <= 0:
            return []
        return self.lines(self.frame, width, height, palette_of(self))


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
