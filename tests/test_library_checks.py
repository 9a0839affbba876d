"""What is a copy and what is a view, and of which dtype: asked of the libraries, and compared with them."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

import kfusion as kf
from kfusion._ops import views
from kfusion._tracing import library_checks, torch_functions

torch = pytest.importorskip("torch")
F = torch.nn.functional
NAMES = {"np": np, "torch": torch, "F": F}

# Functions of x of shape (4, 6) whose result may be x, a view of it, or a copy.
OF_TORCH = """
x.to(torch.float32) ; x.to(torch.float32, copy=True) ; x.to("cpu", torch.float32, copy=True) ; x.float() ; x.to(x)
x.to(x, copy=True) ; x.type_as(x) ; x.type(torch.float32) ; x.cpu() ; F.pad(x, (0, 0)) ; F.pad(x, (0, -1))
F.pad(x, (0, 0, 0, 0)) ; F.pad(x, (-x.shape[1] % 6, 0)) ; F.pad(x[None], (0, 0), mode="reflect") ; F.pad(x, (0, 1))
torch.roll(x, 0) ; torch.roll(x, 6, 1) ; x.roll(0, 0) ; x.roll((4, 6), (0, 1)) ; x.flip([]) ; x.flip(0) ; x.fliplr()
torch.diff(x, n=0) ; x.repeat(1, 1) ; x.repeat(2, 1) ; x.tile((1,)) ; x.tile((2, 1))
torch.repeat_interleave(x, 1, 0) ; +x ; x.positive() ; x * 1 ; x.expand(4, 6) ; x.expand(2, 4, 6) ; x.contiguous()
x.T.contiguous() ; x.clone() ; x.detach() ; x.reshape(6, 4) ; x.T.reshape(-1) ; x.view(-1) ; x.flatten()
x.T.flatten() ; x.ravel() ; x.squeeze() ; x.unsqueeze(0) ; x[:] ; x[...] ; x[None] ; x[1:3] ; x[:, ::2] ; x[0]
x[0, 0] ; x[[0, 1]] ; x.narrow(0, 1, 2) ; x.select(1, 0) ; x.chunk(1)[0] ; x.split(4)[0] ; x.unbind()[0]
torch.cat([x]) ; torch.stack([x])[0] ; torch.hstack([x]) ; torch.atleast_1d(x) ; torch.atleast_3d(x)
torch.broadcast_tensors(x, x)[0] ; torch.einsum("ij->ij", x) ; torch.einsum("ij->ji", x) ; torch.rot90(x, 0)
torch.rot90(x, 4) ; x.real ; x.T ; x.mT ; x.movedim(0, 1) ; x.diagonal() ; x.unfold(0, 2, 1) ; x.tril(9) ; x.triu(-9)
x.clamp(-1e9) ; x.masked_fill(x > 1e9, 0) ; torch.where(x > -1e9, x, x) ; x.abs() ; x.nan_to_num() ; x.round()
F.dropout(x, 0.0) ; F.dropout(x, 0.5, training=False) ; x.gather(0, (x * 0).long())
x.index_select(0, torch.arange(4)) ; x.take_along_dim((x * 0).long(), 0) ; x.unflatten(0, (2, 2)) ; x.view_as(x)
x.mean(0) ; x.amax(0) ; x.resolve_conj() ; x.cumsum(0) ; x.sort(0)[0] ; torch.block_diag(x)
torch.meshgrid(x[0], x[1], indexing="ij")[0]
"""
OF_NUMPY = """
np.pad(x, 0) ; np.pad(x, (0, 0)) ; np.pad(x, 0, "edge") ; np.roll(x, 0) ; np.roll(x, 6, 1)
np.roll(x, (4, 6), (0, 1)) ; np.roll(x, 24) ; np.flip(x) ; np.flip(x, ()) ; np.fliplr(x) ; np.rot90(x, 0)
np.rot90(x, 4) ; np.einsum("ij->ji", x) ; np.einsum("ij->ij", x) ; x.astype("f4") ; x.astype("f4", copy=False)
x.astype("f8", copy=False) ; +x ; np.positive(x) ; np.tile(x, 1) ; np.tile(x, (1, 1)) ; np.tile(x, 2)
np.repeat(x, 1, 0) ; np.repeat(x, 2, 0) ; np.diff(x, n=0) ; np.concatenate([x]) ; np.stack([x])[0] ; np.hstack([x])
np.append(x, x[:0], 0) ; np.reshape(x, (6, 4)) ; np.ravel(x) ; x.ravel() ; x.flatten() ; x.reshape(-1)
x.T.reshape(-1) ; x.T.ravel() ; np.transpose(x) ; x.T ; np.swapaxes(x, 0, 1) ; np.moveaxis(x, 0, 1) ; np.squeeze(x)
np.expand_dims(x, 0) ; np.atleast_2d(x) ; np.atleast_3d(x) ; np.broadcast_to(x, (2, 4, 6)) * 1
np.broadcast_arrays(x, x)[0] * 1 ; np.copy(x) ; x.copy() ; np.real(x) ; x.real ; x[:] ; x[...] ; x[None] ; x[1:3]
x[:, ::2] ; x[::-1] ; x[0] ; x[0, 0] ; x[0, 0, ...] ; x[[0, 1]] ; np.split(x, 1)[0] ; np.array_split(x, 2)[1]
np.vsplit(x, 2)[0] ; np.hsplit(x, 1)[0] ; np.clip(x, -1e9, None) ; np.around(x) ; np.nan_to_num(x) ; np.tril(x, 9)
np.where(x > -1e9, x, x) ; np.take(x, [0, 1], 0) ; np.take_along_axis(x, (x * 0).astype(int), 0) ; np.real_if_close(x)
np.diagonal(x) * 1 ; np.meshgrid(x[0], x[1])[0] ; np.meshgrid(x[0], x[1], copy=False, indexing="ij")[0] * 1
np.meshgrid(x[0], x[1], sparse=True)[0] ; np.abs(x) ; np.sum(x, ()) ; x.sum(()) ; np.squeeze(x[:1])
np.delete(x, 0, 0) ; np.delete(x, [], 0) ; np.insert(x, [], 0, 0) ; np.resize(x, (4, 6)) ; np.sort(x) ; np.ediff1d(x)
np.unstack(x)[0] ; np.permute_dims(x) ; np.matrix_transpose(x) ; np.unwrap(x) ; np.fix(x)
"""


def expressions(text):
    return [t.strip() for line in text.strip().splitlines() for t in line.split(" ; ")]


CASES = [(text, "torch") for text in expressions(OF_TORCH)] + [(text, "numpy") for text in expressions(OF_NUMPY)]


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


@pytest.mark.parametrize(("text", "library"), CASES, ids=[f"{library}: {text}" for text, library in CASES])
def test_writes_around_what_may_be_a_copy(text, library, rng):
    """Each write arrives where the library's arrives, or the function is refused."""
    x = rng.standard_normal((4, 6)).astype("float32")
    for f in writes(text):
        given = [torch.from_numpy(x.copy()) if library == "torch" else x.copy() for _ in range(2)]
        with library_checks.using(library_checks.raised):
            try:
                got = called(kf.fuse(f), given[0])
            except kf.TraceError:
                assert np.array_equal(given[0], x)  # nothing was written
                continue
        assert same(got, called(f, given[1])), f.__name__


