"""The pictures of a plan, and where things lie on them."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import matplotlib
import pytest

import kfusion as kf
from kfusion._plans import graph_layout
from plans import PLANS, X, chain_of_tanh, evil_plan, mlp_plan, row_plan

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def test_plot_returns_a_closed_figure_and_saves(plan, tmp_path):
    before = plt.get_fignums()
    figure = plan.plot(tmp_path / "plan.svg")
    assert plt.get_fignums() == before
    assert len(figure.axes) == 3
    assert [p.name for p in tmp_path.iterdir()] == ["plan.svg"]
    ElementTree.parse(tmp_path / "plan.svg")


def test_plot_into_given_axes():
    figure, ax = plt.subplots()
    assert row_plan().plot(ax=ax) is figure
    assert "Roofline of H200" in ax.get_title(loc="left")
    assert plt.get_fignums() == []


def test_failing_plot_leaves_no_file(tmp_path):
    with pytest.raises(ValueError, match="nonsense"):
        row_plan().plot(tmp_path / "plan.nonsense")
    assert list(tmp_path.iterdir()) == []


def test_dollars_in_names_are_no_formulas(tmp_path):
    evil_plan().plot(tmp_path / "plan.svg")
    assert (tmp_path / "plan.svg").exists()


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


def test_the_roofline_shows_kernels_that_are_nothing_but_a_launch():
    p = kf.plan(kf.exp, kf.spec((3, 5)), device="H200")
    (ax,) = p.plot(ax=plt.figure().subplots()).axes
    low, high = ax.get_ylim()
    assert low < p.fused.flop_total / (p.fused.time_us * 1e-6) < high
