"""What is a copy and what is a view, of which dtype, and how far generators of random numbers move: asked of the
libraries, and compared with them. What a function itself draws is refused."""

from __future__ import annotations

import itertools
import os
import random
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import kfusion as kf
from differential import outcome
from kfusion._ops import views
from kfusion._tracing import library_checks, torch_functions
from sweeps import refusals, sweep, texts

torch = pytest.importorskip("torch")
F, nn = torch.nn.functional, torch.nn
NAMES = {"np": np, "torch": torch, "F": F}

# Functions of x of shape (4, 6) whose result may be x, a view of it, or a copy.
# Functions of x of shape (4, 6) whose result may be x, a view of it, or a copy.
OF_TORCH = """
x.to(torch.float32) ; x.to(torch.float32, copy=True) ; x.to("cpu", torch.float32, copy=True) ; x.float() ; x.to(x)
x.to(x, copy=True) ; x.type_as(x) ; x.type(torch.float32) ; x.cpu() ; F.pad(x, (0, 0)) ; F.pad(x, (0, -1))
F.pad(x, (0, 0, 0, 0)) ; F.pad(x, (-x.shape[1] % 6, 0)) ; F.pad(x[None], (0, 0), mode="reflect") ; F.pad(x, (0, 1))
torch.roll(x, 0) ; torch.roll(x, 6, 1) ; x.roll(0, 0) ; x.roll((4, 6), (0, 1)) ; x.flip([]) ; x.flip(0) ; x.fliplr()
torch.diff(x, n=0) ; x.repeat(1, 1) ; x.repeat(2, 1) ; x.tile((1,)) ; x.tile((2, 1)) ; torch.repeat_interleave(x, 1, 0)
+x ; x.positive() ; x * 1 ; x.expand(4, 6) ; x.expand(2, 4, 6) ; x.contiguous() ; x.T.contiguous() ; x.clone()
x.detach() ; x.reshape(6, 4) ; x.T.reshape(-1) ; x.view(-1) ; x.flatten() ; x.T.flatten() ; x.ravel() ; x.squeeze()
x.unsqueeze(0) ; x[:] ; x[...] ; x[None] ; x[1:3] ; x[:, ::2] ; x[0] ; x[0, 0] ; x[[0, 1]] ; x.narrow(0, 1, 2)
x.select(1, 0) ; x.chunk(1)[0] ; x.split(4)[0] ; x.unbind()[0] ; torch.cat([x]) ; torch.stack([x])[0]
torch.hstack([x]) ; torch.atleast_1d(x) ; torch.atleast_3d(x) ; torch.broadcast_tensors(x, x)[0]
torch.einsum("ij->ij", x) ; torch.einsum("ij->ji", x) ; torch.rot90(x, 0) ; torch.rot90(x, 4) ; x.real ; x.T ; x.mT
x.movedim(0, 1) ; x.diagonal() ; x.unfold(0, 2, 1) ; x.tril(9) ; x.triu(-9) ; x.clamp(-1e9) ; x.masked_fill(x > 1e9, 0)
torch.where(x > -1e9, x, x) ; x.abs() ; x.nan_to_num() ; x.round() ; F.dropout(x, 0.0)
F.dropout(x, 0.5, training=False) ; x.gather(0, (x * 0).long()) ; x.index_select(0, torch.arange(4))
x.take_along_dim((x * 0).long(), 0) ; x.unflatten(0, (2, 2)) ; x.view_as(x) ; x.mean(0) ; x.amax(0) ; x.resolve_conj()
x.cumsum(0) ; x.sort(0)[0] ; torch.block_diag(x) ; torch.meshgrid(x[0], x[1], indexing="ij")[0]
"""
OF_NUMPY = """
np.pad(x, 0) ; np.pad(x, (0, 0)) ; np.pad(x, 0, "edge") ; np.roll(x, 0) ; np.roll(x, 6, 1) ; np.roll(x, (4, 6), (0, 1))
np.roll(x, 24) ; np.flip(x) ; np.flip(x, ()) ; np.fliplr(x) ; np.rot90(x, 0) ; np.rot90(x, 4) ; np.einsum("ij->ji", x)
np.einsum("ij->ij", x) ; x.astype("f4") ; x.astype("f4", copy=False) ; x.astype("f8", copy=False) ; +x ; np.positive(x)
np.tile(x, 1) ; np.tile(x, (1, 1)) ; np.tile(x, 2) ; np.repeat(x, 1, 0) ; np.repeat(x, 2, 0) ; np.diff(x, n=0)
np.concatenate([x]) ; np.stack([x])[0] ; np.hstack([x]) ; np.append(x, x[:0], 0) ; np.reshape(x, (6, 4)) ; np.ravel(x)
x.ravel() ; x.flatten() ; x.reshape(-1) ; x.T.reshape(-1) ; x.T.ravel() ; np.transpose(x) ; x.T ; np.swapaxes(x, 0, 1)
np.moveaxis(x, 0, 1) ; np.squeeze(x) ; np.expand_dims(x, 0) ; np.atleast_2d(x) ; np.atleast_3d(x)
np.broadcast_to(x, (2, 4, 6)) * 1 ; np.broadcast_arrays(x, x)[0] * 1 ; np.copy(x) ; x.copy() ; np.real(x) ; x.real
x[:] ; x[...] ; x[None] ; x[1:3] ; x[:, ::2] ; x[::-1] ; x[0] ; x[0, 0] ; x[0, 0, ...] ; x[[0, 1]] ; np.split(x, 1)[0]
np.array_split(x, 2)[1] ; np.vsplit(x, 2)[0] ; np.hsplit(x, 1)[0] ; np.clip(x, -1e9, None) ; np.around(x)
np.nan_to_num(x) ; np.tril(x, 9) ; np.where(x > -1e9, x, x) ; np.take(x, [0, 1], 0)
np.take_along_axis(x, (x * 0).astype(int), 0) ; np.real_if_close(x) ; np.diagonal(x) * 1 ; np.meshgrid(x[0], x[1])[0]
np.meshgrid(x[0], x[1], copy=False, indexing="ij")[0] * 1 ; np.meshgrid(x[0], x[1], sparse=True)[0] ; np.abs(x)
np.sum(x, ()) ; x.sum(()) ; np.squeeze(x[:1]) ; np.delete(x, 0, 0) ; np.delete(x, [], 0) ; np.insert(x, [], 0, 0)
np.resize(x, (4, 6)) ; np.sort(x) ; np.ediff1d(x) ; np.unstack(x)[0] ; np.permute_dims(x) ; np.matrix_transpose(x)
np.unwrap(x) ; np.fix(x)
"""