def test_a_difference_is_an_error(monkeypatch):
    """The message says what the library gives and what is traced."""
    monkeypatch.setitem(torch_functions.FUNCTIONS, "relu", lambda input: input.double())
    with (
        library_checks.using(library_checks.raised),
        pytest.raises(
            library_checks.LibraryDifference,
            match=r"torch\.relu: is of float32, traced of float64; arguments \['float32\[3\]'\]",
        ),
    ):
        kf.trace(lambda x: torch.relu(x), kf.spec((3,), like="torch"))


@pytest.mark.parametrize(
    ("name", "traced", "call", "message"),
    [
        ("movedim", lambda x, *axes: views.reshape(x, x.shape), lambda x: x.movedim(0, 1),
         r"torch\.movedim: has strides \[1, 4\], traced \[4, 1\]"),
        ("dropout", lambda x, p=0.5, training=True: x * 1, lambda x: F.dropout(x, 0.5),
         r"torch\.dropout: moves generators torch, traced no generator"),
        ("relu", lambda x: x._tracer.next_stream() is None or x * 1, torch.relu,
         r"torch\.relu: moves no generator, traced generators torch"),
    ],
)  # fmt: skip
def test_differences_of_strides_and_generators(name, traced, call, message, monkeypatch):
    for key in {name, f"Tensor.{name}"} & torch_functions.FUNCTIONS.keys():
        monkeypatch.setitem(torch_functions.FUNCTIONS, key, traced)
    with (
        library_checks.using(library_checks.raised),
        pytest.raises(library_checks.LibraryDifference, match=message),
    ):
        kf.trace(lambda x: call(x), kf.spec((4, 4), like="torch"))


