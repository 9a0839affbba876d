"""Calls with other sizes: the trace of two of them serves all others that answer what it asks in the same way."""

import dataclasses
import functools
import itertools
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kfusion as kf
from kfusion import _core, _fuse
from kfusion._graph import sizes, tape
from kfusion._tracing.trace import trace_with
from sweeps import sweep

torch = pytest.importorskip("torch")

SIZES = (5, 8, 3, 12, 1, 0, 2, 31)


@dataclasses.dataclass
class Both:
    a: object
    b: object = None


PARTS = {
    dict: lambda d: [list(d), list(d.values())],
    Both: lambda b: [b.a, b.b],
    types.SimpleNamespace: lambda s: list(vars(s).values()),
    functools.partial: lambda p: [p.func, p.args],
    types.FunctionType: lambda f: [f()],
    type(iter([])): list,
}


def array(shape):
    return torch.from_numpy(np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32))


def assert_same(found, wanted):
    assert type(found) is type(wanted)
    if isinstance(wanted, (tuple, list)):
        assert len(found) == len(wanted)
        for f, w in zip(found, wanted, strict=True):
            assert_same(f, w)
    elif isinstance(wanted, (torch.Tensor, np.ndarray)):
        assert found.dtype == wanted.dtype
        assert found.shape == wanted.shape
        assert getattr(found, "requires_grad", None) == getattr(wanted, "requires_grad", None)
        found, wanted = (np.asarray(x.detach() if isinstance(x, torch.Tensor) else x) for x in (found, wanted))
        largest = np.abs(wanted).max(where=np.isfinite(wanted), initial=1)  # terms of a sum may cancel
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-5 * largest)
    elif type(wanted) in PARTS:
        assert_same(PARTS[type(wanted)](found), PARTS[type(wanted)](wanted))
    else:
        assert found == wanted


@pytest.fixture
def traces(monkeypatch):
    """One entry for each time that a function was traced."""
    made = []
    monkeypatch.setattr(_fuse, "trace_with", lambda *given: (made.append(1), trace_with(*given))[1])
    return made


def rows_written(x):
    ones = torch.ones(x.shape[0], 6)
    ones += 1
    y = torch.zeros_like(x)
    y[1:] = x[:-1]
    return y + ones


def in_two(x):
    n = x.shape[0] // 2
    y = x * 2
    y[:n] = 0
    return y, n