def writes(text):
    """Functions that write around the expression: into its result, and into x before and after it is read."""
    made = eval(f"lambda x: {text}", NAMES)

    def into_result(x):
        y = made(x)
        y += 1
        return y * 1, x * 1

    def into_argument(x):
        y = made(x)
        x += 1
        return y * 1, x * 1

    def before_and_after(x):
        x *= 2
        y = made(x)
        x[1:2] = 7
        return y + 0, x + 0

    return into_result, into_argument, before_and_after


def called(f, x):
    """The results and what is in x afterwards, or the error."""
    try:
        return [np.array(v) for v in (*f(x), x)]
    except kf.TraceError:
        raise
    except Exception as error:
        return type(error)


def same(a, b):
    if isinstance(a, type) or isinstance(b, type):
        return isinstance(a, type) and isinstance(b, type)
    return all(v.dtype == w.dtype and np.allclose(v, w, 1e-5, 1e-5) for v, w in zip(a, b, strict=True))


def test_writes_around_what_may_be_a_copy(some, rng):
    """Each write arrives where the library's arrives, or the function is refused."""
    x = rng.standard_normal((4, 6)).astype("float32")

    def check(text, make):
        for f in writes(text):
            given = [make(x.copy()) for _ in range(2)]
            with library_checks.using(library_checks.raised):
                try:
                    got = called(kf.fuse(f), given[0])
                except kf.TraceError:
                    assert np.array_equal(given[0], x)  # nothing was written
                    continue
            assert same(got, called(f, given[1])), f.__name__

    rows = [(text, torch.from_numpy) for text in texts(OF_TORCH)] + [(text, np.asarray) for text in texts(OF_NUMPY)]
    sweep(check, some(rows, 16))


