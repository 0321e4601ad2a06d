"""Every screen at several sizes and themes, compared with what is stored.

The text of a screen is stored for each size, and the styles of every run of cells for each theme at one size. After a
wanted change: TSD_UPDATE_SCREENS=1 pytest tests/console/test_console_screens.py, and read the difference.
"""

from __future__ import annotations

import asyncio
import difflib
import os
from pathlib import Path

import pytest
from support.console import Console, until

from tsd.console.link import LinkState
from tsd.console.picture import capture, plain, styled, svg

STORED = Path(__file__).parent / "screens"
SIZES = ((80, 24), (120, 40), (200, 60))
SCREENS = {"overview": "1", "pages": "2", "requests": "3", "events": "4", "kernels": "5"}
# What is pressed after the screen opened, so that its details are open too.
OPENED = {"pages": ("n", "enter"), "requests": ("j", "enter"), "events": ("j",), "kernels": ("j", "j")}


def compare(name: str, text: str) -> None:
    path = STORED / name
    if os.environ.get("TSD_UPDATE_SCREENS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    kept = path.read_text(encoding="utf-8")
    if kept != text:
        lines = difflib.unified_diff(kept.splitlines(), text.splitlines(), "stored", "now", lineterm="", n=1)
        pytest.fail(f"{name} changed:\n" + "\n".join(lines))


async def open_screen(pilot, console, name):
    await pilot.press(SCREENS[name], *OPENED.get(name, ()))
    if name == "pages":
        await until(pilot, lambda: console.app.query_one("#bin-detail").answer is not None)
    if name == "requests":
        await until(pilot, lambda: console.app.query_one("#timeline").answer is not None)
    await pilot.pause()


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
def test_text(size):
    async def run():
        console = Console()
        found = {}
        async with console.running(size) as pilot:
            for name in SCREENS:
                await open_screen(pilot, console, name)
                found[name] = plain(capture(console.app))
        return found

    for name, text in asyncio.run(run()).items():
        lines = text.splitlines()
        assert len(lines) == size[1] and max(map(len, lines)) <= size[0]
        compare(f"{name}-{size[0]}x{size[1]}.txt", text)


@pytest.mark.parametrize("theme", ["night", "ansi"])
def test_styles(theme):
    async def run():
        console = Console(theme=theme)
        found = {}
        async with console.running((100, 30)) as pilot:
            for name in SCREENS:
                await open_screen(pilot, console, name)
                found[name] = styled(capture(console.app))
        return found

    for name, text in asyncio.run(run()).items():
        compare(f"{name}-{theme}.styles", text)


@pytest.mark.parametrize(
    ("state", "detail"),
    [
        (LinkState.CONNECTING, ""),
        (LinkState.DOWN, "cannot reach 127.0.0.1:8000 (connection refused)"),
        (LinkState.REFUSED, "the server refuses the admin key (HTTP 401)"),
        (LinkState.FOREIGN, "what answers is no tsd server, or one too old for this console"),
        (LinkState.GARBAGE, "the stream is JSON, but not a tsd snapshot"),
    ],
)
def test_what_an_operator_reads_before_the_first_snapshot(state, detail):
    async def run():
        console = Console(seconds=0)
        async with console.running((80, 24)) as pilot:
            console.source.link(state, detail, None if state is LinkState.CONNECTING else 4)
            await until(pilot, lambda: console.app.frame.link.state is state)
            return plain(capture(console.app))

    compare(f"notice-{state.value}.txt", asyncio.run(run()))


def test_old_numbers_are_marked_when_the_link_breaks():
    async def run():
        console = Console()
        async with console.running((100, 30)) as pilot:
            console.source.link(LinkState.STALE, "no snapshot for 3 s")
            await until(pilot, lambda: console.app.frame.link.state is LinkState.STALE)
            stale = plain(capture(console.app)).splitlines()[2]
            console.source.link(LinkState.DOWN, "the server closed the stream", 2)
            await until(pilot, lambda: console.app.frame.link.state is LinkState.DOWN)
            return stale, plain(capture(console.app)).splitlines()[2]

    stale, down = asyncio.run(run())
    assert "The server stalls: these numbers are old: no snapshot for 3 s; last snapshot" in stale
    assert "The server is down: the server closed the stream; last snapshot" in down and "again in 2 s" in down


def test_without_colour_every_page_state_and_level_has_its_own_sign():
    from tsd.console.palette import LEVEL_GLYPHS, PAGE_GLYPHS, PALETTES

    assert len(set(PAGE_GLYPHS)) == 6 and len(set(LEVEL_GLYPHS.values())) == 4
    for palette in PALETTES.values():
        assert len(set(palette.pages)) == 6


def test_the_picture_of_a_screen_is_well_formed_and_the_same_every_time():
    from xml.etree import ElementTree

    async def run():
        console = Console()
        async with console.running((80, 24)) as pilot:
            await open_screen(pilot, console, "pages")
            return svg(capture(console.app), "tsd <console>"), svg(capture(console.app), "tsd <console>")

    one, two = asyncio.run(run())
    assert one == two
    texts = ["".join(node.itertext()) for node in ElementTree.fromstring(one).iter("{http://www.w3.org/2000/svg}text")]
    assert "tsd <console>" in texts and any("Who holds the memory" in text for text in texts)
