"""What the op table calls its rows in JAX and ONNX: primitives and operators that exist, each of one row."""

from __future__ import annotations

from collections import Counter

import pytest

from kfusion import _core

ROWS = _core.op_table()


@pytest.mark.parametrize("library", ["lax", "onnx"])
def test_names_are_of_one_row(library):
    names = Counter(name for row in ROWS for name in row[library])
    assert names.most_common(1)[0][1] == 1


def test_plain_names_have_no_library():
    assert not [name for row in ROWS for name in row["other_names"] if "." in name]


def test_jax_has_the_primitives():
    known = pytest.importorskip("jax.extend.core.primitives")
    primitives = {p.name for p in vars(known).values() if hasattr(p, "name")}
    assert not {name for row in ROWS for name in row["lax"]} - primitives


def test_onnx_has_the_operators():
    onnx = pytest.importorskip("onnx")
    inputs = {s.name: s.max_input for s in onnx.defs.get_all_schemas()}
    arity = {name: row["arity"] for row in ROWS for name in row["onnx"]}
    assert {name: inputs.get(name) for name in arity} == arity