def test_differences_are_errors(monkeypatch):
    """Their messages say what the library gives and what is traced."""

    def check(name, traced, call, message):
        with monkeypatch.context() as context, library_checks.using(library_checks.raised):
            for key in {name, f"Tensor.{name}"} & torch_functions.FUNCTIONS.keys():
                context.setitem(torch_functions.FUNCTIONS, key, traced)
            with pytest.raises(library_checks.LibraryDifference, match=message):
                kf.trace(lambda x: call(x), kf.spec((4, 4), like="torch"))

    rows = [
        ("relu", lambda input: input.double(), torch.relu,
         r"torch\.relu: is of float32, traced of float64; arguments \['float32\[4, 4\]'\]"),
        ("movedim", lambda x, *axes: views.reshape(x, x.shape), lambda x: x.movedim(0, 1),
         r"torch\.movedim: has strides \[1, 4\], traced \[4, 1\]"),
        ("dropout", lambda x, p=0.5, training=True: x * 1, lambda x: F.dropout(x, 0.5),
         r"torch\.dropout: moves generators torch, traced no generator"),
        ("relu", lambda x: x._tracer.next_stream() is None or x * 1, torch.relu,
         r"torch\.relu: moves no generator, traced generators torch"),
    ]  # fmt: skip
    sweep(check, rows)


def test_results_share_no_memory(rng):
    """Not with arguments, nor with each other; an argument that was written to comes back itself."""

    def f(x, y):
        y += 1
        return x, x.T, x[1:], x.reshape(-1), x * 1, x, y, y.T

    for make in (np.asarray, torch.from_numpy):
        given = [make(rng.standard_normal((4, 6))) for _ in range(2)]
        results = kf.fuse(f)(*given)
        assert results[-2] is given[1]
        arrays = [np.asarray(r) for r in (*results[:-2], results[-1], *given)]
        assert not any(np.shares_memory(a, b) for a, b in itertools.combinations(arrays, 2))


OF_INTEGERS = """
np.take(x, i, 0) ; x.take(i, 0) ; np.take(x, i, 0, mode="wrap") ; np.take_along_axis(x, i[:, None], 1) ; x[i] ; x[i, i]
np.choose(i, [x[:, 0], x[:, 1], x[:, 2]]) ; np.ravel_multi_index((i, i), (3, 4)) + x[0, 0] ; np.tile(x, i)
np.repeat(x, i, 0) ; x.repeat(i, axis=0) ; np.resize(x, i + 1) ; np.delete(x, i[1:], 1) ; np.delete(x, i == 1, 0)
np.insert(x, i, 7, 1) ; np.unravel_index(i, (3, 4))[0] + x[0, 0] ; np.reshape(x, i[:1] + 10) ; np.split(x, i[:1], 0)[1]
np.isin(x, i) ; np.searchsorted(x[0], i) ; np.pad(x, i[:2]) ; np.roll(x, i[:2], (0, 1)) ; np.outer(i, x)
"""


def test_arrays_of_integers_in_calls_of_numpy(rng):
    """Constants say how many elements there are; arguments may not, and the message says so."""
    x, i = rng.standard_normal((3, 4)).astype("float32"), np.array([2, 0, 1])

    def check(text):
        want = eval(text, NAMES | {"x": x, "i": i})
        assert is_same(kf.fuse(eval(f"lambda x: {text}", NAMES | {"i": i}))(x), want)
        got = outcome(kf.fuse(eval(f"lambda x, i: {text}", NAMES)), x, i)
        if isinstance(got, kf.TraceError):
            assert re.search("depends on data|as a Python integer|is not traced", str(got))
        else:
            assert is_same(got, want)

    sweep(check, [(text,) for text in texts(OF_INTEGERS)])


