"""A plan as one self-contained page: nothing is loaded from elsewhere, and all text is escaped."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from importlib import resources
from typing import TYPE_CHECKING

from .. import _core
from .._tables import byte_unit, escaped, in_unit, number
from . import report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .plan import Plan
    from .records import Refusal

_COLUMN_PX = 680  # a graph up to this width stands beside the others, a little smaller where need be

_ALT = {
    "roofline": "Predicted FLOP per second over FLOP per byte, with the device's roofs; the totals are {fused} fused "
    "and {unfused} unfused.",
    "bytes": "Bytes that each kernel reads and writes, the unfused ones first; the table of kernels has the numbers.",
    "graph": "The calls in boxes of the kernels that they share, with the reasons between kernels; the table and the "
    "list below say the same.",
}


def page(plan: Plan) -> str:
    """The whole document."""
    title = escaped(report.title(plan))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{resources.files(__package__).joinpath("plan.css").read_text("utf-8")}</style>
</head>
<body>
<main>
<h1>{escaped(plan.function or "graph")} on {escaped(plan.device.name)}</h1>
<p><code>{escaped(report.signature(plan))}</code></p>
{"".join(_sections(plan))}</main>
<footer>kfusion {escaped(_core.__version__)}. Predicted from the plan, not measured.</footer>
</body>
</html>
"""


def _sections(plan: Plan) -> Iterator[str]:
    yield f"<p>{escaped(report.savings_line(plan))}</p>\n"
    yield _cards(plan)
    yield "<h2>Kernels</h2>\n"
    yield _scroll(report.groups_table(plan.groups, None, len(plan.unfused_groups)).html(), "fused kernels")
    yield _scroll(report.totals_table(plan).html(), "totals")
    yield "".join(f'<p class="faint">{escaped(line)}</p>\n' for line in report.notes(plan))
    yield "<h2>Pictures</h2>\n" + _pictures(plan)
    yield "<h2>Kept apart</h2>\n" + _refusals(plan.refusals)
    yield "<h2>Details</h2>\n"
    unfused = report.groups_table(plan.unfused_groups, None, len(plan.unfused_groups), "Unfused")
    yield _details("Kernels without fusion", _scroll(unfused.html(), "unfused kernels"))
    yield _details("The graph", f'<pre tabindex="0">{escaped(str(plan.graph))}</pre>')
    yield _details("The device", f"<p>{escaped(report.device_line(plan))}</p>" + plan.device._repr_html_())


def _cards(plan: Plan) -> str:
    unit, size = byte_unit(plan.unfused.issued.total)
    cards = (
        ("launches", str(plan.unfused.launches), str(plan.fused.launches)),
        (f"{unit} moved", *(in_unit(t.issued.total, size) for t in (plan.unfused, plan.fused))),
        ("us, predicted", number(plan.unfused.time_us), number(plan.fused.time_us)),
        ("FLOP per byte", number(plan.unfused.intensity, 3), number(plan.fused.intensity, 3)),
    )
    items = "".join(
        f'<li><b><s>{a}</s> &rarr; <i>{b}</i></b><span class="faint">{escaped(name)}</span></li>\n'
        for name, a, b in cards
    )
    speedup = f'<li><b><i>{plan.predicted_speedup:.2f}x</i></b><span class="faint">predicted speedup</span></li>\n'
    return f'<ul class="cards">\n{speedup}{items}</ul>\n'


def _refusals(refusals: tuple[Refusal, ...]) -> str:
    if not refusals:
        return "<p>Nothing: there is one kernel, or none reads what another gives.</p>\n"
    items = list(dict.fromkeys(map(_refusal, refusals)))  # a copy's is the same
    left_out = len(items) - report.MAX_GROUPS
    more = f'<p class="faint">... and {left_out} more</p>\n' if left_out > 0 else ""
    return f'<ul class="refusals">\n{"".join(items[: report.MAX_GROUPS])}</ul>\n{more}'


def _refusal(r: Refusal) -> str:
    pair = f"{escaped(r.producer)} &rarr; {escaped(r.consumer)}"
    sources = "".join(f"<code>{escaped(s)}</code>" for s in report.sources(r))
    reason = f'<span class="reason">{escaped(str(r.reason))}</span>'
    return f"<li><strong>{pair}</strong> {reason}<br>{escaped(r.sentence)}{sources}</li>\n"


def _scroll(table: str, what: str) -> str:
    """Wide tables scroll by themselves, with the keyboard too."""
    return f'<div class="scroll" role="region" aria-label="{what}" tabindex="0">{table}</div>\n'


def _details(summary: str, content: str) -> str:
    return f"<details><summary>{summary}</summary>\n{content}</details>\n"


def _pictures(plan: Plan) -> str:
    from . import plan_plot

    light, dark = (plan_plot.panels(plan, theme) for theme in (plan_plot.LIGHT, plan_plot.DARK))
    numbers = {n: f"{t.intensity:.3g} FLOP per byte" for n, t in (("fused", plan.fused), ("unfused", plan.unfused))}
    items = (_picture(name, light[name], dark[name], alt.format(**numbers)) for name, alt in _ALT.items())
    return f'<div class="pictures">\n{"".join(items)}</div>\n'


def _picture(name: str, light: Figure, dark: Figure, alt: str) -> str:
    width, height = (round(96 * inches) for inches in light.get_size_inches())
    kind = "" if name != "graph" else ' class="narrow"' if width <= _COLUMN_PX else ' class="wide"'
    return (
        f'<figure{kind}><picture><source media="(prefers-color-scheme: dark)" srcset="{_svg_uri(dark)}">'
        f'<img src="{_svg_uri(light)}" width="{width}" height="{height}" alt="{escaped(alt)}"></picture></figure>\n'
    )


def _svg_uri(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(text.getvalue().encode()).decode()
