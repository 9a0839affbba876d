"""Whole models through kf.fuse: the results are torch's, of torch's kinds."""

from __future__ import annotations

import importlib.util
import inspect

import pytest

import kfusion as kf
from kfusion import _fuse
from kfusion._tracing.trace import trace_with

torch = pytest.importorskip("torch")

from benchmarks.model_zoo import MODELS, Size, built  # noqa: E402 - needs torch
from benchmarks.models import OWN, TRANSFORMERS  # noqa: E402

NEEDS = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
NAMES = [pytest.param(name, marks=() if name in OWN else NEEDS) for name in MODELS]


def test_every_model_is_measured():
    assert set(MODELS) == {*TRANSFORMERS, *OWN}


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


@pytest.mark.parametrize("name", NAMES)
def test_two_traces_serve_other_batches_and_lengths(name, monkeypatch):
    traces = []
    monkeypatch.setattr(_fuse, "trace_with", lambda *given: (traces.append(1), trace_with(*given))[1])
    model, inputs = built(name, Size(real=False))
    fused = kf.fuse(model)
    for batch, less in ((2, 1), (3, 2), (4, 3), (5, 2)):
        given = {k: torch.cat([x[:, :-less] if is_text(x) else x] * batch) for k, x in inputs.items()}
        torch.testing.assert_close(leaves(fused(**given)), leaves(model(**given)), rtol=1e-4, atol=1e-5)
    assert len(traces) == 2


def is_text(x):
    return x.dim() == 2 and not x.is_floating_point() and x.shape[1] > 4


@NEEDS
@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Mistral"])
def test_masks_of_padding(name):
    model, inputs = built(name, Size(real=False, batch=2))
    ids = inputs["input_ids"]
    fused = kf.fuse(model)
    for padded in (0, 3):
        mask = torch.ones_like(ids)
        mask[1, :padded] = 0
        got, want = (m(input_ids=ids, attention_mask=mask) for m in (fused, model))
        torch.testing.assert_close(leaves(got)[0][mask > 0], leaves(want)[0][mask > 0], rtol=1e-4, atol=1e-5)


@NEEDS
@pytest.mark.parametrize("kind", ["DynamicCache", "StaticCache"])
@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_generation_with_a_cache(name, kind):
    import transformers

    model, inputs = built(name, Size(real=False))
    room = {"max_cache_len": 24} if kind == "StaticCache" else {}
    fused, traces = kf.fuse(model), []
    for _ in range(3):
        caches = [getattr(transformers, kind)(config=model.config, **room) for _ in range(2)]
        ids = inputs["input_ids"][:, :5]
        for _ in range(3):
            got, want = (
                m(input_ids=ids, use_cache=True, **{cache_of(model): c})
                for m, c in zip((fused, model), caches, strict=True)
            )
            assert got.past_key_values is caches[0]
            torch.testing.assert_close(got.logits, want.logits, rtol=1e-4, atol=1e-5)
            ids = want.logits[:, -1:].argmax(-1)
        for mine, theirs in zip(*(c.layers for c in caches), strict=True):
            torch.testing.assert_close(mine.keys, theirs.keys, rtol=1e-4, atol=1e-5)
        traces.append(fused.fused_function._cached())
    # The first call of a process may set what the library keeps in its globals.
    assert traces[0] == (2 if kind == "StaticCache" else 3)
    assert traces[2] == traces[1] <= traces[0] + 1


@NEEDS
def test_a_cache_that_comes_back():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=50)).eval().requires_grad_(False)
    ids = torch.arange(4)[None]
    fused, want = kf.fuse(model), model(ids)
    first, second = fused(ids), fused(ids + 1)
    assert type(first.past_key_values) is type(want.past_key_values)
    assert first.past_key_values is not second.past_key_values
    for mine, theirs in zip(first.past_key_values.layers, want.past_key_values.layers, strict=True):
        torch.testing.assert_close(mine.values, theirs.values, rtol=1e-4, atol=1e-5)


def cache_of(model):
    """The parameter of that name, which older versions of transformers have another one for."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def error(x, want):
    """The root of the mean square of what is wrong, relative to that of the result."""
    return float((x.double() - want).norm() / want.norm())


def leaves(value):
    """The tensors of a result, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    value = list(value.values()) if isinstance(value, dict) else value
    return [t for v in value for t in leaves(v)] if isinstance(value, (tuple, list)) else []
