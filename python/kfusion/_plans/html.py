"""A plan as one self-contained page: nothing is loaded from elsewhere, and all text is escaped."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from importlib import resources
from typing import TYPE_CHECKING

from .. import _core
from .._tables import byte_unit, counted, escaped, in_unit, number
from . import fusions, layers, pass_tables, report, whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .folds import Fold
    from .fusions import Fusions
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
    if found := whole.folds_of(plan):
        yield from _whole_sections(plan, found)
        return
    yield "<h2>Kernels</h2>\n"
    passes = plan.passes
    fused, unfused = (None, None) if passes is None else (passes.kernels, passes.unfused_kernels)
    kernels = report.groups_table(plan.groups, None, len(plan.unfused_groups), directions=fused)
    yield _scroll(kernels.html(), "fused kernels")
    yield _scroll(report.totals_table(plan).html(), "totals")
    yield from _passes(plan, None)
    yield "".join(f'<p class="faint">{escaped(line)}</p>\n' for line in report.notes(plan))
    yield "<h2>Pictures</h2>\n" + _pictures(plan)
    yield "<h2>Kept apart</h2>\n" + _refusals(plan.refusals)
    yield "<h2>Details</h2>\n"
    apart = report.groups_table(plan.unfused_groups, None, len(plan.unfused_groups), "Unfused", directions=unfused)
    yield _details("Kernels without fusion", _scroll(apart.html(), "unfused kernels"))
    yield _details("The graph", f'<pre tabindex="0">{escaped(str(plan.graph))}</pre>')
    yield _details("The device", f"<p>{escaped(report.device_line(plan))}</p>" + plan.device._repr_html_())


def _whole_sections(plan: Plan, found: Sequence[Fold]) -> Iterator[str]:
    """The sections of a plan of many kernels: by layers, those that are alike as one, which opens to the kernels of the
    first.
    """
    yield "<h2>Layers</h2>\n"
    yield _scroll(layers.table([fold.layer for fold in found], None, whole.layers_title(found)).html(), "layers")
    yield _scroll(report.totals_table(plan).html(), "totals")
    yield from _passes(plan, report.MAX_GROUPS)
    directions = None if plan.passes is None else plan.passes.kernels
    yield "<h2>Kernels by layer</h2>\n" + "".join(_fold(fold, directions) for fold in found)
    yield "".join(f'<p class="faint">{escaped(line)}</p>\n' for line in report.notes(plan))
    yield "<h2>The fusions that pay</h2>\n" + _fusions(plan.top(whole.TOP))
    yield "<h2>Picture</h2>\n" + _pictures(plan, ("roofline",))
    yield "<h2>Kept apart</h2>\n" + _folded_refusals(plan.refusals)
    yield "<h2>Details</h2>\n"
    yield _details("The device", f"<p>{escaped(report.device_line(plan))}</p>" + plan.device._repr_html_())


def _passes(plan: Plan, limit: int | None) -> Iterator[str]:
    """The section of a plan with gradients: both passes and what is kept between them, by kind where that is more than
    `limit`.
    """
    if tables := list(pass_tables.tables(plan, None, limit)):
        yield "<h2>Forward and backward</h2>\n"
        yield from (_scroll(table.html(), what) for table, what in zip(tables, ("passes", "kept"), strict=False))


def _fold(fold: Fold, directions: Sequence[str] | None) -> str:
    layer = fold.layer
    unit, size = byte_unit(layer.unfused_bytes)
    count = f" ({layer.count} alike, the first of them below)" if layer.count > 1 else ""
    summary = (
        f"{fold.name or 'the function'}{count}: {counted(layer.kernels, 'kernel')} instead of {layer.unfused_kernels}, "
        f"{in_unit(layer.bytes, size)} instead of {in_unit(layer.unfused_bytes, size)} {unit}, "
        f"{number(layer.us / 1e3)} instead of {number(layer.unfused_us / 1e3)} ms"
    )
    kernels, unfused = fold.kernels[0], fold.unfused[0]
    table = report.groups_table(kernels, None, len(unfused), limit=None, directions=directions).html()
    return _details(escaped(summary), _scroll(table, "kernels") if kernels else "<p>Nothing of its own is left.</p>\n")


def _fusions(found: Fusions) -> str:
    if not found.rows:
        return "<p>No fusion saves time.</p>\n"
    facts = "".join(f"<li>{escaped(line)}</li>\n" for line in fusions.notes(found))
    table = _scroll(fusions.table(found, None).html(), "fusions")
    return table + _details("Where, and what other tools have", f'<ul class="faint">\n{facts}</ul>\n')


def _folded_refusals(refusals: Sequence[Refusal]) -> str:
    kinds = whole.folded_refusals(refusals)
    shown = list(kinds.items())[: report.MAX_GROUPS]
    items = "".join(f"<li>{escaped(s)}{f' ({n} times)' if n > 1 else ''}</li>\n" for s, n in shown)
    more = f'<p class="faint">... and {len(kinds) - len(shown)} more kinds</p>\n' if len(kinds) > len(shown) else ""
    return f'<ul class="refusals">\n{items}</ul>\n{more}' if shown else "<p>Nothing.</p>\n"


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


def _pictures(plan: Plan, names: Sequence[str] = tuple(_ALT)) -> str:
    from . import plan_plot

    figures = plan_plot.panels(plan, plan_plot.LIGHT, names)
    dark = dict(zip(astuple(plan_plot.LIGHT), astuple(plan_plot.DARK), strict=True))
    numbers = {n: f"{t.intensity:.3g} FLOP per byte" for n, t in (("fused", plan.fused), ("unfused", plan.unfused))}
    items = (_picture(name, figures[name], dark, _ALT[name].format(**numbers)) for name in names)
    return f'<div class="pictures">\n{"".join(items)}</div>\n'


def _picture(name: str, figure: Figure, dark: Mapping[str, str], alt: str) -> str:
    """A picture of the light theme, and the same text with the colours of the dark one."""
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    kind = "" if name != "graph" else ' class="narrow"' if width <= _COLUMN_PX else ' class="wide"'
    light = _svg(figure)
    turned = re.sub("|".join(dark), lambda found: dark[found.group()], light)
    return (
        f'<figure{kind}><picture><source media="(prefers-color-scheme: dark)" srcset="{_uri(turned)}">'
        f'<img src="{_uri(light)}" width="{width}" height="{height}" alt="{escaped(alt)}"></picture></figure>\n'
    )


def _svg(figure: Figure) -> str:
    """Laid out before it is drawn: savefig would draw it twice."""
    if (engine := figure.get_layout_engine()) is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _uri(svg: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
