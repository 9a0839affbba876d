"""Calls that a graph has no form for: the array library computes them among the kernels, as it does without kfusion."""

from __future__ import annotations

import functools
import gc
import operator
import threading
import weakref

import numpy as np
import pytest

import kfusion as kf
from kinds import HAVE_GPU

X, Y = (np.random.default_rng(i).standard_normal((4, 6)).astype(np.float32) for i in range(2))
I = np.array([0, 2, 1])  # noqa: E741


@pytest.mark.parametrize(
    "view", [np.real_if_close, lambda h: np.rollaxis(h, 0), lambda h: kf.call(lambda a: a[:], h, result=h)]
)
def test_results_that_share_memory_with_an_argument(view):
    """Kernels that come later use the memory of an argument again, in which the view lies."""

    def f(x):
        h = np.exp(x)
        seen = view(h)
        for _ in range(3):
            h = np.cos(np.sort(h)) + 2
        return seen * 1.0, h

    x = np.random.default_rng(0).standard_normal(1 << 14).astype(np.float32)
    np.testing.assert_allclose(kf.fuse(f)(x)[0], np.exp(x), rtol=1e-5)


def parts_in_place(x, y):
    z = x * 2
    z[:, :2] += 1
    z[0] = y[1]
    z[z < 0] = 0
    return z * 2


def written_by_functions(x, y):
    z, y, total, k = x * 1, y * 2, y[0] * 0, np.argsort(x, 1)
    np.put(z, [0, 7], 5)
    np.fill_diagonal(z, 3)
    np.put_along_axis(z, k[:, :1], 9, 1)
    np.nan_to_num(y, copy=False).sort()
    np.add.at(z, I, y[:3])
    np.sum(x, 0, None, total)
    np.exp(x, where=y > 0, out=z)
    return z, total, np.concatenate([x, y], out=np.concatenate([y, y]))


def reshaped_in_place(x, y):
    z = x * 1
    part = z[1:]
    part.unsqueeze_(0).mul_(2)
    z.t_()
    z += 1
    return z, part.squeeze_(0).transpose_(0, 1) * 2, x.shape.numel() * y


def written_at_one_index(t, x, y):
    z, i = x * 1, t.tensor(1)
    z[i] = y[i].int()
    z[i] += 1
    return z


def sorted_in_place(x, y):
    z = x * 1
    z.sort()
    return z + y


