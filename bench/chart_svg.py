"""A chart as an SVG element that takes its text colour from the page around it, so that it reads on light and dark."""

from __future__ import annotations

from html import escape

from tsd.bench.chart import Chart, scales, tick_label

COLOURS = ("#0d8fb8", "#c2408f", "#b8860b", "#2e8b57", "#c0392b", "#5a5fc7")
_WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 34, 46


def render(chart: Chart) -> str:
    """Grid, axes with ticks, lines with a title on each mark, legend at the top."""
    x_scale, y_scale = scales(chart)
    inner_w, inner_h = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x_of(value: float) -> float:
        return round(_LEFT + x_scale.place(value) * inner_w, 1)

    def y_of(value: float) -> float:
        return round(_TOP + (1 - y_scale.place(value)) * inner_h, 1)

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" xmlns="http://www.w3.org/2000/svg" '
        'font-family="system-ui, sans-serif" font-size="12" fill="currentColor">',
        f"<title>{escape(chart.title)}</title>",
        f'<text x="{_LEFT}" y="14" font-weight="600">{escape(chart.title)}</text>',
    ]
    for value in y_scale.ticks(5):
        y = y_of(value)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}" stroke="currentColor" opacity=".15"/>'
        )
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{tick_label(value)}</text>')
    for value, label in chart.ticks_x or [(value, tick_label(value)) for value in x_scale.ticks(7)]:
        x = x_of(value)
        parts.append(f'<line x1="{x}" x2="{x}" y1="{_TOP}" y2="{_TOP + inner_h}" stroke="currentColor" opacity=".08"/>')
        parts.append(f'<text x="{x}" y="{_TOP + inner_h + 16}" text-anchor="middle">{escape(label)}</text>')
    middle = _TOP + inner_h / 2
    parts.append(
        f'<text x="{_LEFT + inner_w / 2}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(chart.x_label)}</text>'
    )
    parts.append(
        f'<text x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">'
        f"{escape(chart.y_label)}</text>"
    )
    legend = float(_LEFT)
    for number, line in enumerate(chart.lines):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x_of(p.x)},{y_of(p.y)}" for p in line.points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if line.marks:
            for p in line.points:
                tip = escape(f"{line.name}: {p.note or f'{p.x:g}'} → {p.y:,.2f}")
                parts.append(
                    f'<circle cx="{x_of(p.x)}" cy="{y_of(p.y)}" r="3.5" fill="{colour}"><title>{tip}</title></circle>'
                )
                if p.note:
                    parts.append(
                        f'<text x="{x_of(p.x) + 6}" y="{y_of(p.y) - 6}" font-size="10">{escape(p.note)}</text>'
                    )
        parts.append(f'<rect x="{legend}" y="21" width="14" height="3" fill="{colour}"/>')
        parts.append(f'<text x="{legend + 18}" y="27" font-size="11">{escape(line.name)}</text>')
        legend += 34 + 6.5 * len(line.name)
    parts.append("</svg>")
    return "\n".join(parts)
