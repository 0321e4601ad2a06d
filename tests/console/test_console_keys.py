"""An operator at the keyboard and the mouse: every key does what the help says, and every action asks first."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from support.console import Console, until

from tsd.console.picture import capture, plain
from tsd.console.shell.dialogs import ChooseLevel, Confirm, Help


def drive(use, size=(120, 40), **options):
    """Runs `use(pilot, console)` and gives back the console."""

    async def run():
        console = Console(**options)
        async with console.running(size) as pilot:
            await use(pilot, console)
        return console

    return asyncio.run(run())


def text(console):
    return plain(capture(console.app))


def test_screens_by_number_and_by_mouse():
    async def use(pilot, console):
        for key, word in (("2", "Who holds the memory"), ("3", "▼age"), ("4", "Since start"), ("5", "Why this kernel")):
            await pilot.press(key)
            await pilot.pause()
            assert word in text(console)
        await pilot.click("Tabs", offset=(3, 0))
        await pilot.pause()
        assert "Why is TTFT up?" in text(console)

    drive(use)


def test_enter_on_the_overview_goes_to_the_cause():
    async def use(pilot, console):
        assert console.app.frame.explanation.causes[0].screen == "pages"
        await pilot.press("enter")
        await pilot.pause()
        assert "Device pages" in text(console)

    drive(use)


def test_the_map_moves_by_vim_and_arrow_keys_and_asks_for_owners():
    async def use(pilot, console):
        await pilot.press("2")
        page_map = console.app.query_one("#page-map")
        await pilot.press("l", "right", "h", "j", "down", "k")
        columns = page_map._grid.columns
        assert page_map.cell == columns + 1
        await pilot.press("G")
        assert page_map.cell == len(page_map._grid.states) - 1
        await pilot.press("g", "n")
        states = page_map._grid.states
        assert states[page_map.cell] != states[0]
        await pilot.click("#page-map", offset=(2 + 7 + 5, 1 + 3))
        assert page_map.cell == 3 * columns + 5
        detail = console.app.query_one("#bin-detail")
        await until(pilot, lambda: detail.answer is not None)
        assert detail.bin == page_map.bin and "owner" in text(console)

    drive(use)


def test_the_map_shows_who_holds_an_active_page():
    async def use(pilot, console):
        await pilot.press("2")
        engine = console.fleet.engines[0]
        request = max(engine.running, key=lambda r: len(r.bins))
        page_map = console.app.query_one("#page-map")
        page_map._go(page_map._grid.cell_of(request.bins[0]))
        page_map.bin = request.bins[0]
        page_map.action_ask()
        await until(pilot, lambda: request.id in text(console))

    drive(use)


def test_brackets_choose_the_engine():
    async def use(pilot, console):
        await pilot.press("2", "right_square_bracket")
        await pilot.pause()
        assert "engine 1" in text(console)
        await pilot.press("right_square_bracket", "left_square_bracket", "left_square_bracket")
        await pilot.pause()
        assert "engine 0" in text(console)

    drive(use)


def test_the_table_of_requests():
    async def use(pilot, console):
        await pilot.press("3")
        table = console.app.query_one("#request-table")
        assert table.place == 0
        await pilot.press("j", "j", "down", "k")
        assert table.place == 2
        lasting = {r.id for e in console.fleet.engines for r in e.running if r.target - r.output > 300}
        table._go(next(place for place, row in enumerate(table.rows) if row.request.id in lasting))
        chosen = table.key
        console.source.step()
        await until(pilot, lambda: console.app.paints >= 2)
        assert table.key == chosen, "the cursor follows its request"
        await pilot.press("S")
        await pilot.pause()
        assert table.key == chosen and not table.descending
        await pilot.press("s")
        await pilot.pause()
        assert table.sorted_by == "prompt" and table.descending
        prompts = [row.request.prompt for row in table.rows]
        assert prompts == sorted(prompts, reverse=True)
        await pilot.press("G")
        assert table.place == len(table.rows) - 1 and table.scroll_offset.y > 0
        await pilot.press("ctrl+u", "pageup", "g")
        assert table.place == 0 and table.scroll_offset.y == 0
        await pilot.click("#request-table", offset=(4, 1))
        await pilot.pause()
        assert table.sorted_by == "id"
        await pilot.click("#request-table", offset=(4, 2 + 5))
        await pilot.pause()
        assert table.place == 5

    drive(use)


def test_filter():
    async def use(pilot, console):
        await pilot.press("3", "slash", *"nightly")
        await pilot.pause()
        table = console.app.query_one("#request-table")
        assert table.rows and all(row.request.client == "nightly-swe" for row in table.rows)
        # Digits and letters that are keys elsewhere are text here.
        await pilot.press("space", *"prompt>5", "0", "k", "enter")
        await pilot.pause()
        assert all(row.request.prompt > 50_000 for row in table.rows)
        assert console.app.focused is table
        await pilot.press("escape")
        await pilot.pause()
        assert len(table.rows) > 50

    drive(use)


def test_the_timeline_opens_follows_and_closes():
    async def use(pilot, console):
        await pilot.press("3", "enter")
        timeline = console.app.query_one("#timeline")
        await until(pilot, lambda: timeline.answer is not None)
        assert "queued" in text(console)
        first = timeline.row.request.id
        await pilot.press("j")
        await until(pilot, lambda: timeline.answer is not None and timeline.row.request.id != first)
        await pilot.press("escape")
        await pilot.pause()
        assert not timeline.display

    drive(use)


ACTIONS = [("P", "pause"), ("R", "resume"), ("D", "drain"), ("F", "flush")]


@pytest.mark.parametrize(("key", "name"), ACTIONS)
def test_an_action_asks_and_does_it_only_on_yes(key, name):
    async def use(pilot, console):
        for answer in ("n", "escape", "enter", "q"):
            await pilot.press(key)
            await pilot.pause()
            assert isinstance(console.app.screen, Confirm)
            await pilot.press(answer)
            await pilot.pause()
            assert not isinstance(console.app.screen, Confirm) and console.operator.done == []
        await pilot.press(key, "y")
        await until(pilot, lambda: console.operator.done)
        assert console.operator.done == [(name, {})]

    drive(use)


def test_abort_names_its_request():
    async def use(pilot, console):
        await pilot.press("3", "j", "x")
        await pilot.pause()
        chosen = console.app.query_one("#request-table").key
        assert chosen in text(console) and "Abort request" in text(console)
        await pilot.press("y")
        await until(pilot, lambda: console.operator.done)
        assert console.operator.done == [("abort request", {"request_id": chosen})] or console.operator.done == [
            ("abort", {"request_id": chosen})
        ]
        console.source.step()
        await until(pilot, lambda: any(e.event.request_id == chosen for e in console.app.frame.events))

    drive(use)


def test_log_level_is_chosen():
    async def use(pilot, console):
        await pilot.press("L")
        await pilot.pause()
        assert isinstance(console.app.screen, ChooseLevel)
        await pilot.press("1")
        await until(pilot, lambda: console.operator.done)
        assert console.operator.done == [("log level", {"level": "debug"})]

    drive(use)


def test_read_only_refuses_every_action():
    async def use(pilot, console):
        assert "read-only" in text(console)
        for key in ("P", "R", "D", "F", "L", "3", "x"):
            await pilot.press(key)
            await pilot.pause()
            assert not isinstance(console.app.screen, (Confirm, ChooseLevel))
        assert console.operator.done == []

    drive(use, read_only=True)


def test_the_palette_finds_an_action():
    async def use(pilot, console):
        await pilot.press("ctrl+p")
        await pilot.pause()
        await pilot.press(*"drain")
        await until(pilot, lambda: "Drain" in text(console))
        await asyncio.sleep(0.3)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(console.app.screen, Confirm))
        await pilot.press("y")
        await until(pilot, lambda: console.operator.done == [("drain", {})])

    drive(use)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_help_shows_every_key(size):
    async def use(pilot, console):
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(console.app.screen, Help))
        assert "a screen" in text(console)
        await pilot.press("j", "q")
        await until(pilot, lambda: not isinstance(console.app.screen, Help))

    drive(use, size)


def test_freezing_holds_the_numbers_and_loses_none():
    async def use(pilot, console):
        await pilot.press("3", "space")
        await pilot.pause()
        assert "frozen" in text(console)
        table = console.app.query_one("#request-table")
        before = list(table.rows)
        console.source.step(3)
        await until(pilot, lambda: console.app.frame.snapshot.time == console.fleet.now)
        assert list(table.rows) == before
        await pilot.press("space")
        await pilot.pause()
        assert list(table.rows) != before and "frozen" not in text(console)

    drive(use)


def test_themes_follow_each_other():
    async def use(pilot, console):
        seen = [console.app.theme]
        for _ in range(4):
            await pilot.press("t")
            await pilot.pause()
            seen.append(console.app.theme)
            assert "KV memory" in text(console)
        assert seen == ["night", "day", "contrast", "ansi", "night"]

    drive(use)


def test_events_by_kind_and_by_text():
    async def use(pilot, console):
        await pilot.press("4")
        table = console.app.query_one("#event-table")
        whole = len(table.rows)
        await pilot.press("f")
        await pilot.pause()
        assert 0 < len(table.rows) < whole and all(row.event.kind == "retraction" for row in table.rows)
        await pilot.press("escape", "slash", *"went", "enter")
        await pilot.pause()
        assert table.rows and all(row.event.kind == "abort" for row in table.rows)

    drive(use)


def test_kernels_show_why_the_others_lost():
    async def use(pilot, console):
        await pilot.press("5", "j")
        await pilot.pause()
        shown = text(console)
        assert "needs compute capability 10.0" in shown and "0 after ready" in shown

    drive(use)


def test_a_flood_repaints_at_most_twice_a_second():
    async def use(pilot, console):
        before = console.app.paints
        loop = asyncio.get_running_loop()
        start = loop.time()
        while loop.time() - start < 1.2:
            console.source.step()
            await asyncio.sleep(0.01)
        seconds = loop.time() - start
        assert console.app.paints - before <= 2 * seconds + 1
        await until(pilot, lambda: console.app.frame.snapshot.time == console.fleet.now)

    drive(use)


def test_quit():
    async def run():
        console = Console()
        with contextlib.suppress(asyncio.CancelledError):
            async with console.running() as pilot:
                await pilot.press("q")
        return console.app.return_code

    assert asyncio.run(run()) == 0


def test_resizing_from_wide_to_narrow_and_back():
    async def use(pilot, console):
        for size in ((200, 60), (40, 10)):
            await pilot.resize_terminal(*size)
            for key in "12345":
                await pilot.press(key)
                await pilot.pause()
            assert len(text(console).splitlines()) == size[1]

    drive(use)