TRACED_TWICE = [
    lambda x: x * x.shape[0] ** -0.5,
    lambda x: (x > 0).long() * x.shape[0] + x.numel(),
    lambda x: x.view(x.shape[0], 2, -1).transpose(0, 1).reshape(-1, 3),
    lambda x: x[x.shape[0] // 2 :, : x.size(1) // 2],
    lambda x: x[-(x.shape[0] // 2 + 1) :].flip(0),
    lambda x: torch.nn.functional.pad(x, (1, 2, 3, 4)),
    lambda x: torch.arange(1, x.shape[0] + 1, dtype=torch.float32) @ x,
    lambda x: (x @ x.mT).masked_fill(torch.ones(x.shape[0], x.shape[0], dtype=torch.bool).triu(1), -1.0),
    lambda x: x.new_zeros(x.shape[0], 6) + x.new_ones((1, 6)) + x,
    lambda x: x + TABLE[: x.shape[0]],
    lambda x: x.mT @ TABLE[: x.shape[0], 1:3],
    lambda x: x if torch.ones(x.shape[0], 2).all() else -x,
    lambda x: x * (torch.arange(x.shape[0]) < x.shape[0] - 1)[:, None],
    lambda x: x.expand(3, -1, -1) + torch.arange(x.numel()).view(1, -1, 6).expand(3, -1, -1),
    lambda x: x * torch.ones(x.shape[0]).fill_(x.shape[0]).cumsum(0)[:, None],
    lambda x: torch.zeros(x.shape[0] + 2, 6).index_add_(0, torch.arange(x.shape[0]), x),
    lambda x: rows_written(x),
    lambda x: torch.cumsum(x, 0)[-1:],
    lambda x: x * x.view(2, -1, 3).stride(0) + x.mT[::2].stride(1) + x.nbytes if x.is_contiguous() else x,
    lambda x: x if x.is_nested or x.mT.is_sparse or not x.is_floating_point() else x + x.itemsize,
    lambda x: torch.sort(x, 0),
    lambda x: (x.exp(), x.shape[0], [x.numel() + 1]),
    in_two,
    lambda x: torch.nn.functional.scaled_dot_product_attention(*[x.view(-1, 2, 3).transpose(0, 1)] * 3),
]
TABLE = array((64, 6))
HIDDEN = [TABLE * 2]


def test_traced_for_two_sizes(traces, some):
    def check(function):
        traces.clear()
        f = kf.fuse(function)
        for n in (5, 8, 3, 12, 31, 6):
            assert_same(f(array((n, 6))), function(array((n, 6))))
        assert len(traces) == 2

    sweep(check, some([(f,) for f in TRACED_TWICE], 9))


def written_after_it_was_read(x):
    ones = torch.ones(x.shape[0], 6)
    y = x + ones
    ones.mul_(3)
    return y + ones


def swallowed(x):
    try:
        n = range(x.shape[0])
    except BaseException:
        return x * 0
    return x + len(n)


VERY_VALUES = [
    lambda x: sum((x * i for i in range(x.shape[0])), x),
    lambda x: x * 2 if x.shape[0] > 6 else x - 1,
    lambda x: x.view(-1, 2, 6).sum(1) if x.shape[0] % 2 == 0 else x,
    lambda x: x * len(str(x.shape[0])),
    lambda x: x * {5: 2.0, 8: 3.0}.get(x.shape[0], 1.0),
    lambda x: x ** x.shape[0],
    lambda x: torch.stack([p.sum() for p in x.split(2)]) if x.shape[0] else x,
    lambda x: x * float(np.sqrt(x.shape[0])),
    lambda x: x * len([0] * x.shape[0]) + len(x),
    lambda x: x * max(x.shape[0], 6) + min(x.shape),
    lambda x: x / float(max(x.shape[0], 1)),
    lambda x: x * torch.arange(x.shape[0] + 1).sum().item(),
    lambda x: x * torch.vmap(lambda i: i * 2)(torch.arange(x.shape[0] + 1))[1:, None],
    written_after_it_was_read,
    lambda x: x * torch.zeros(x.shape[0] + 1).view(-1)[1:].add_(1)[:, None],
    lambda x: x + TABLE.clone()[: x.shape[0]].mul_(2),
    lambda x: x + HIDDEN[0][: x.shape[0]],
    swallowed,
]


def test_what_needs_the_very_size_is_traced_for_each(some):
    def check(function):
        f = kf.fuse(function)
        for n in SIZES:
            assert_same(f(array((n, 6))), function(array((n, 6))))

    sweep(check, some([(f,) for f in VERY_VALUES], 8))


# What random programs return of sizes is in support/programs/interfaces.py.
RESULTS_OF_SIZES = [
    lambda x: (table := rotary(x), x * table),
    lambda x: (x + 1, Both(torch.eye(x.shape[0]), x.shape[0])),
    lambda x: (x + 1, torch.ones(x.shape[0]).mul_(2)),
    lambda x: (x + 1, torch.arange(2 * x.shape[0]).view(-1, 2).max(0)),
    lambda x: (x + 1, torch.einsum("i,j->ij", torch.ones(x.shape[0]), torch.ones(2))),
    lambda x: (x + 1, torch.nn.functional.embedding(torch.arange(x.shape[0]), TABLE)),
    lambda x: (x + 1, torch.nn.Parameter(torch.zeros(x.shape[0])), torch.ones(2, requires_grad=True)),
    lambda x: (x + 1, functools.partial(torch.add, torch.arange(x.shape[0]))),
    lambda x: (lambda n: (x + 1, lambda: n))(x.shape[0]),
    lambda x: (x + 1, types.SimpleNamespace(n=x.shape[0])),
    lambda x: (x + 1, iter([x.shape[0]])),
    lambda x: {x.shape[0]: x + 1},
    lambda x: (x + 1, type(x.shape[0]) is int, isinstance(x.shape[0], int)),
    lambda x: (x + 1, np.arange(x.shape[0]), np.tri(x.shape[0]), np.float64(x.shape[0])),
    lambda x: (x + 1, torch.arange(3.0), np.arange(3.0), [np.arange(3.0)] * 2, Both(np.arange(3.0))),
    lambda x: (x + 1, x.numel(), x.nbytes, x.dim(), x.itemsize, x.reshape(2, -1).shape[1] // 2),
    lambda x: (x + 1, x.stride(), x.stride(0), x.mT.stride(-1), (x + 1).stride(), (x @ x.mT).mT.stride(0)),
    lambda x: (x + 1, *(v.stride() for v in views(x)), *(v.is_contiguous() for v in views(x))),
]


def views(x):
    return x[1:, ::2], x[:1].expand(3, -1), x.view(-1, 2, 3).permute(2, 0, 1), x[:, 1], x.mT.contiguous(), x.mT[None]


def rotary(x):
    angles = torch.outer(torch.arange(x.shape[0], dtype=torch.float32), 10.0 ** -torch.arange(x.shape[1] / 2))
    return torch.cat([angles.cos(), angles.sin()], -1)


def with_aux(function):
    gradient = kf.value_and_grad(lambda x: (x.square().sum(), function(x)), has_aux=True)
    return lambda x: gradient(x)[0][1]


@pytest.mark.parametrize("how", ["results", "gradients", "aux"])
def test_results_made_of_sizes(how, some):
    def check(function):
        fused = with_aux(function) if how == "aux" else kf.fuse(function)
        for n in (4, 5, 6, 7, 4):
            x = array((n, 6)).requires_grad_(how == "gradients")
            found, wanted = fused(x), function(x)
            assert_same(found, wanted)
            overwrite(found)

    sweep(check, some([(f,) for f in RESULTS_OF_SIZES], 9))


def overwrite(result):
    """What the next call returns is not to be this."""
    if isinstance(result, torch.Tensor) and not shares_memory(result, TABLE):
        result.detach().fill_(77)
    elif isinstance(result, np.ndarray):
        result[...] = 77
    elif isinstance(result, (tuple, list)):
        for item in result:
            overwrite(item)
    elif dataclasses.is_dataclass(result) or isinstance(result, dict):
        overwrite(list(result.values() if isinstance(result, dict) else vars(result).values()))


def shares_memory(x, y):
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def test_captured_arrays_and_modules_may_change():
    held, module = {"w": array((6, 6))}, torch.nn.Linear(6, 6).requires_grad_(False)
    function = lambda x: module(x).relu() @ held["w"]  # noqa: E731
    plain = kf.fuse(function)
    for i, n in enumerate((4, 6, 9, 11, 7, 5)):
        if i == 3:
            module.weight = torch.nn.Parameter(module.weight * 2, requires_grad=False)
        if i == 4:
            module.weight.data, held["w"] = module.weight.data * 2, held["w"] + 1
        assert_same(plain(array((n, 6))), function(array((n, 6))))


def test_sizes_meet_numbers_and_arrays():
    f = lambda x, a, k: (x * (a * x.shape[0]) + k * x.shape[0], np.float32(2) * x * x.shape[1])  # noqa: E731
    fused, divided = kf.fuse(f), kf.fuse(lambda x: x / x.shape[0])
    for n, a in ((3, 0.5), (4, 0.25), (5, 2.5), (7, 1.5)):
        assert_same(fused(array((n, 6)), a, n), f(array((n, 6)), a, n))
    for n in (70000, 80000, 5, 90000, 66000, 100):  # factors beyond float16
        x = torch.ones(n, dtype=torch.float16)
        assert_same(divided(x), x / n)


bounds = st.one_of(st.none(), st.integers(-12, 12))


@given(bounds, bounds, st.sampled_from([None, 1, 2, 3, -1, -2]), st.integers(0, 9))
def test_slices_of_sizes(start, stop, step, n):
    key = slice(start, stop, step)
    graph = sizes.RecordedGraph([(n,)], [(n + 100,)])
    size = graph.shape_of_argument(0, (n,))[0]
    try:
        found = sizes.indices(key, size)
        count = sizes.length(*found)
    except tape.NotTheSame:
        return
    assert sizes.of_call(list(found), 0) == list(key.indices(n))
    assert sizes.of_call(list(found), 1) == list(key.indices(n + 100))
    assert sizes.value(count, 0) == len(range(n)[key])
    assert sizes.value(count, 1) == len(range(n + 100)[key])


STEPS = (
    lambda x: x.relu() - 0.5,
    lambda x: x + x.shape[0],
    lambda x: x[: x.shape[0] // 2 + 1],
    lambda x: x[x.shape[0] // 3 :],
    lambda x: x[:, ::2],
    lambda x: x.flip(0),
    lambda x: x.mT,
    lambda x: torch.cat([x, x * 2], 1),
    lambda x: torch.cat([x, x[:1]]),
    lambda x: x - x.mean(0),
    lambda x: x.softmax(1),
    lambda x: x.reshape(x.shape[1], -1),
    lambda x: x.reshape(-1).reshape(x.shape) * x.numel(),
    lambda x: x.cumsum(0),
    lambda x: torch.nn.functional.pad(x, (1, 0)),
    lambda x: x * torch.arange(x.shape[1]),
    lambda x: x.masked_fill(torch.ones(x.shape[0], x.shape[1], dtype=torch.bool).tril(), 0.25),
    lambda x: x * 2 if x.shape[0] > x.shape[1] else x + 1,
    lambda x: x * 2 if x.shape[0] % 3 else x + 1,
    lambda x: x.repeat(2, 1),
    lambda x: x.expand(2, -1, -1).sum(0),
    lambda x: (x @ x.mT).tanh(),
    lambda x: x.index_select(0, torch.arange(x.shape[0] // 2)),
    lambda x: x.unsqueeze(1).squeeze(1).roll(2, 0),
    lambda x: torch.sort(x, 1).values,
    lambda x: x.narrow(0, 0, max(x.shape[0] - 1, 0)),
)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=5), st.data())
def test_random_functions_of_sizes(steps, data):
    def f(x):
        for step in steps:
            x = step(x)
        return x

    fused = kf.fuse(f)
    extents = st.tuples(st.integers(0, 9), st.integers(0, 9))
    for shape in data.draw(st.lists(extents, min_size=3, max_size=5)):
        x = array(shape)
        try:
            wanted = f(x)
        except (RuntimeError, ValueError, IndexError):
            with pytest.raises((RuntimeError, ValueError, IndexError, TypeError)):
                fused(x)
            continue
        assert_same(fused(x), wanted)


def test_several_varying_axes_and_kinds_of_calls(traces):
    function = lambda q, k: torch.softmax(q @ k.mT, -1)  # noqa: E731
    f = kf.fuse(function)
    for b, s, n in itertools.product((1, 2, 3, 4), (1, 2, 5), (3, 4)):
        q, k = array((b, s, 8)), array((b, n, 8))
        assert_same(f(q, k), function(q, k))
    assert len(traces) <= 16  # of axes of 1 and longer ones apart


ON_A_GPU = [
    lambda x: torch.softmax(x, 0) / x.shape[0],
    lambda x: x + torch.arange(x.shape[0], device=x.device)[:, None],
    lambda x: (x @ x.mT).masked_fill(torch.ones(2 * [x.shape[0]], device=x.device).tril() == 0, -1.0),
    lambda x: x * torch.tensor(x.shape[0]),
    lambda x: torch.cat([x, x[: x.shape[0] // 2]]).cumsum(0),
]


@pytest.mark.cuda
@pytest.mark.skipif(_core.cuda_device_count() == 0, reason="needs an NVIDIA GPU")
def test_on_a_gpu():
    def check(function):
        f = kf.fuse(function)
        for n in (5, 8, 3, 12, 31, 6):
            x = array((n, 6)).cuda()
            found, wanted = f(x), function(x)
            assert found.device == wanted.device
            assert_same(found.cpu(), wanted.cpu())

    sweep(check, [(f,) for f in ON_A_GPU])
