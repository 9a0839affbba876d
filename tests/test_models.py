"""Whole models through kf.fuse: the results are torch's, of torch's kinds."""

from __future__ import annotations

import importlib.util

import pytest

import kfusion as kf

torch = pytest.importorskip("torch")

from benchmarks.model_zoo import MODELS, Size, built  # noqa: E402 - needs torch
from benchmarks.models import OF_TRANSFORMERS, OWN  # noqa: E402

NEEDS = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
NAMES = [pytest.param(name, marks=() if name in OWN else NEEDS) for name in MODELS]


def test_every_model_is_measured():
    assert set(MODELS) == {*OF_TRANSFORMERS, *OWN}


@pytest.mark.parametrize("name", NAMES)
def test_results_are_those_of_eager(name):
    model, inputs = built(name, Size(real=False))
    fused = kf.fuse(model)
    got, want = fused(**inputs), model(**inputs)
    assert type(got) is type(want)
    torch.testing.assert_close(leaves(got), leaves(want), rtol=1e-4, atol=1e-5)
    plan = fused.plan(**inputs)
    assert plan.fused.launches <= plan.library.launches
    assert plan.fused.launches < plan.unfused.launches


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_is_as_exact_as_eager(name):
    model, inputs = built(name, Size(real=False), dtype=torch.bfloat16)
    got, eager = leaves(kf.fuse(model)(**inputs)), leaves(model(**inputs))
    exact = {k: x.double() if x.is_floating_point() else x for k, x in inputs.items()}
    for g, e, want in zip(got, eager, leaves(model.double()(**exact)), strict=True):
        assert g.dtype == e.dtype
        assert error(g, want) <= 1.5 * error(e, want) + 0.02


def error(x, want):
    """The root of the mean square of what is wrong, relative to that of the result."""
    return float((x.double() - want).norm() / want.norm())


def leaves(value):
    """The tensors of a result, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    value = list(value.values()) if isinstance(value, dict) else value
    return [t for v in value for t in leaves(v)] if isinstance(value, (tuple, list)) else []