NUMPY = {
    "sort": lambda x, y: np.sort(x * 2, -1) + y,
    "argsort": lambda x, y: np.argsort(x, 0),
    "x.cumsum": lambda x, y: x.cumsum(1) * y,
    "x.argmax": lambda x, y: x.argmax(-1),
    "einsum": lambda x, y: np.einsum("ij,kj->ik", x, y) + 1,
    "inv": lambda x, y: np.linalg.inv(x @ x.T + np.eye(4, dtype=np.float32) * 9),
    "svd": lambda x, y: np.linalg.svd(x, compute_uv=False),
    "slogdet": lambda x, y: tuple(np.linalg.slogdet(x @ x.T + np.eye(4, dtype=np.float32))),
    "accumulate": lambda x, y: np.maximum.accumulate(x, 1) + 1,
    "outer": lambda x, y: np.add.outer(x[0], y[1]),
    "percentile": lambda x, y: np.percentile(x, 30, axis=0),
    "median of all": lambda x, y: np.median(x),
    "x[...] = y": parts_in_place,
    "x.sort()": sorted_in_place,
    "functions that write": written_by_functions,
    "keywords of reductions": lambda x, y: (
        np.sum(x, 1, where=y > 0),
        np.max(x, initial=9),
        np.var(x, 0, mean=x * 0),
        x.mean(dtype="int32"),
    ),
    "order=F": lambda x, y: (x.reshape(3, -1, order="F") * 2, np.ravel(y, "F"), x.flatten("F")),
    "axes of other arrays": lambda x, y: (
        *np.meshgrid(x[0], y[:, 0]),
        *np.meshgrid(x[0], y[:, 0], indexing="ij", sparse=True),
        *np.broadcast_arrays(x, y[0] * 2),
        np.atleast_2d(x[0]),
        np.atleast_3d(x),
    ),
    "parts": lambda x, y: (
        x.real,
        np.imag(y),
        np.take_along_axis(x, np.argsort(y, 1), 1),
        np.take(x, I + 9, mode="wrap"),
    ),
    "histogram": lambda x, y: np.histogram(x, 5, (0, 1)),
    "repeat": lambda x, y: np.repeat(x, [1, 0, 2, 1], 0),
    "axis 0 of none": lambda x, y: np.nansum(x[0, 0], axis=0),
    "two index arrays": lambda x, y: x[I, I] * 2,
    "a list as an index": lambda x, y: x[[0, 1]] * 2,
    "another ufunc": lambda x, y: np.nextafter(x, y),
    "kf.call": lambda x, y: kf.call(lambda a, b: np.sort(a + b), x * 1, y, result=kf.spec((4, 6))) + 1,
    "results of kf.call": lambda x, y: kf.call(
        lambda a: (np.sort(a), np.argsort(a)), x * 1, result=(x, kf.spec((4, 6), "int64"))
    ),
}
TORCH = {
    "sort": lambda t, x, y: (t.sort(x * 2, dim=-1).values + 1, t.sort(x, -1)[1]),
    "x.topk": lambda t, x, y: tuple((x + y).topk(3)),
    "cumsum": lambda t, x, y: x.cumsum(-1) * 2 + y,
    "argmax": lambda t, x, y: t.argmax(x, -1),
    "max with indices": lambda t, x, y: tuple(x.max(1)),
    "einsum": lambda t, x, y: t.einsum("ij,kj->ik", x, y) + 1,
    "conv1d": lambda t, x, y: t.nn.functional.conv1d(x[None], t.ones(3, 4, 3)),
    "max_pool2d": lambda t, x, y: t.nn.functional.max_pool2d(x[None, None] * 2, 2) * 2,
    "interpolate": lambda t, x, y: t.nn.functional.interpolate(x[None, None], scale_factor=2.0),
    "linalg.inv": lambda t, x, y: t.linalg.inv(x @ x.T + t.eye(4) * 9),
    "slogdet": lambda t, x, y: tuple(t.linalg.slogdet(x @ x.T)),
    "a view": lambda t, x, y: (x @ x.T).diagonal() * 2,
    "a view of a value that goes": lambda t, x, y: (x + y).unfold(1, 2, 2) + (x * 3).sort().values.unfold(1, 2, 2),
    "scatter_": lambda t, x, y: t.zeros_like(x).scatter_(1, t.from_numpy(I)[None] * 1, y),
    "index_add_": lambda t, x, y: (x * 1).index_add_(0, t.from_numpy(I), y[:3]),
    "x.add_(y).relu_()": lambda t, x, y: (x * 2).add_(y).relu_(),
    "relu(inplace=True)": lambda t, x, y: t.nn.functional.relu(x * 2, inplace=True),
    "masked_fill_": lambda t, x, y: (x * 1).masked_fill_(y > 0, 0.5),
    "out=": lambda t, x, y: t.add(x, y, out=x * 0),
    "x[...] = y": lambda t, x, y: parts_in_place(x, y),
    "keyword in the library only": lambda t, x, y: t.div(x, y, rounding_mode="trunc"),
    "an attribute": lambda t, x, y: (x * 1).H,
    "the values' own device": lambda t, x, y: (
        t.zeros_like(x, device=x.device) + x.to(x.device, memory_format=t.preserve_format),
        x.new_full((2, 3), 4, device="cpu", requires_grad=False) * x.cpu()[:2, :3],
        t.empty_like(x[:, :2], device=y.device).fill_(2) + y.type("torch.DoubleTensor")[:, :2],
    ),
    "not without data": lambda t, x, y: (
        t.cov(x, fweights=t.arange(6)) * 2,
        *t.histogram(x, 4, range=(-1, 1)),
        t.combinations(y[0]),
    ),
    "a norm of matrices": lambda t, x, y: (x.norm("nuc") + y).__rdiv__(2.0),
    "shapes that kernels refuse": lambda t, x, y: (
        t.softmax(x[:, :0], 1),
        t.nn.functional.conv2d(x[None], y[None, None, :3, :3]),
        t.nn.functional.layer_norm(x, (6,), eps=-0.01),
        x[0, 0].transpose(0, -1),
        x[0, 0].index_select(0, t.tensor([0], device=x.device)),
    ),
    "dtypes that kernels refuse": lambda t, x, y: (
        (x > 0).sign(),
        (x > 0).square(),
        t.nn.functional.conv2d(x.int()[None, None], t.ones(1, 1, 2, 2, dtype=t.int32)),
        (x * x).sum(1, dtype=t.int16),
    ),
    "integers and bools of reductions": lambda t, x, y: (
        (x * 9).sum(1, dtype=t.int32),
        (y > -1).prod(0, dtype=t.bool),
        t.sum(x > 1, dtype=t.bool),
        (y * 2**30).nansum(dtype=t.int32),
    ),
    "x.t_()": lambda t, x, y: reshaped_in_place(x, y),
    "x[i] of a tensor without axes": written_at_one_index,
    "LSTM": lambda t, x, y: lstm()(x[None])[0] * 2,
    "a result that is an argument": lambda t, x, y: t.broadcast_tensors(x * 2, y[0]),
    "results, then an argument": lambda t, x, y: t.broadcast_tensors(y[0], x, y[:1]),
}

