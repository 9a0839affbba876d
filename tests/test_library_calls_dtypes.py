"""Calls of the library on what kernels have no dtype for: complex numbers, small integers, arrays of other dtypes."""

from __future__ import annotations

import operator

import numpy as np
import pytest

import kfusion as kf
from same_results import assert_same

X, Y = (np.random.default_rng(i).standard_normal((4, 6)).astype(np.float32) for i in range(2))
I = np.array([0, 2, 1])  # noqa: E741


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
