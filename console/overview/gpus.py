"""One line a GPU: utilisation, memory, power, temperature, clocks. A missing sensor is a dash."""

from __future__ import annotations

from rich.text import Text

from tsd.console.draw import bar, ink
from tsd.console.history import Frame
from tsd.console.numbers import DASH, percent, ratio, size
from tsd.console.palette import Palette
from tsd.console.shell.panel import Panel

HOT_C = 85.0


class Gpus(Panel):
    title = "GPUs"

    def lines(self, frame: Frame, width: int, height: int, palette: Palette) -> list[Text]:
        gpus = frame.snapshot.gpus if frame.snapshot else ()
        if not gpus:
            return [ink("– no GPU reports; the CPU backend has none.", palette.dim)]
        wide = width >= 110
        room = max(6, min(36, (width - (70 if wide else 47)) // 2))
        head = ink(f"  {'#':<3}" + (f"{'name':<14}" if wide else ""), palette.header)
        head.append(f"{'utilisation':<{room + 6}}{'memory':<{room + 12}}{'power':>10}{'temp':>7}", palette.header)
        head.append(f"{'SM':>6}{'mem MHz':>9}" if wide else f"{'MHz':>6}", palette.header)
        lines = [head]
        for gpu in gpus:
            line = ink(f"  {DASH if gpu.index is None else gpu.index:<3}", palette.strong)
            if wide:
                line.append(f"{(gpu.name or DASH)[:13]:<14}", palette.text)
            line.append_text(bar(gpu.util, room, palette.green, palette.faint)).append(
                f" {percent(gpu.util):>4} ", palette.text
            )
            full = ratio(gpu.mem_used, gpu.mem_total)
            line.append_text(bar(full, room, palette.blue, palette.faint))
            line.append(f" {size(gpu.mem_used):>9}  ", palette.text)
            power = DASH if gpu.power_w is None else f"{gpu.power_w:.0f}"
            limit = "" if gpu.power_limit_w is None else f"/{gpu.power_limit_w:.0f}"
            capped = gpu.power_w is not None and gpu.power_limit_w and gpu.power_w >= 0.98 * gpu.power_limit_w
            line.append(f"{power + limit + ' W':>10}", palette.warn if capped else palette.text)
            hot = gpu.temp_c is not None and gpu.temp_c >= HOT_C
            heat = DASH if gpu.temp_c is None else f"{gpu.temp_c:.0f} °C"
            line.append(f"{heat:>7}", palette.bad if hot else palette.text)
            line.append(f"{_mhz(gpu.sm_mhz):>6}", palette.dim)
            if wide:
                line.append(f"{_mhz(gpu.mem_mhz):>9}", palette.dim)
            lines.append(line)
        return lines


def _mhz(value: float | None) -> str:
    return DASH if value is None else f"{value:.0f}"