OF_THE_CPU = (
    *("conv1d", "linalg.inv", "LSTM", "scatter_", "index_add_", "the values' own device", "not without data"),
    *("dtypes that kernels refuse", "integers and bools of reductions"),
)


@functools.cache
def lstm():
    torch = pytest.importorskip("torch")
    return torch.nn.LSTM(6, 5, batch_first=True).requires_grad_(False)


def assert_same(got, want):
    for g, w in zip(*(v if isinstance(v, tuple) else (v,) for v in (got, want)), strict=True):
        assert (g.dtype, tuple(g.shape)) == (w.dtype, tuple(w.shape))
        np.testing.assert_allclose(np.asarray(g), np.asarray(w), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NUMPY)
def test_numpy(name):
    f = kf.fuse(NUMPY[name])
    want = f.__wrapped__(X.copy(), Y.copy())
    for version in (f, f.unfused):
        assert_same(version(X, Y), want)


@pytest.mark.parametrize("name", TORCH)
def test_torch(name):
    torch = pytest.importorskip("torch")
    f = kf.fuse(functools.partial(TORCH[name], torch))
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    want = f.__wrapped__(x.clone(), y.clone())
    for version in (f, f.unfused):
        assert_same(version(x, y), want)
    assert_same((x, y), (torch.from_numpy(X), torch.from_numpy(Y)))  # not written to


def test_what_tensors_say_of_themselves():
    torch = pytest.importorskip("torch")
    seen = []

    def asks(x, z):
        seen.append((x.stride(), x.T.is_contiguous(), x.is_contiguous()))
        seen.append((x.is_cpu, x.is_meta, x.get_device(), x.type(), z.is_cpu, str(z.device)))
        seen.append((torch.is_signed(x), x.is_same_size(x.T), torch.result_type(x, 2), z.is_conj()))
        return x + torch.zeros(4, device=z.device), z * 2

    given = torch.from_numpy(X[:, ::-1].copy()).T[:, :4], torch.ones(2, dtype=torch.complex64)
    asks(*given)
    kf.fuse(asks)(*given)
    assert seen[:3] == seen[3:]


def test_plan():
    torch = pytest.importorskip("torch")

    def f(x):
        return torch.sort(x + 1, -1).values * 2

    plan = kf.plan(f, kf.spec((64, 128), like="torch"))
    assert [g.kind for g in plan.groups] == ["pointwise", "library_call", "pointwise"]
    assert [r.reason for r in plan.refusals] == [kf.Reason.LIBRARY_CALL] * 2
    assert all("torch.sort is a function of the array library" in r.sentence for r in plan.refusals)
    n = 64 * 128 * 4
    assert plan.fused.compulsory.total == 6 * n
    assert kf.Plan.from_json(plan.to_json()).groups[1].kind == "library_call"


def test_results_that_nobody_reads_are_not_counted():
    torch = pytest.importorskip("torch")
    x = kf.spec((64, 128), like="torch")
    both = kf.plan(lambda x: tuple(torch.sort(x)), x).fused.compulsory.total
    assert both - kf.plan(lambda x: torch.sort(x).values, x).fused.compulsory.total == 64 * 128 * 8
    assert len(kf.plan(lambda x: (torch.sort(x), x + 1)[1], x).groups) == 1