@pytest.mark.parametrize("generator", [None, torch.Generator()], ids=["torch's own", "one that is given"])
@pytest.mark.parametrize("draw", ["bernoulli_", "normal_", "uniform_"])
def test_generators_move_as_far_as_torchs(draw, generator):
    """In a call that is compared, too: the comparison draws from copies."""
    states = []
    for wrap in (lambda f: f, kf.fuse):
        torch.manual_seed(3)
        (generator or torch.default_generator).manual_seed(4)
        f = wrap(lambda x: getattr(x * 0.5, draw)(generator=generator))
        with library_checks.using(library_checks.raised):
            drawn = f(torch.ones(3, 5))
        states.append((drawn, torch.get_rng_state(), (generator or torch.default_generator).get_state()))
    assert all(map(torch.equal, *states))


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_dtypes_that_torch_decides():
    """Losses whose target has no axes, and others of several dtypes: of torch's dtype."""
    half, single = torch.full((5,), 0.5).half(), torch.tensor(2.0)
    for f in (
        F.mse_loss,
        F.l1_loss,
        F.smooth_l1_loss,
        F.huber_loss,
        F.poisson_nll_loss,
        F.soft_margin_loss,
        torch.ldexp,
    ):
        for given in ((half, single), (half, single.double()), (half.float(), single.double()), (half, single.long())):
            got, want = kf.fuse(lambda x, y, f=f: f(x, y))(*given), f(*given)
            assert got.dtype == want.dtype
            torch.testing.assert_close(got, want)


DTYPES = ("float16", "bfloat16", "float32", "float64", "int64", "bool")
OF_TWO = """
torch.eq torch.ne torch.lt torch.le torch.gt torch.ge torch.maximum torch.fmin torch.atan2 torch.hypot torch.logaddexp
torch.copysign torch.add torch.mul torch.div torch.floor_divide torch.remainder torch.fmod torch.pow torch.xlogy
torch.logical_and torch.sub
"""
BOUNDS = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 3e-6, torch.float64: 1e-14}


def numbers(dtype, rng):
    """Numbers that half types do not hold, beyond their range, zeros, and some of rng's."""
    edges = [0.1, 1 / 3, 2049.0, 65520.0, -1.5, 0.0, 3.0, 1e-7, 16777217.0, 7.0]
    if dtype in ("int64", "bool"):
        edges = [0, 1, -1, 3, 2049, 16777217, -7, 100000, 5, 2]
    drawn = rng.integers(-9, 9, 6) if dtype in ("int64", "bool") else rng.standard_normal(6) * 3
    return torch.tensor([*edges, *drawn.tolist()]).to(getattr(torch, dtype))


