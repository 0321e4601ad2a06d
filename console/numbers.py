"""Numbers as an operator reads them: short, aligned, and a dash where there is none. Knows nothing about screens."""

from __future__ import annotations

import time

DASH = "–"


def count(value: float | None) -> str:
    """950, 12.3k, 4.56M: at most five characters below 10^15."""
    if value is None:
        return DASH
    sign, value = ("-", -value) if value < 0 else ("", value)
    if value < 1000 and float(value).is_integer():
        return f"{sign}{value:.0f}"
    if value < 100:
        return f"{sign}{value:.1f}"
    for unit in ("", "k", "M", "G", "T"):
        if value < 999.5 or unit == "T":
            digits = 0 if value >= 99.95 or not unit else 1 if value >= 9.995 else 2
            return f"{sign}{value:.{digits}f}{unit}"
        value /= 1000
    return DASH


def whole(value: float | None) -> str:
    """12,345."""
    return DASH if value is None else f"{value:,.0f}"


def ms(value: float | None) -> str:
    """Milliseconds as 0.42 ms, 12.3 ms, 480 ms, 2.31 s, 85 s."""
    if value is None:
        return DASH
    if value < 1:
        return f"{value:.2f} ms"
    if value < 99.95:
        return f"{value:.1f} ms"
    if value < 999.5:
        return f"{value:.0f} ms"
    seconds = value / 1000
    return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s" if seconds < 99.95 else f"{seconds:.0f} s"


def us(value: float | None) -> str:
    """Microseconds as 38 µs, or as milliseconds from 1,000 on."""
    if value is None:
        return DASH
    return f"{value:.1f} µs" if value < 10 else f"{value:.0f} µs" if value < 999.5 else ms(value / 1000)


def size(value: float | None) -> str:
    """Bytes in binary units: 98.2 GiB."""
    if value is None:
        return DASH
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1023.5 or unit == "TiB":
            return f"{value:.0f} {unit}" if unit == "B" or value >= 99.95 else f"{value:.1f} {unit}"
        value /= 1024
    return DASH


def percent(value: float | None, digits: int = 0) -> str:
    """0.427 as 43%."""
    return DASH if value is None else f"{value * 100:.{digits}f}%"


def ratio(part: float | None, whole_: float | None) -> float | None:
    """part / whole, None when either is missing or the whole is zero."""
    return None if part is None or not whole_ else part / whole_


def duration(seconds: float | None) -> str:
    """0.4s, 12s, 3m 05s, 2h 14m, 6d 03h."""
    if seconds is None:
        return DASH
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest}s"
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes}m {rest:02d}s"
    days, hours = divmod(hours, 24)
    return f"{hours}h {minutes:02d}m" if not days else f"{days}d {hours:02d}h"


def clock(unix_s: float | None, utc: bool = False) -> str:
    """Time of day, 14:03:27."""
    if unix_s is None:
        return DASH
    return time.strftime("%H:%M:%S", time.gmtime(unix_s) if utc else time.localtime(unix_s))


def shorten(text: str, width: int) -> str:
    """`text` in at most `width` characters, its middle replaced by an ellipsis."""
    if len(text) <= width:
        return text
    if width <= 3:
        return text[:width]
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"