def spectra(torch):
    """Functions of a (5, 16) tensor that compute with complex numbers."""
    turns = torch.polar(torch.ones(5, 8), torch.arange(40.0).reshape(5, 8))
    fft = torch.fft.fft
    return {
        "abs": lambda x: fft(x).abs(),
        "rfft": lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2, n=16) + x,
        "parts": lambda x: (fft(x).real * 2, fft(x).imag + 1, fft(x).conj().angle()),
        "rotary": lambda x: torch.view_as_real(torch.view_as_complex(x.reshape(5, 8, 2)) * turns).flatten(1),
        "results": lambda x: (x + 1, fft(x).conj(), fft(x)[1:, 3]),
        "operators": lambda x: ((x * fft(x) + 1j * x - 2) / 3).abs().sum(),
        "filter": lambda x: torch.fft.ifft(fft(x) * torch.exp(-(torch.fft.fftfreq(16) ** 2))).real,
        "complex": lambda x: torch.complex(x, x * 2).pow(2).imag,
        "stft": lambda x: torch.stft(x.ravel(), 16, return_complex=True, window=torch.hann_window(16)).abs() ** 2,
        "no elements": lambda x: torch.linalg.eigvals(x[:0].reshape(0, 4, 4)),
        "in place": lambda x: fft(x).mul_(2).add_(x).abs(),
        "asked": lambda x: x * 2 if fft(x).is_complex() and fft(x).dtype is torch.complex64 else x,
    }


def test_complex_numbers_between_calls(rng):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(rng.standard_normal((5, 16)).astype(np.float32))
    functions = spectra(torch)
    for name, f in functions.items():
        got, want = kf.fuse(f)(x), f(x)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")
    assert len(kf.fuse(functions["rotary"]).plan(x).groups) == 1
    assert len(kf.fuse(functions["abs"]).plan(x).groups) == 2


def view_of_changed(image):
    a = image + 1
    part = a[1:]
    a += 1
    return part + 1


def test_arguments_of_other_dtypes(rng):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(rng.standard_normal((4, 6)).astype(np.float32))
    small = {d: torch.from_numpy(rng.integers(0, 100, (4, 6)).astype(d)) for d in ("uint8", "int8", "int16", "uint16")}
    image, z = small["uint8"], torch.complex(x, x + 1)
    functions = {
        "to": (lambda i: i.float() / 255, image),
        "divided": (lambda i: (i / 255 - 0.5) * 2, image),
        "mixed": (lambda i, x: torch.where(i > 50, x, -x) * i.to(x.dtype), image, x),
        "turned": (lambda i: i.T.contiguous().to(torch.int32) + 1, image[:, ::2]),
        "bits": (lambda i: (i.bool(), i.int() * 2), small["int8"]),
        "sums": (lambda i, j: i.double().sum(-1) + j.float().sum(-1), small["int16"], small["uint16"]),
        "returned": (lambda i, j: (i + 1, j, i.T), image, (small["uint16"].int() * 650).to(torch.uint16)),
        "made": (lambda x: ((x * 50).to(torch.uint8), x.char().mul_(3)), x),
        "complex": (lambda z: (z.abs(), (z * z).real, torch.fft.fft(z)), z.T),
    }
    for name, (f, *given) in functions.items():
        got, want = kf.fuse(f)(*given), f(*given)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    double = kf.fuse(lambda i: i.float() * 2)
    for i in (*(small[d] for d in ("uint8", "int8", "int16")), image > 50, image.int()):
        torch.testing.assert_close(double(i), i.float() * 2)
    refused = {
        "shares memory with one that was changed": view_of_changed,
        "writes to uint8": lambda i: i.add_(1).float(),
    }
    for message, f in refused.items():
        with pytest.raises(kf.TraceError, match=message):
            kf.fuse(f)(image)
    with pytest.raises(TypeError, match=r"out must be .* got numbers of another dtype"):
        kf.fuse(lambda x: x > 0)(x, out=image)
    kf.fuse(lambda z: z.mul_(2))(z)
    torch.testing.assert_close(z, torch.complex(x, x + 1) * 2)
    with pytest.raises(TypeError, match=r"x must be .*, got uint8"):
        kf.relu(image)
    with pytest.raises(TypeError, match="lazily conjugated"):
        kf.fuse(lambda z: z.abs())(z.conj())