def is_same(got, want):
    return got.dtype == want.dtype and np.array_equal(got, want)


def test_wrong_arguments_are_named():
    rows = [
        (lambda: kf.norm(np.ones(3), torch.ones(3)), TypeError, r"kfusion\.norm: ord must be a number, got Tensor"),
        (lambda: kf.tune(None), TypeError, r"kfusion\.tune: function must be callable, got NoneType"),
    ]
    fills = (lambda x: x.masked_fill(x > 0, x), lambda x: torch.fill(x, x), lambda x: (x * 1).fill_(x))
    without_axes = r"fill: value must have no axes, got shape \(3,\)"
    refusals(rows + [(lambda f=f: kf.fuse(f)(torch.ones(3)), ValueError, without_axes) for f in fills])


def test_a_misspelled_mode_is_an_error():
    environment = os.environ | {"KFUSION_CHECK": "libary"}
    ran = subprocess.run(
        [sys.executable, "-c", "import kfusion"], env=environment, capture_output=True, text=True, timeout=100
    )
    assert "ValueError: KFUSION_CHECK must be 'library', got 'libary'" in ran.stderr


# ---- random numbers: both passes see what functions of torch's draw, and generators move as in eager torch ----------


def attended():
    layer = nn.MultiheadAttention(6, 2, dropout=0.5, batch_first=True)
    return lambda x: layer(x, x, x)[0]


def recurrent():
    layer = nn.LSTM(6, 4, 2, dropout=0.5, batch_first=True)
    return lambda x: layer(x)[0]


def dropped(x):
    return F.dropout(x, 0.5)


DRAWS = """
F.fractional_max_pool2d(x[None], 2, output_size=(2, 3)) ; x * torch.empty_like(x).bernoulli_(0.5) * 2
x * x.clone().uniform_() ; x.exp() + x * (x * 0).normal_() ; x * (x * 0).exponential_()
(x * 2).sin() * (x * 0).normal_() + x.cos() * (x * 0).uniform_()
"""


def step(function, x):
    """Result and gradient, and the state of the generator behind each pass."""
    torch.manual_seed(3)
    given = x.clone().requires_grad_()
    y = function(given)
    after = torch.get_rng_state()
    (g,) = torch.autograd.grad(y.square().sum(), given)
    return [y.detach(), g], [after, torch.get_rng_state()]


def test_both_passes_see_the_same(some):
    def check(function, eager):
        fused = kf.fuse(function)
        for shape in [(2, 5, 6), (2, 7, 6), (3, 5, 6), (3, 4, 6)]:
            x = torch.randn(shape)
            want, moved = step(eager, x)
            for context in (torch.enable_grad, torch.no_grad, torch.enable_grad):
                torch.manual_seed(3)
                with context():
                    torch.testing.assert_close(fused(x).detach(), want[0])
                assert torch.equal(torch.get_rng_state(), moved[0])
                found, states = step(fused, x)
                torch.testing.assert_close(found, want)
                assert all(map(torch.equal, states, moved))
            torch.manual_seed(3)
            y, pull = kf.vjp(function, x)
            torch.testing.assert_close([y.detach(), pull(2 * y.detach())[0]], want)
            assert torch.equal(torch.get_rng_state(), moved[0])
            torch.manual_seed(3)
            torch.testing.assert_close(kf.grad(lambda x: function(x).square().sum())(x), want[1])

    functions = [attended(), recurrent(), *(eval(f"lambda x: {text}") for text in texts(DRAWS))]
    of_a_call = (lambda x: kf.call(dropped, x * 2, result=x) ** 2, lambda x: dropped(x * 2) ** 2)
    sweep(check, some([*((f, f) for f in functions), of_a_call], 2))


def test_backward_later_and_out_of_order():
    fused = kf.fuse(lambda x: x * (x * 0).normal_())
    x = torch.ones(50, requires_grad=True)
    made = [fused(x) for _ in range(4)]
    for y in reversed(made):
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], y.detach())