@pytest.mark.parametrize("name", OF_TWO.split())
def test_every_pair_of_dtypes(name, rng):
    """Dtype and values are torch's for tensors and tensors without axes; what torch refuses is refused."""
    f = eval(name, NAMES)
    fused = kf.fuse(lambda x, y: f(x, y))
    for one, other in itertools.product(DTYPES, DTYPES):
        x, y = numbers(one, rng), numbers(other, rng).roll(3)
        a, b = x[rng.integers(16)].clone(), y[rng.integers(16)].clone()
        for given in ((x, y), (x, b), (a, y), (a, b)):
            try:
                want = f(*given)
            except RuntimeError:
                continue
            got = fused(*given)
            assert (got.dtype, got.shape) == (want.dtype, want.shape), (one, other)
            bound = BOUNDS.get(want.dtype, 0)
            least = 0.05 if name == "torch.logaddexp" else 1e-4  # its two terms may cancel
            torch.testing.assert_close(got, want, rtol=bound, atol=bound * least, equal_nan=True)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (3, 4)])
@pytest.mark.parametrize("index", [torch.tensor(0), torch.tensor([0])], ids=["no axes", "one"])
def test_index_select_keeps_the_axis(shape, index):
    x = torch.randn(shape)
    got, want = kf.fuse(lambda x, i: torch.index_select(x, 0, i))(x, index), torch.index_select(x, 0, index)
    assert got.shape == want.shape
    assert torch.equal(got, want)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_results_share_no_memory(library, rng):
    """Not with arguments, nor with each other; an argument that was written to comes back itself."""

    def f(x, y):
        y += 1
        return x, x.T, x[1:], x.reshape(-1), x * 1, x, y, y.T

    x, y = (rng.standard_normal((4, 6)) for _ in range(2))
    given = (torch.from_numpy(x), torch.from_numpy(y)) if library == "torch" else (x, y)
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


@pytest.mark.parametrize("text", expressions(OF_INTEGERS))
def test_arrays_of_integers_in_calls_of_numpy(text, rng):
    """Constants say how many elements there are; arguments may not, and the message says so."""
    x, i = rng.standard_normal((3, 4)).astype("float32"), np.array([2, 0, 1])
    want = eval(text, NAMES | {"x": x, "i": i})
    assert is_same(kf.fuse(eval(f"lambda x: {text}", NAMES | {"i": i}))(x), want)
    try:
        got = kf.fuse(eval(f"lambda x, i: {text}", NAMES))(x, i)
    except kf.TraceError as error:
        said = str(error)
        assert "depends on data" in said or "as a Python integer" in said or "is not traced" in said
    else:
        assert is_same(got, want)


def is_same(got, want):
    return got.dtype == want.dtype and np.array_equal(got, want)


def test_powers_of_bools(rng):
    x = rng.standard_normal(5) > 0
    for f in (lambda x: x**2, lambda x: np.power(x, 2), lambda x: x**3, lambda x: x**x):
        got, want = kf.fuse(f)(x), f(x)
        assert is_same(got, want)
    y = torch.from_numpy(x)
    assert torch.equal(kf.fuse(lambda y: torch.pow(y, True))(y), torch.pow(y, True))


def test_wrong_arguments_are_named():
    with pytest.raises(TypeError, match=r"kfusion\.norm: ord must be a number, got Tensor"):
        kf.norm(np.ones(3), torch.ones(3))
    with pytest.raises(TypeError, match=r"kfusion\.tune: function must be callable, got NoneType"):
        kf.tune(None)
    for f in (lambda x: x.masked_fill(x > 0, x), lambda x: torch.fill(x, x), lambda x: (x * 1).fill_(x)):
        with pytest.raises(ValueError, match=r"fill: value must have no axes, got shape \(3,\)"):
            kf.fuse(f)(torch.ones(3))


def test_a_misspelled_mode_is_an_error():
    environment = os.environ | {"KFUSION_CHECK": "libary"}
    ran = subprocess.run(
        [sys.executable, "-c", "import kfusion"], env=environment, capture_output=True, text=True, timeout=100
    )
    assert "ValueError: KFUSION_CHECK must be 'library', got 'libary'" in ran.stderr