STORED = {
    "to": lambda x: x.real.astype(np.float32) / 255,
    "divided": lambda x: np.sqrt(x / 4) * 2 + x,
    "wraps": lambda x: (x + x, 3 * x, x - 7, -x, x << 1) if x.dtype.kind != "c" else x * 1j,
    "compared": lambda x: (np.where(x == x[0, 0], x, 0), (x != 3) & (x[:1] == x)),
    "of a float": lambda x: (x.real.astype(np.float64) * 1.7).astype(x.dtype),
    "beside a float": lambda x: (x.real.astype(np.float32) + x, x * x.real.astype(np.float64), x + I[0]),
    "reductions": lambda x: (x.sum(), np.mean(x, 0), x.max(1) if x.dtype.kind != "c" else abs(x).max(1)),
    "views": lambda x: (x.T, x[1:, ::2], x.reshape(-1), x[0, 0], np.stack([x, x])),
    "itself": lambda x: (x, x),
    "asked": lambda x: x.real * (x.ndim + len(x) + np.size(x) + x.nbytes + isinstance(x, np.ndarray)) * 1.0,
}


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint16", "uint32", "uint64", "complex64", "complex128"])
def test_arrays_of_numpy_of_other_dtypes(dtype, rng):
    x = rng.integers(0, 128, (4, 6)).astype(dtype)
    x = x * np.asarray(1 - 2j, dtype) if x.dtype.kind == "c" else x
    for f in STORED.values():
        for a in (x, np.asfortranarray(x)[::-1]):
            got, want = (v if isinstance(v, tuple) else (v,) for v in (kf.fuse(f)(a), f(a)))
            for g, w in zip(got, want, strict=True):
                assert type(g) is type(w)
                assert_same((g,), (w,))


def test_arrays_of_other_dtypes_that_the_function_names(rng):
    small, pairs, x = np.arange(6, dtype=np.uint8), np.arange(6) * 1j, X[:, :6]
    functions = [lambda x: x * small + 1, lambda x: small - x, lambda x: (x > 0) & (small > 2), lambda x: x + pairs]
    functions += [lambda x: x[:, small[:3]] * 2, lambda x: abs(x) ** small, lambda x: x @ small]
    for f in functions:
        got, want = kf.fuse(f)(x), f(x)
        assert_same((got,), (want,))
    f = kf.fuse(lambda x: x * small)
    f(x)
    small[0] = 9  # its elements are read by each call
    np.testing.assert_array_equal(f(x), x * small)
    with pytest.raises(kf.TraceError, match=r"x of kfusion.where is of uint8, which graphs have no dtype for"):
        kf.fuse(lambda x: np.where(x > 0, small, x))(x)


def test_small_integers_are_positions(rng):
    i, table = rng.integers(0, 16, (4, 5)).astype(np.uint8), rng.standard_normal((16, 16)).astype(np.float32)
    for f in (lambda t, i: t[i] * 2, lambda t, i: t[i, i] * 2, lambda t, i: np.take(t, i, 0)):
        np.testing.assert_array_equal(kf.fuse(f)(table, i), f(table, i))
    np.testing.assert_array_equal(kf.fuse(lambda t, i: t[i])(np.arange(16, dtype="u1"), i), i)
    with pytest.raises(IndexError, match=r"index 1?\d\d is out of bounds for axis 0 with size 16"):
        kf.fuse(lambda t, i: t[i] * 2)(table, i + np.uint8(100 - i[0, 0]))


def test_what_is_not_traced_of_other_dtypes_of_numpy():
    def assigned(x):
        x[0] = 1
        return x * 1.0

    image, read_only = np.arange(12, dtype=np.uint8).reshape(3, 4), np.broadcast_to(np.uint8(7), (3, 4))
    refused = {
        r"x \+= y is not traced": lambda x: operator.iadd(x, 1),
        r"x\[...\] = y is not traced": assigned,
        "add with out= is not traced": lambda x: np.add(x, 1, out=x),
        "copyto is not traced": lambda x: np.copyto(x, 1),
        r"the shape of x\[mask\] depends on data": lambda x: x[x > 3],
        "nonzero is not traced": np.nonzero,
        "branching on a traced value": lambda x: x if x[0, 0] else x + 1,
        "making a NumPy array": np.asarray,
    }
    for message, f in refused.items():
        with pytest.raises(kf.TraceError, match=message):
            kf.fuse(lambda x, f=f: f(x))(image)
    np.testing.assert_array_equal(image.ravel(), np.arange(12))
    assert (kf.fuse(lambda x: x + 1)(read_only) == 8).all()
    with pytest.raises(OverflowError, match="300 out of bounds for uint8"):
        kf.fuse(lambda x: x + 300)(image)
    with pytest.raises(TypeError, match=r"x must be .* got uint8"):
        kf.relu(image)


