"""Plans as text, in a terminal and as a page."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree

import matplotlib
import pytest

import kfusion as kf
from kfusion import _tables
from kfusion._plans import report
from plans import PLANS, X, evil_plan, mlp_plan

matplotlib.use("Agg")


def test_plain_text(plan):
    text = str(plan)
    for word in ("read", "written", "FLOP/B", "bound", "unfused", "fused", "Fusing saves", plan.device.name):
        assert word in text
    assert "\x1b" not in text
    assert repr(plan).startswith(f"<Plan: {plan.title}: ")


@pytest.mark.parametrize("width", [80, 100, 200])
def test_text_fits_the_width(plan, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    longest = max(str(plan).splitlines(), key=len)
    assert len(longest) <= width, longest


def test_rich_on_a_terminal_fits_80_columns(plan, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    text = str(plan)
    assert "\x1b" in text
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert max(map(len, plain.splitlines())) <= 80
    for group in plan.groups[:3]:
        assert group.bound in plain


def different_barriers(x):
    return [y / y.sum() for y in (x[:, : n + 2] for n in range(30))]


def test_many_kernels_are_cut_and_counted():
    p = kf.plan(different_barriers, X, device="T4")
    assert len(p.groups) > report.MAX_GROUPS
    text = str(p)
    assert f"the first {report.MAX_GROUPS} of them" in text
    assert re.search(r"\.\.\. and \d+ more in plan\.refusals", text)
    assert len(text.splitlines()) < 300


def test_text_names_what_no_executor_runs():
    p = mlp_plan()
    missing = {g.missing for g in p.groups if not g.executable}
    for what in missing:
        assert what.split()[-1] in str(p)
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


@pytest.mark.parametrize("name", ["barrier", "empty"])
def test_page_loads_nothing_and_says_everything(name):
    plan = PLANS[name]()
    page = plan.to_html()
    assert re.findall(r"(?:src|href|srcset)=\"(?!data:image/svg\+xml;base64,)", page) == []
    assert "@import" not in page
    assert "url(" not in page
    assert page.count("<img ") == 3 == page.count(' alt="')
    assert page.count("prefers-color-scheme: dark") >= 4
    assert '<html lang="en">' in page
    assert 'name="viewport"' in page
    assert "<details>" in page
    for r in plan.refusals[:3]:
        assert str(r.reason) in page


def test_control_characters_do_not_reach_a_terminal():
    table = _tables.Table("a\x1b[2J", ("b\x07",), (("c\x1b[31m",),))
    assert table.plain().isascii()
    assert not any(c in table.plain() + table.html() for c in "\x1b\x07")
