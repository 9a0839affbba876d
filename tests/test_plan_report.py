"""Plans as text, in a terminal, as a page and as pictures, and where things lie on these."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree

import matplotlib
import pytest

import kfusion as kf
from kfusion import _tables
from kfusion._plans import graph_layout, report
from plans import PLANS, X, chain_of_tanh, evil_plan, mlp_plan, row_plan

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def test_plain_text(plan):
    text = str(plan)
    for word in ("read", "written", "FLOP/B", "bound", "unfused", "fused", "Fusing saves", plan.device.name):
        assert word in text
    assert "\x1b" not in text
    assert repr(plan).startswith(f"<Plan: {plan.title}: ")


def test_text_fits_the_width(plan, monkeypatch):
    for width in (80, 100, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        longest = max(str(plan).splitlines(), key=len)
        assert len(longest) <= width, longest
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    text = str(plan)
    assert "\x1b" in text
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert max(map(len, plain.splitlines())) <= 80
    for group in plan.groups[:3]:
        assert group.bound in plain


def test_many_kernels_are_cut_and_counted():
    p = kf.plan(lambda x: [y / y.sum() for y in (x[:, : n + 2] for n in range(30))], X, device="T4")
    assert len(p.groups) > report.MAX_GROUPS
    text = str(p)
    assert f"the first {report.MAX_GROUPS} of them" in text
    assert re.search(r"\.\.\. and \d+ more in plan\.refusals", text)
    assert len(text.splitlines()) < 300
    p = mlp_plan()  # what no executor runs is named
    missing = {g.missing for g in p.groups if not g.executable}
    assert all(what.split()[-1] in str(p) for what in missing)
    assert ("planned and priced only" in str(p)) == bool(missing)


def test_html_is_escaped_and_well_formed():
    p = evil_plan()
    page = p.to_html()
    assert p.refusals
    for text in (page, p._repr_html_()):
        assert "<script" not in text
        assert "&lt;script&gt;" in text
    page = re.sub(r"<!DOCTYPE html>|&rarr;", "", page)
    ElementTree.fromstring(re.sub(r"<(meta|img|source|br)\b([^>]*)>", r"<\1\2/>", page))


def test_page_loads_nothing_and_says_everything():
    for plan in (PLANS["barrier"](), PLANS["empty"]()):
        page = plan.to_html()
        assert re.findall(r"(?:src|href|srcset)=\"(?!data:image/svg\+xml;base64,)", page) == []
        assert page.count("<img ") == 3 == page.count(' alt="')
        assert page.count("prefers-color-scheme: dark") >= 4
        for there in ('<html lang="en">', 'name="viewport"', "<details>", *(str(r.reason) for r in plan.refusals[:3])):
            assert there in page
        for not_there in ("@import", "url("):
            assert not_there not in page


def test_control_characters_do_not_reach_a_terminal():
    table = _tables.Table("a\x1b[2J", ("b\x07",), (("c\x1b[31m",),))
    assert table.plain().isascii()
    assert not any(c in table.plain() + table.html() for c in "\x1b\x07")


def test_plot_returns_a_closed_figure_and_saves(plan, tmp_path):
    before = plt.get_fignums()
    figure = plan.plot(tmp_path / "plan.svg")
    assert plt.get_fignums() == before
    assert len(figure.axes) == 3
    assert [p.name for p in tmp_path.iterdir()] == ["plan.svg"]
    ElementTree.parse(tmp_path / "plan.svg")


def test_plot_into_given_axes_and_files(tmp_path):
    figure, ax = plt.subplots()
    assert row_plan().plot(ax=ax) is figure
    assert "Roofline of H200" in ax.get_title(loc="left")
    assert plt.get_fignums() == []
    with pytest.raises(ValueError, match="nonsense"):
        row_plan().plot(tmp_path / "plan.nonsense")
    assert list(tmp_path.iterdir()) == []
    evil_plan().plot(tmp_path / "plan.svg")  # dollars in names are no formulas
    assert (tmp_path / "plan.svg").exists()
    p = kf.plan(kf.exp, kf.spec((3, 5)), device="H200")  # nothing but a launch is shown, too
    (ax,) = p.plot(ax=plt.figure().subplots()).axes
    low, high = ax.get_ylim()
    assert low < p.fused.flop_total / (p.fused.time_us * 1e-6) < high


def inside(inner, outer):
    return (
        outer.x <= inner.x - inner.width / 2
        and inner.x + inner.width / 2 <= outer.x + outer.width + 1e-9
        and outer.y < inner.y < outer.y + outer.height
    )


def overlap(a, b):
    return a.x < b.x + b.width and b.x < a.x + a.width and a.y < b.y + b.height and b.y < a.y + a.height


def test_boxes_hold_their_calls_and_do_not_overlap(plan):
    drawing = graph_layout.layout(plan)
    for kernel in drawing.kernels:
        assert all(inside(call, kernel) for call in kernel.calls.values())
        assert kernel.x >= -1e-9
        assert kernel.x + kernel.width <= drawing.width + 1e-9
        calls = list(kernel.calls.values())
        level = [(a, b) for i, a in enumerate(calls) for b in calls[:i] if a.y == b.y]
        assert all(abs(a.x - b.x) >= (a.width + b.width) / 2 for a, b in level)
    assert not any(overlap(a, b) for i, a in enumerate(drawing.kernels) for b in drawing.kernels[:i])


def test_edges_follow_the_data_and_name_each_reason_once():
    drawing = graph_layout.layout(mlp_plan())
    across = [e for e in drawing.edges if not e.is_inside]
    assert [(e.start.name, e.end.name, e.reason) for e in across] == [
        ("layernorm.scale", "matmul", "contraction"),
        ("gelu", "matmul_2", "contraction"),
    ]
    assert {(e.start.name, e.end.name) for e in drawing.edges if e.is_inside} >= {
        ("matmul", "gelu"),
        ("matmul_2", "add"),
    }
    assert drawing.note == ""


def test_thirty_calls_are_drawn_and_hundreds_are_not():
    thirty = graph_layout.layout(kf.plan(lambda x: chain_of_tanh(x, 30), X, device="H200"))
    assert sum(len(k.calls) for k in thirty.kernels) == 30
    many = graph_layout.layout(PLANS["many"]())
    assert len(many.kernels) == graph_layout.MAX_KERNELS
    assert many.note.startswith(f"The first {graph_layout.MAX_KERNELS} of ")
    whole = graph_layout.layout(kf.plan(lambda x: chain_of_tanh(x, 100), X, device="H200"))
    assert sum(len(k.calls) for k in whole.kernels) == 1
    assert "too many calls" in whole.note