def test_errors_of_the_library_name_the_line():
    torch = pytest.importorskip("torch")
    with pytest.raises(RuntimeError, match=r"kfusion.linalg_solve: .*same dtype.*\n  test_library_calls.py:\d+: "):
        kf.plan(lambda x: torch.linalg.solve(x, torch.mm(x.T, x).argsort(7)), kf.spec((3, 4), like="torch"))
    with pytest.raises(ValueError, match=r"kfusion.linalg.solve: (?s:.*)\n  test_library_calls.py:\d+: "):
        kf.plan(lambda x: np.linalg.solve(x @ x.T, np.sort(x[:2])), kf.spec((3, 4)))


def test_writes_that_torch_makes_through_an_index_or_to_a_shape():
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X)
    refused = {
        "through a view of it that may be a copy": lambda x: x[torch.tensor(1)].mul_(2),
        "unsqueeze_ changes the shape of an argument": lambda x: x.unsqueeze_(0),
        r"add_ makes float32\[4, 6\] of float32\[6\]": lambda x: x[0].add_(x),
    }
    for message, f in refused.items():
        with pytest.raises(kf.TraceError, match=message):
            kf.fuse(f)(x)


def test_an_alias_that_is_written_to_is_refused():
    torch = pytest.importorskip("torch")

    def f(x):
        y = x * 2
        y.diagonal().fill_(0)
        return y

    with pytest.raises(kf.TraceError, match="shares memory with one that was changed in place"):
        kf.plan(f, kf.spec((3, 3), like="torch"))
    torch.manual_seed(0)


def test_call_checks_what_it_gets():
    wrong = kf.fuse(lambda x: kf.call(lambda a: a[:2], x * 1, result=x))
    with pytest.raises(ValueError, match=r"kfusion.call\(<lambda>\) gave float32 \(2, 6\) on cpu, where it was traced"):
        wrong(X)
    with pytest.raises(ValueError, match="must return 2 results, got 1"):
        kf.fuse(lambda x: kf.call(lambda a: [a], x, result=(x, x)))(X)
    with pytest.raises(TypeError, match="at least one array"):
        kf.call(np.sort, result=kf.spec(3))
    with pytest.raises(TypeError, match="result must be a spec or an array, got int"):
        kf.call(np.sort, X, result=3)
    with pytest.raises(ValueError, match=r"must return float32 \(4, 7\), got float32 \(4, 6\)"):
        kf.call(np.sort, X, result=kf.spec((4, 7)))
    np.testing.assert_array_equal(kf.call(np.sort, X, result=X), np.sort(X))


