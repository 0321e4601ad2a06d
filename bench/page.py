"""A comparison as one self-contained HTML page: tables, charts as inline SVG, no script, nothing fetched."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from tsd.bench import chart_svg
from tsd.bench.chart import Chart
from tsd.bench.report import number

if TYPE_CHECKING:
    from tsd.bench.compare import Compared

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0 2rem; }
th, td { padding: .25rem .8rem; text-align: right; }
th, td { border-bottom: 1px solid color-mix(in srgb, currentColor 15%, transparent); }
th:first-child, td:first-child { text-align: left; }
.better { color: #2e8b57; } .worse { color: #c0392b; } .ci { opacity: .7; font-size: .85em; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(26rem, 1fr)); gap: 1rem; }
.overflow { overflow-x: auto; }
""".strip()


def _cells(compared: Compared) -> str:
    from tsd.bench.compare import verdict

    cells = [f"<td>{escape(compared.row.label)}</td>"]
    for value, found in zip(compared.values, compared.ratios, strict=True):
        text = number(value)
        if found is not None:
            interval = f"[{found.low:.2f}, {found.high:.2f}]" if found.low is not None else "[too few]"
            kind = verdict(compared.row, found)
            text += f' <span class="{kind}">×{found.value:.2f}</span> <span class="ci">{interval}</span>'
        cells.append(f"<td>{text}</td>")
    return "<tr>" + "".join(cells) + "</tr>"


def comparison_page(
    names: list[str],
    tables: list[tuple[str, list[Compared]]],
    charts: list[Chart],
    notes: list[str],
    confidence: float,
) -> str:
    """The whole document as text."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>{escape(' against '.join(names))}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(' against '.join(names))}</h1>",
        f"<p>× is the ratio to {escape(names[0])}; in brackets its {confidence:.0%} bootstrap interval "
        "over requests.</p>",
    ]
    for load, rows in tables:
        heads = "".join(f"<th>{escape(name)}</th>" for name in names)
        body = "".join(_cells(row) for row in rows)
        parts.append(
            f'<h2>{escape(load)}</h2><div class="overflow"><table><tr><th></th>{heads}</tr>{body}</table></div>'
        )
    parts.extend(f"<p>Note: {escape(note)}.</p>" for note in notes)
    parts.append(
        '<div class="charts">' + "".join(f"<div>{chart_svg.render(chart)}</div>" for chart in charts) + "</div>"
    )
    parts.append("</body></html>")
    return "\n".join(parts)
