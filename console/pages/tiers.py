"""The tiers beside the map: pages by state, host and disk, hit rates, evictions."""

from __future__ import annotations

from rich.text import Text

from tsd.console.draw import bar, ink
from tsd.console.history import Frame
from tsd.console.numbers import count, percent, ratio
from tsd.console.palette import PAGE_GLYPHS, Palette
from tsd.console.shell.panel import Panel
from tsd.console.snapshot import FENCED, IN_FLIGHT, PAGE_STATES


class Legend(Panel):
    title = "Who holds the memory"

    def lines(self, frame: Frame, width: int, height: int, palette: Palette) -> list[Text]:
        engine = frame.engine
        if engine is None:
            return []
        device = engine.tiers.device
        counts = (device.free, device.cached, device.active, device.shared, device.fenced, device.in_flight)
        room = max(4, width - 26)
        lines = []
        for state, (glyph, name, pages) in enumerate(zip(PAGE_GLYPHS, PAGE_STATES, counts, strict=True)):
            style = palette.pages[state]
            # The rare states are white on a strong ground: their bar takes the ground.
            colour = style.split(" on ")[-1 if state in (FENCED, IN_FLIGHT) else 0]
            share = ratio(pages, device.total)
            line = ink(glyph * 2, style).append(f" {name:<10}", palette.text)
            line.append(f"{count(pages):>6} {percent(share):>4} ", palette.text)
            lines.append(line.append_text(bar(share, room, colour, palette.faint)))
        return lines


class Tiers(Panel):
    title = "Tiers"

    def lines(self, frame: Frame, width: int, height: int, palette: Palette) -> list[Text]:
        engine = frame.engine
        if engine is None:
            return []
        moment = frame.engine_moment(engine.engine)
        hits = engine.hits
        room = max(4, width - 26)
        lines = [ink(f"{'':7}{'hits':>5}  {'used':<{room}} {'of':>6}", palette.header)]
        for name, tier, found in (
            ("device", engine.tiers.device, hits.device),
            ("host", engine.tiers.host, hits.host),
            ("disk", engine.tiers.disk, hits.disk),
        ):
            line = ink(f"{name:<7}", palette.strong)
            if tier is None:
                lines.append(line.append(f"{'–':>5}  none", palette.dim))
                continue
            line.append(f"{percent(ratio(found, hits.queries)):>5}  ", palette.text)
            used = ratio(tier.used, tier.total)
            line.append_text(bar(used, room, palette.blue, palette.faint))
            lines.append(
                line.append(f" {count(tier.total):>6}", palette.text).append(f" {percent(used):>4}", palette.dim)
            )
        lines.append(
            ink("now    ", palette.strong)
            .append(f"{percent(moment.hit_ratio):>5}", palette.text)
            .append("  of prompt tokens found" if width >= 44 else "  of the prompts", palette.dim)
        )
        lines.append(
            ink("out    ", palette.strong)
            .append(f"{count(moment.evictions_s):>5}", palette.text)
            .append(" evictions/s  " if width >= 44 else " evict/s  ", palette.dim)
            .append(count(engine.counters.retractions), palette.text)
            .append(" retractions" if width >= 44 else " retr", palette.dim)
        )
        return lines


class Prefixes(Panel):
    """The hottest prefixes with who refers to them."""

    title = "Hottest prefixes"

    def lines(self, frame: Frame, width: int, height: int, palette: Palette) -> list[Text]:
        engine = frame.engine
        if engine is None or not engine.prefixes:
            return [ink("None yet.", palette.dim)]
        room = max(6, width - 26)
        lines = [ink(f"{'key':<{room}} {'tokens':>6} {'refs':>4} {'hits':>5} tier", palette.header)]
        for prefix in sorted(engine.prefixes, key=lambda p: (-(p.refs or 0), -(p.hits or 0))):
            line = ink(f"{(prefix.key or '–')[: room - 1]:<{room}} ", palette.blue)
            line.append(f"{count(prefix.tokens):>6} ", palette.text)
            line.append(f"{count(prefix.refs):>4} ", palette.strong if prefix.refs else palette.dim)
            line.append(f"{count(prefix.hits):>5} ", palette.text).append((prefix.tier or "–")[:6], palette.dim)
            lines.append(line)
        return lines[: height or None]