def test_errors_of_the_function_come_out():
    def fails(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        kf.fuse(lambda x: kf.call(fails, x * 1, result=x) + 1)(X)


def test_values_between_are_let_go():
    """The library's memory goes back after its last reader, and nothing is held between calls."""
    alive = []

    class Array(np.ndarray):
        pass

    def tracked(a):
        made = (a + 1).view(Array)
        alive.append(weakref.ref(made))
        return np.asarray(made)

    def f(x):
        for _ in range(3):
            x = kf.call(tracked, x, result=x)
        return x * 2

    np.testing.assert_allclose(kf.fuse(f)(X), (X + 3) * 2, rtol=1e-6)
    gc.collect()
    assert not any(r() is not None for r in alive)


def test_two_threads():
    f = kf.fuse(lambda x, y: np.sort(x * 2, -1) + np.cumsum(y, 0))
    want = np.sort(X * 2, -1) + np.cumsum(Y, 0)
    results = []
    threads = [threading.Thread(target=lambda: results.extend(f(X, Y) for _ in range(50))) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 100
    for r in results:
        np.testing.assert_array_equal(r, want)


def test_float_arguments_reach_the_library():
    torch = pytest.importorskip("torch")
    f = kf.fuse(lambda x, s: torch.sort(torch.full_like(x, s) * x).values)
    x = torch.from_numpy(X)
    for s in (2.0, 3.5):
        torch.testing.assert_close(f(x, s), torch.sort(x * s).values)


def test_empty_arrays():
    torch = pytest.importorskip("torch")
    f = kf.fuse(lambda x: torch.sort(x * 2).values + 1)
    assert f(torch.empty(0, 3)).shape == (0, 3)
    assert f(torch.empty(3, 0)).shape == (3, 0)


def test_compare():
    torch = pytest.importorskip("torch")
    c = kf.compare(lambda x: torch.sort(x * 2, -1).values + 1, torch.randn(64, 64), peers=["torch"])
    assert "torch" in str(c)


@pytest.mark.cuda
@pytest.mark.skipif(not HAVE_GPU, reason="needs a GPU")
@pytest.mark.parametrize("shape", [(8, 64), (2, 4, 64), (3, 1000, 64), (7, 64)])
@pytest.mark.parametrize("columns", [257, 1001, 1024])
def test_products_with_odd_rows(shape, columns):
    """Of half types, computed transposed where that is faster."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    linear = torch.nn.functional.linear
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(columns, shape[-1], device="cuda", dtype=torch.bfloat16)
    functions = {
        "a result": lambda x, w: linear(x, w),
        "read by a kernel": lambda x, w: torch.relu(linear(x * 2, w)) + 1,
        "both": lambda x, w: (y := linear(x, w), torch.softmax(y, -1)),
        "read by the library": lambda x, w: torch.cumsum(linear(x, w), -1),
    }
    bounds = {"both": 0.05, "read by the library": 0.05}  # exponentials and sums of rounded values
    for what, function in functions.items():
        f = kf.fuse(function)
        want = function(x.double(), w.double())
        want = want if isinstance(want, tuple) else (want,)
        for _ in range(2):
            got = f(x, w)
            for g, expected in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
                error = (g.double() - expected).norm() / expected.norm()
                assert error < bounds.get(what, 0.01), (what, error)
    out = torch.empty(*shape[:-1], 2 * columns, device="cuda", dtype=torch.bfloat16)[..., ::2]
    kf.fuse(functions["a result"])(x, w, out=out)
    torch.testing.assert_close(out, linear(x, w), rtol=0.02, atol=0.05)


@pytest.mark.cuda
@pytest.mark.skipif(not HAVE_GPU, reason="needs a GPU")
@pytest.mark.parametrize("kept", [True, False])
def test_numbers_of_the_cpu_among_tensors_of_a_gpu(kept):
    """Tensors without axes are numbers to torch, wherever they are."""
    torch = pytest.importorskip("torch")
    held = torch.tensor(2.0)

    def scaled(x):
        y = x * (held if kept else torch.tensor(2.0))
        y[torch.tensor(1)] = 7
        return torch.where(y > torch.tensor(0.5), y, torch.tensor(-1.0, dtype=torch.float64)) + y[torch.tensor(0)]

    f, x = kf.fuse(scaled), torch.randn(4, 6, device="cuda")
    for number in (2.0, 3.0):
        held.fill_(number)
        for _ in range(2):
            torch.testing.assert_close(f(x), scaled(x))


@pytest.mark.cuda
@pytest.mark.skipif(not HAVE_GPU, reason="needs a GPU")
@pytest.mark.parametrize("name", TORCH)
def test_torch_on_cuda(name):
    torch = pytest.importorskip("torch")
    if name in OF_THE_CPU:
        pytest.skip("its captured arrays are the CPU's, or torch has it on the CPU only")
    f = kf.fuse(functools.partial(TORCH[name], torch))
    x, y = torch.from_numpy(X).cuda(), torch.from_numpy(Y).cuda()
    want = f.__wrapped__(x.clone(), y.clone())
    side = torch.cuda.Stream()
    for version in (f, f.unfused):
        got = version(x, y)
        assert_same(
            tuple(g.cpu() for g in got) if isinstance(got, tuple) else got.cpu(),
            want.cpu() if not isinstance(want, tuple) else tuple(w.cpu() for w in want),
        )
        with torch.cuda.stream(side):
            version(x, y)
        version(x, y, stream=side.cuda_stream)
    torch.cuda.synchronize()
