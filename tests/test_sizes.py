"""Calls with other sizes: the trace of two of them serves all others that answer what it asks in the same way."""

import dataclasses
import functools
import itertools
import operator
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kfusion as kf
from kfusion import _core, _fuse
from kfusion._graph import sizes
from kfusion._tracing.trace import trace_with

torch = pytest.importorskip("torch")

SIZES = (5, 8, 3, 12, 1, 0, 2, 31)


@dataclasses.dataclass
class Both:
    a: object
    b: object = None


class Holder:
    pass


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


TRACED_TWICE = {
    "elementwise": lambda x: torch.relu(x + 1),
    "softmax": lambda x: torch.softmax(x, 0),
    "mean by hand": lambda x: x.sum(0) / x.shape[0],
    "scaled": lambda x: x * x.shape[0] ** -0.5,
    "scaled integers": lambda x: (x > 0).long() * x.shape[0] + x.numel(),
    "view": lambda x: x.view(x.shape[0], 2, -1).transpose(0, 1).reshape(-1, 3),
    "flatten": lambda x: x.flatten(),
    "half": lambda x: x[x.shape[0] // 2 :, : x.size(1) // 2],
    "from behind": lambda x: x[-(x.shape[0] // 2 + 1) :].flip(0),
    "step": lambda x: x[::2].sum(),
    "product": lambda x: x @ x.mT,
    "joined": lambda x: torch.cat([x, x[:1], x]),
    "padded": lambda x: torch.nn.functional.pad(x, (1, 2, 3, 4)),
    "rolled": lambda x: torch.roll(x, 1, 0),
    "positions": lambda x: x + torch.arange(x.shape[0])[:, None],
    "positions from 1": lambda x: torch.arange(1, x.shape[0] + 1, dtype=torch.float32) @ x,
    "mask": lambda x: (x @ x.mT).masked_fill(torch.ones(x.shape[0], x.shape[0], dtype=torch.bool).triu(1), -1.0),
    "full": lambda x: torch.full((x.shape[0], 6), 0.5) * x,
    "new": lambda x: x.new_zeros(x.shape[0], 6) + x.new_ones((1, 6)) + x,
    "buffer": lambda x: x + TABLE[: x.shape[0]],
    "rows of a buffer": lambda x: x.mT @ TABLE[: x.shape[0], 1:3],
    "looks at a mask": lambda x: x if torch.ones(x.shape[0], 2).all() else -x,
    "padded positions": lambda x: x * (torch.arange(x.shape[0]) < x.shape[0] - 1)[:, None],
    "triangle": lambda x: (x @ x.mT).masked_fill(~torch.tril(torch.ones(2 * [x.shape[0]])).bool(), -1.0),
    "expanded": lambda x: x.expand(3, -1, -1) + torch.arange(x.numel()).view(1, -1, 6).expand(3, -1, -1),
    "columns": lambda x: x + torch.arange(x.numel()).view(6, -1).mT,
    "written mask": lambda x: x * torch.ones(x.shape[0]).fill_(x.shape[0]).cumsum(0)[:, None],
    "written rows": lambda x: torch.zeros(x.shape[0] + 2, 6).index_add_(0, torch.arange(x.shape[0]), x),
    "written by slices": lambda x: rows_written(x),
    "library": lambda x: torch.cumsum(x, 0)[-1:],
    "strides": lambda x: x * x.view(2, -1, 3).stride(0) + x.mT[::2].stride(1) + x.nbytes if x.is_contiguous() else x,
    "no strides": lambda x: x if x.is_nested or x.mT.is_sparse or not x.is_floating_point() else x + x.itemsize,
    "several results": lambda x: torch.sort(x, 0),
    "a size": lambda x: (x.exp(), x.shape[0], [x.numel() + 1]),
    "written": in_two,
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(*[x.view(-1, 2, 3).transpose(0, 1)] * 3),
}
TABLE = array((64, 6))
HIDDEN = [TABLE * 2]


@pytest.mark.parametrize("name", TRACED_TWICE)
def test_traced_for_two_sizes(name, traces):
    f = kf.fuse(TRACED_TWICE[name])
    for n in (5, 8, 3, 12, 31, 6):
        x = array((n, 6))
        assert_same(f(x), TRACED_TWICE[name](x))
    assert len(traces) == 2


VERY_VALUES = {
    "loop": lambda x: sum((x * i for i in range(x.shape[0])), x),
    "branch": lambda x: x * 2 if x.shape[0] > 6 else x - 1,
    "divides": lambda x: x.view(-1, 2, 6).sum(1) if x.shape[0] % 2 == 0 else x,
    "text": lambda x: x * len(str(x.shape[0])),
    "key": lambda x: x * {5: 2.0, 8: 3.0}.get(x.shape[0], 1.0),
    "power": lambda x: x ** x.shape[0],
    "parts": lambda x: torch.stack([p.sum() for p in x.split(2)]) if x.shape[0] else x,
    "NumPy": lambda x: x * float(np.sqrt(x.shape[0])),
    "list": lambda x: x * len([0] * x.shape[0]) + len(x),
    "largest": lambda x: x * max(x.shape[0], 6) + min(x.shape),
    "float of it": lambda x: x / float(max(x.shape[0], 1)),
    "item": lambda x: x * torch.arange(x.shape[0] + 1).sum().item(),
    "vmap": lambda x: x * torch.vmap(lambda i: i * 2)(torch.arange(x.shape[0] + 1))[1:, None],
    "written after it was read": lambda x: written_after_it_was_read(x),
    "view written": lambda x: x * torch.zeros(x.shape[0] + 1).view(-1)[1:].add_(1)[:, None],
    "buffer written": lambda x: x + TABLE.clone()[: x.shape[0]].mul_(2),
    "unknown": lambda x: x + HIDDEN[0][: x.shape[0]],
    "swallowed": lambda x: swallowed(x),
}


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


@pytest.mark.parametrize("name", VERY_VALUES)
def test_what_needs_the_very_size_is_traced_for_each(name):
    f = kf.fuse(VERY_VALUES[name])
    for n in SIZES:
        x = array((n, 6))
        assert_same(f(x), VERY_VALUES[name](x))


RESULTS_OF_SIZES = {
    "arange": lambda x: (torch.arange(x.shape[0]), x + 1),
    "zeros": lambda x: (torch.zeros(x.shape), x + 1),
    "full of a size": lambda x: (torch.full((2,), x.shape[0]), x + 1),
    "linspace in a list": lambda x: [torch.linspace(0, 1, x.shape[0]), [x + 1]],
    "mask in a dict": lambda x: {"mask": torch.ones(x.shape[0], x.shape[0]).tril(), "y": x + 1},
    "rotary table": lambda x: (table := rotary(x), x * table),
    "rows of a constant": lambda x: (TABLE[: x.shape[0]], x + 1),
    "in a dataclass": lambda x: Both(x + 1, torch.eye(x.shape[0])),
    "in one without traced values": lambda x: (x + 1, Both(torch.eye(x.shape[0]), x.shape[0])),
    "written to": lambda x: (x + 1, torch.ones(x.shape[0]).mul_(2)),
    "several of a call": lambda x: (x + 1, torch.arange(2 * x.shape[0]).view(-1, 2).max(0)),
    "by functions in Python": lambda x: (x + 1, torch.einsum("i,j->ij", torch.ones(x.shape[0]), torch.ones(2))),
    "looked up": lambda x: (x + 1, torch.nn.functional.embedding(torch.arange(x.shape[0]), TABLE)),
    "parameters": lambda x: (x + 1, torch.nn.Parameter(torch.zeros(x.shape[0])), torch.ones(2, requires_grad=True)),
    "torch.Size": lambda x: (x + 1, x.shape, x.size()[1:], (x.mT @ x).shape),
    "slice": lambda x: (x + 1, slice(0, x.shape[0])),
    "partial": lambda x: (x + 1, functools.partial(torch.add, torch.arange(x.shape[0]))),
    "closure": lambda x: (lambda n: (x + 1, lambda: n))(x.shape[0]),
    "object": lambda x: (x + 1, types.SimpleNamespace(n=x.shape[0])),
    "iterator": lambda x: (x + 1, iter([x.shape[0]])),
    "key": lambda x: {x.shape[0]: x + 1},
    "types": lambda x: (x + 1, type(x.shape[0]) is int, isinstance(x.shape[0], int)),
    "of NumPy": lambda x: (x + 1, np.arange(x.shape[0]), np.tri(x.shape[0]), np.float64(x.shape[0])),
    "of neither": lambda x: (x + 1, torch.arange(3.0), np.arange(3.0), [np.arange(3.0)] * 2, Both(np.arange(3.0))),
    "questions": lambda x: (x + 1, x.numel(), x.nbytes, x.dim(), x.itemsize, x.reshape(2, -1).shape[1] // 2),
    "strides": lambda x: (x + 1, x.stride(), x.stride(0), x.mT.stride(-1), (x + 1).stride(), (x @ x.mT).mT.stride(0)),
    "strides of views": lambda x: (x + 1, *(v.stride() for v in views(x)), *(v.is_contiguous() for v in views(x))),
}


def views(x):
    return x[1:, ::2], x[:1].expand(3, -1), x.view(-1, 2, 3).permute(2, 0, 1), x[:, 1], x.mT.contiguous(), x.mT[None]


def rotary(x):
    angles = torch.outer(torch.arange(x.shape[0], dtype=torch.float32), 10.0 ** -torch.arange(x.shape[1] / 2))
    return torch.cat([angles.cos(), angles.sin()], -1)


def with_aux(function):
    gradient = kf.value_and_grad(lambda x: (x.square().sum(), function(x)), has_aux=True)
    return lambda x: gradient(x)[0][1]


@pytest.mark.parametrize("how", ["results", "gradients", "aux"])
@pytest.mark.parametrize("name", RESULTS_OF_SIZES)
def test_results_made_of_sizes(name, how):
    function = RESULTS_OF_SIZES[name]
    fused = with_aux(function) if how == "aux" else kf.fuse(function)
    for n in (4, 5, 6, 7, 4):
        x = array((n, 6)).requires_grad_(how == "gradients")
        found, wanted = fused(x), function(x)
        assert_same(found, wanted)
        overwrite(found)


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


longest = 0


def test_what_is_made_of_sizes_in_objects_of_the_caller_s():
    def function(x, o):
        global longest
        longest = x.shape[0]
        o.mask, o.n, o.part = torch.ones(x.shape[0], x.shape[0]).tril(), x.shape[0], slice(0, x.shape[0])
        seen.n, memory["mask"] = x.shape[0], torch.arange(x.shape[0])
        return x + o.mask.sum()

    seen, memory = types.SimpleNamespace(), {}
    fused = kf.fuse(function)
    for n in (4, 5, 6, 7):
        one, other = types.SimpleNamespace(), Holder()
        wanted = function(array((n, 6)), one)
        assert_same(fused(array((n, 6)), other), wanted)
        assert_same(list(vars(other).values()), list(vars(one).values()))
        assert_same([seen.n, memory["mask"], longest], [n, torch.arange(n), n])


def test_numpy():
    def function(x, y):
        return x[: len(y)] * y + np.mean(x, 0), np.concatenate([x, y]).max(-1), np.sort(y, 0)

    f = kf.fuse(function)
    for n, m in ((5, 4), (8, 3), (7, 7), (12, 2), (9, 5)):
        x, y = array((n, 6)).numpy(), array((m, 6)).numpy()
        assert_same(f(x, y), function(x, y))
    for n in (5, 6, 7):
        assert_same(kf.fuse(np.matmul)(array((n, 4)).numpy(), np.eye(4)), array((n, 4)).numpy() @ np.eye(4))


def test_writing_into_an_argument():
    def f(x, y):
        x[: x.shape[0] // 2] += y.sum()

    fused = kf.fuse(f)
    for n in (4, 6, 9, 11):
        x = array((n, 3))
        wanted = x.clone()
        f(wanted, x.clone())
        fused(x, x.clone())
        assert_same(x, wanted)


def test_captured_arrays_and_modules_may_change():
    held = {"w": array((6, 6))}
    module = torch.nn.Linear(6, 6).requires_grad_(False)

    class Remembers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module
            self.longest = 0

        def forward(self, x):
            if x.shape[0] > self.longest:
                self.longest = x.shape[0]
            return self.inner(x) @ held["w"] + self.longest

    model = Remembers()
    f = kf.fuse(model)
    for n in (4, 6, 9, 11):
        f(array((n, 6)))
    assert type(model.longest) is int
    plain = kf.fuse(lambda x: module(x).relu())
    for i, n in enumerate((4, 6, 9, 11, 7, 5)):
        if i == 3:
            module.weight = torch.nn.Parameter(module.weight * 2, requires_grad=False)
        if i == 4:
            module.weight.data = module.weight.data * 2
        x = array((n, 6))
        assert_same(plain(x), module(x).relu())


def test_sizes_meet_numbers_and_arrays():
    f = lambda x, a, k: (x * (a * x.shape[0]) + k * x.shape[0], np.float32(2) * x * x.shape[1])  # noqa: E731
    fused = kf.fuse(f)
    for n, a in ((3, 0.5), (4, 0.25), (5, 2.5), (7, 1.5)):
        assert_same(fused(array((n, 6)), a, n), f(array((n, 6)), a, n))


def test_float16_factors_beyond_its_range():
    f = kf.fuse(lambda x: x / x.shape[0])
    for n in (70000, 80000, 5, 90000, 66000, 100):
        x = torch.ones(n, dtype=torch.float16)
        assert_same(f(x), x / n)


def recorded(here, there):
    graph = sizes.RecordedGraph([(here,)], [(there,)])
    return graph.shape_of_argument(0, (here,))[0]


def test_a_size_is_an_int_for_python_and_a_size_for_torch():
    n = recorded(7, 9)
    assert isinstance(n, int)
    assert isinstance(n, torch.SymInt)
    assert isinstance(n + 1, int)
    assert n + 1 > 7
    assert n % 2 == 1
    assert n != 8
    assert bool(n)
    for ask in (range, hash, str, float, int, operator.index, [0].__mul__, lambda n: n > 8):
        m = recorded(7, 9)
        with pytest.raises(sizes.NotTheSame):
            ask(m)
    n._graph.is_open = False
    assert list(range(n)) == list(range(7))
    assert n > 6
    assert f"{n}" == "7"
    assert n + 1 == 8


bounds = st.one_of(st.none(), st.integers(-12, 12))


@given(bounds, bounds, st.sampled_from([None, 1, 2, 3, -1, -2]), st.integers(0, 9))
def test_slices_of_sizes(start, stop, step, n):
    key = slice(start, stop, step)
    graph = sizes.RecordedGraph([(n,)], [(n + 100,)])
    size = graph.shape_of_argument(0, (n,))[0]
    try:
        found = sizes.indices(key, size)
        count = sizes.length(*found)
    except sizes.NotTheSame:
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


@settings(deadline=None)
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


ON_A_GPU = {
    "softmax": lambda x: torch.softmax(x, 0) / x.shape[0],
    "positions": lambda x: x + torch.arange(x.shape[0], device=x.device)[:, None],
    "mask": lambda x: (x @ x.mT).masked_fill(torch.ones(2 * [x.shape[0]], device=x.device).tril() == 0, -1.0),
    "a number": lambda x: x * torch.tensor(x.shape[0]),
    "joined": lambda x: torch.cat([x, x[: x.shape[0] // 2]]).cumsum(0),
}


@pytest.mark.cuda
@pytest.mark.skipif(_core.cuda_device_count() == 0, reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("name", ON_A_GPU)
def test_on_a_gpu(name):
    f = kf.fuse(ON_A_GPU[name])
    for n in (5, 8, 3, 12, 31, 6):
        x = array((n, 6)).cuda()
        found, wanted = f(x), ON_A_GPU[name](x)
        assert found.device == wanted.device
        assert_same(found.cpu(), wanted.cpu())