def test_generators_move_as_far_as_torchs():
    """In a call that is compared, too: the comparison draws from copies."""

    def check(draw, generator):
        states = []
        for wrap in (lambda f: f, kf.fuse):
            torch.manual_seed(3)
            (generator or torch.default_generator).manual_seed(4)
            f = wrap(lambda x: getattr(x * 0.5, draw)(generator=generator))
            with library_checks.using(library_checks.raised):
                drawn = f(torch.ones(3, 5))
            states.append((drawn, torch.get_rng_state(), (generator or torch.default_generator).get_state()))
        assert all(map(torch.equal, *states))

    sweep(check, itertools.product(["bernoulli_", "normal_", "uniform_"], [None, torch.Generator()]))
    own = torch.Generator()  # that a call is given
    function = lambda x: x.exp() * (x * 0).normal_(generator=own)  # noqa: E731
    fused, x, made = kf.fuse(function), torch.randn(20), []
    for f in (function, fused):
        own.manual_seed(5)
        made.append([step(f, x)[0] for _ in range(3)])
    torch.testing.assert_close(*made)


def test_each_call_moves_the_generator_once():
    """A fused dropout draws one seed, whoever called it before, and however."""
    fused, x = kf.fuse(nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.5))), torch.randn(4, 5)
    torch.manual_seed(3)
    torch.empty((), dtype=torch.int64).random_(2**53)
    want, out = torch.get_rng_state(), torch.empty(4, 10)[:, ::2]
    no, yes, inference = torch.no_grad, torch.enable_grad, torch.inference_mode
    for context, options in [(no, {}), (yes, {}), (no, {"out": out}), (yes, {}), (inference, {}), (no, {"out": out})]:
        torch.manual_seed(3)
        with context():
            fused(x, **options)
        assert torch.equal(torch.get_rng_state(), want)


GENERATORS = {
    "numpy.random.Generator": (np.random.default_rng, lambda rng: rng.random(4)),
    "numpy.random.RandomState": (np.random.RandomState, lambda rng: rng.rand(4)),
    "numpy.random.BitGenerator": (np.random.PCG64, lambda rng: float(rng.random_raw() % 7)),
    "random.Random": (random.Random, lambda rng: rng.random()),
    "torch.Generator": (torch.Generator, lambda rng: torch.rand(4, generator=rng).numpy()),
}
_shared = None


def test_drawing_from_a_generator_is_refused(some):
    def check(kind, make, draw):
        global _shared
        _shared = rng = make()
        held, listed = SimpleNamespace(rng=rng), {"all": [rng]}
        ways = [
            (lambda x: x + draw(rng),), (lambda x: x + draw(_shared),), (lambda x: x + draw(held.rng),),
            (lambda x: x + draw(listed["all"][0]),), (lambda x, given: x + draw(given), rng),
            (lambda x, given=rng: x + draw(given),),
        ]  # fmt: skip
        for function, *others in ways:
            for traced in (kf.fuse(function), lambda *args, f=function: kf.trace(f, *args)):
                with pytest.raises(kf.TraceError, match=rf"draws from a {kind}, which is not traced: random numbers"):
                    traced(np.ones(4), *others)

    sweep(check, some([(kind, *row) for kind, row in GENERATORS.items()], 2))


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.rng, self.is_used = torch.Generator(), True

    def forward(self, x):
        return x + torch.rand(4, generator=self.rng) if self.is_used else x + 1


def test_generators_that_are_not_used_or_made_inside():
    noisy, x = Noisy(), torch.ones(4)
    with pytest.raises(kf.TraceError, match=r"draws from a torch.Generator"):
        kf.fuse(noisy)(x)
    noisy.is_used = False
    assert kf.fuse(noisy)(x).tolist() == [2.0] * 4
    fused = kf.fuse(lambda x: x + np.random.default_rng(3).random(4))
    np.testing.assert_array_equal(fused(np.zeros(4)), np.random.default_rng(3).random(4))
