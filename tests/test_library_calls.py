"""Calls that a graph has no ops for: the array library computes them among the kernels, as it does without kfusion; so
do complex numbers, small integers and arrays of other dtypes, which kernels have not."""

from __future__ import annotations

import functools
import gc
import operator
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import kfusion as kf
from same_results import assert_same
from sweeps import refusals, sweep, texts

torch = pytest.importorskip("torch")
F = torch.nn.functional
X, Y = (np.random.default_rng(i).standard_normal((4, 6)).astype(np.float32) for i in range(2))
I = np.array([0, 2, 1])  # noqa: E741
EYE = np.eye(4, dtype=np.float32) * 9


# ---- a table of calls, against the functions themselves -------------------------------------------------------------


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


def written_at_one_index(x, y):
    z, i = x * 1, torch.tensor(1)
    z[i] = y[i].int()
    z[i] += 1
    return z


def sorted_in_place(x, y):
    z = x * 1
    z.sort()
    return z + y


@functools.cache
def lstm():
    return torch.nn.LSTM(6, 5, batch_first=True).requires_grad_(False)


NUMPY = """
np.sort(x * 2, -1) + y ; np.argsort(x, 0) ; x.cumsum(1) * y ; x.argmax(-1) ; np.einsum("ij,kj->ik", x, y) + 1
np.linalg.inv(x @ x.T + EYE) ; np.linalg.svd(x, compute_uv=False) ; tuple(np.linalg.slogdet(x @ x.T + EYE))
np.maximum.accumulate(x, 1) + 1 ; np.add.outer(x[0], y[1]) ; np.percentile(x, 30, axis=0) ; np.median(x)
parts_in_place(x, y) ; sorted_in_place(x, y) ; written_by_functions(x, y) ; x.mean(dtype="int32") * x
(np.sum(x, 1, where=y > 0), np.max(x, initial=9), np.var(x, 0, mean=x * 0)) ; np.histogram(x, 5, (0, 1))
(x.reshape(3, -1, order="F") * 2, np.ravel(y, "F"), x.flatten("F")) ; (np.atleast_2d(x[0]), np.atleast_3d(x))
np.meshgrid(x[0], y[:, 0])[1] ; np.meshgrid(x[0], y[:, 0], indexing="ij", sparse=True)[0]
np.broadcast_arrays(x, y[0] * 2)[1] ; (x.real, np.imag(y), np.take_along_axis(x, np.argsort(y, 1), 1))
np.take(x, I + 9, mode="wrap") ; np.repeat(x, [1, 0, 2, 1], 0) ; np.nansum(x[0, 0], axis=0) ; x[I, I] * 2
x[[0, 1]] * 2 ; np.nextafter(x, y) ; kf.call(lambda a, b: np.sort(a + b), x * 1, y, result=kf.spec((4, 6))) + 1
kf.call(lambda a: (np.sort(a), np.argsort(a)), x * 1, result=(x, kf.spec((4, 6), "int64")))
"""
TORCH = """
(torch.sort(x * 2, dim=-1).values + 1, torch.sort(x, -1)[1]) ; tuple((x + y).topk(3)) ; x.cumsum(-1) * 2 + y
torch.argmax(x, -1) ; tuple(x.max(1)) ; torch.einsum("ij,kj->ik", x, y) + 1 ; F.max_pool2d(x[None, None] * 2, 2) * 2
F.interpolate(x[None, None], scale_factor=2.0) ; tuple(torch.linalg.slogdet(x @ x.T)) ; (x @ x.T).diagonal() * 2
(x + y).unfold(1, 2, 2) + (x * 3).sort().values.unfold(1, 2, 2) ; (x * 2).add_(y).relu_() ; F.relu(x * 2, inplace=True)
(x * 1).masked_fill_(y > 0, 0.5) ; torch.add(x, y, out=x * 0) ; parts_in_place(x, y)
torch.div(x, y, rounding_mode="trunc") ; (x * 1).H ; (x.norm("nuc") + y).__rdiv__(2.0) ; torch.softmax(x[:, :0], 1)
F.conv2d(x[None], y[None, None, :3, :3]) ; F.layer_norm(x, (6,), eps=-0.01) ; x[0, 0].transpose(0, -1)
x[0, 0].index_select(0, torch.tensor([0], device=x.device)) ; x[0, 0].index_select(0, torch.tensor(0, device=x.device))
reshaped_in_place(x, y) ; written_at_one_index(x, y) ; torch.broadcast_tensors(x * 2, y[0])
torch.broadcast_tensors(y[0], x, y[:1]) ; torch.full_like(x, 2).cumsum(1).double() * x.sort(-1).values
torch.sort(x[:0] * 2).values + 1 ; torch.sort(x[:, :0] * 2).values + 1
"""
# Whose captured arrays are the CPU's, or which torch has on the CPU only.
TORCH_ON_THE_CPU = """
F.conv1d(x[None], torch.ones(3, 4, 3)) ; torch.linalg.inv(x @ x.T + torch.eye(4) * 9) ; lstm()(x[None])[0] * 2
torch.zeros_like(x).scatter_(1, torch.from_numpy(I)[None] * 1, y) ; (x * 1).index_add_(0, torch.from_numpy(I), y[:3])
torch.cov(x, fweights=torch.arange(6)) * 2
torch.zeros_like(x, device=x.device) + x.to(x.device, memory_format=torch.preserve_format)
x.new_full((2, 3), 4, device="cpu", requires_grad=False) * x.cpu()[:2, :3] ; torch.combinations(y[0])
torch.empty_like(x[:, :2], device=y.device).fill_(2) + y.type("torch.DoubleTensor")[:, :2]
torch.histogram(x, 4, range=(-1, 1)) ; (x > 0).sign() ; (x > 0).square() ; (x * x).sum(1, dtype=torch.int16)
F.conv2d(x.int()[None, None], torch.ones(1, 1, 2, 2, dtype=torch.int32)) ; (x * 9).sum(1, dtype=torch.int32)
(y > -1).prod(0, dtype=torch.bool) ; torch.sum(x > 1, dtype=torch.bool) ; (y * 2**30).nansum(dtype=torch.int32)
"""


def test_calls(some):
    def check(text, x, y):
        f = kf.fuse(eval(f"lambda x, y: {text}"))
        given, untouched = [(x * 1, y * 1) for _ in range(2)]
        want = f.__wrapped__(x * 1, y * 1)
        for version in (f, f.unfused):
            assert_same(version(*given), want)
        assert_same(given, untouched)

    sweep(check, some([(text, X, Y) for text in texts(NUMPY)], 16))
    tensors = torch.from_numpy(X), torch.from_numpy(Y)
    sweep(check, some([(text, *tensors) for text in texts(TORCH + TORCH_ON_THE_CPU)], 24))


@pytest.mark.cuda
@pytest.mark.parametrize("text", texts(TORCH))
def test_torch_on_cuda(text):
    f = kf.fuse(eval(f"lambda x, y: {text}"))
    x, y = torch.from_numpy(X).cuda(), torch.from_numpy(Y).cuda()
    want = f.__wrapped__(x.clone(), y.clone())
    side = torch.cuda.Stream()
    for version in (f, f.unfused):
        got = version(x, y)
        assert_same(*(tuple(v.cpu() for v in r) if isinstance(r, (tuple, list)) else r.cpu() for r in (got, want)))
        with torch.cuda.stream(side):
            version(x, y)
        version(x, y, stream=side.cuda_stream)
    torch.cuda.synchronize()


def test_results_that_share_memory_with_an_argument():
    """Kernels that come later use the memory of an argument again, in which the view lies."""
    x = np.random.default_rng(0).standard_normal(1 << 14).astype(np.float32)
    for view in (np.real_if_close, lambda h: np.rollaxis(h, 0), lambda h: kf.call(lambda a: a[:], h, result=h)):

        def f(x, view=view):
            h = np.exp(x)
            seen = view(h)
            for _ in range(3):
                h = np.cos(np.sort(h)) + 2
            return seen * 1.0, h

        np.testing.assert_allclose(kf.fuse(f)(x)[0], np.exp(x), rtol=1e-5)


def test_plans():
    plan = kf.plan(lambda x: torch.sort(x + 1, -1).values * 2, kf.spec((64, 128), like="torch"))
    assert [g.kind for g in plan.groups] == ["pointwise", "library_call", "pointwise"]
    assert [r.reason for r in plan.refusals] == [kf.Reason.LIBRARY_CALL] * 2
    assert all("torch.sort is a function of the array library" in r.sentence for r in plan.refusals)
    assert plan.fused.compulsory.total == 6 * 64 * 128 * 4
    assert kf.Plan.from_json(plan.to_json()).groups[1].kind == "library_call"
    x = kf.spec((64, 128), like="torch")  # results that nobody reads are not counted
    both = kf.plan(lambda x: tuple(torch.sort(x)), x).fused.compulsory.total
    assert both - kf.plan(lambda x: torch.sort(x).values, x).fused.compulsory.total == 64 * 128 * 8
    assert len(kf.plan(lambda x: (torch.sort(x), x + 1)[1], x).groups) == 1
    assert "torch" in str(
        kf.compare(lambda x: torch.sort(x * 2).values, torch.randn(64, 64), peers=["torch"], repeats=1)
    )


def fails(x):
    raise KeyError("mine")


def written_diagonal(x):
    y = x @ x.T
    y.diagonal().fill_(0)
    return y


def test_what_is_refused():
    t, line = torch.from_numpy(X), r"\n  test_library_calls.py:\d+: "
    spec = kf.spec((3, 4), like="torch")
    wrong = kf.fuse(lambda x: kf.call(lambda a: a[:2], x * 1, result=x))
    refusals([
        (lambda: kf.plan(lambda x: torch.linalg.solve(x, torch.mm(x.T, x).argsort(7)), spec), RuntimeError,
         "kfusion.linalg_solve: .*same dtype.*" + line),
        (lambda: kf.plan(lambda x: np.linalg.solve(x @ x.T, np.sort(x[:2])), kf.spec((3, 4))), ValueError,
         "kfusion.linalg.solve: (?s:.*)" + line),
        (lambda: kf.fuse(lambda x: x[torch.tensor(1)].mul_(2))(t), kf.TraceError,
         "through a view of it that may be a copy"),
        (lambda: kf.fuse(lambda x: x.unsqueeze_(0))(t), kf.TraceError, "unsqueeze_ changes the shape of an argument"),
        (lambda: kf.fuse(lambda x: x[0].add_(x))(t), kf.TraceError, r"add_ makes float32\[4, 6\] of float32\[6\]"),
        (lambda: kf.plan(written_diagonal, t), kf.TraceError, "shares memory with one that was changed in place"),
        (lambda: wrong(X), ValueError, r"kfusion.call\(<lambda>\) gave float32 \(2, 6\) on cpu, where it was traced"),
        (lambda: kf.fuse(lambda x: kf.call(lambda a: [a], x, result=(x, x)))(X), ValueError,
         "must return 2 results, got 1"),
        (lambda: kf.call(np.sort, result=kf.spec(3)), TypeError, "at least one array"),
        (lambda: kf.call(np.sort, X, result=3), TypeError, "result must be a spec or an array, got int"),
        (lambda: kf.call(np.sort, X, result=kf.spec((4, 7))), ValueError,
         r"must return float32 \(4, 7\), got float32 \(4, 6\)"),
        (lambda: kf.fuse(lambda x: kf.call(fails, x * 1, result=x) + 1)(X), KeyError, "mine"),
    ])  # fmt: skip
    np.testing.assert_array_equal(kf.call(np.sort, X, result=X), np.sort(X))


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
    with ThreadPoolExecutor(2) as pool:
        for got in pool.map(lambda _: f(X, Y), range(100)):
            np.testing.assert_array_equal(got, want)


def test_numbers_and_questions():
    """Float arguments reach the library; tensors say what they are."""
    f, x = kf.fuse(lambda x, s: torch.sort(torch.full_like(x, s) * x).values), torch.from_numpy(X)
    for s in (2.0, 3.5):
        torch.testing.assert_close(f(x, s), torch.sort(x * s).values)
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


# ---- dtypes that kernels have not -----------------------------------------------------------------------------------

SPECTRA = """
fft(x).abs() ; torch.view_as_real(torch.view_as_complex(x.reshape(5, 8, 2)) * TURNS).flatten(1)
torch.fft.irfft(torch.fft.rfft(x) * 2, n=16) + x ; (fft(x).real * 2, fft(x).imag + 1, fft(x).conj().angle())
(x + 1, fft(x).conj(), fft(x)[1:, 3]) ; ((x * fft(x) + 1j * x - 2) / 3).abs().sum()
torch.fft.ifft(fft(x) * torch.exp(-(torch.fft.fftfreq(16) ** 2))).real ; torch.complex(x, x * 2).pow(2).imag
torch.stft(x.ravel(), 16, return_complex=True, window=torch.hann_window(16)).abs() ** 2
torch.linalg.eigvals(x[:0].reshape(0, 4, 4)) ; fft(x).mul_(2).add_(x).abs()
x * 2 if fft(x).is_complex() and fft(x).dtype is torch.complex64 else x
"""
fft = torch.fft.fft
TURNS = torch.polar(torch.ones(5, 8), torch.arange(40.0).reshape(5, 8))


def test_complex_numbers_between_calls(rng):
    x = torch.from_numpy(rng.standard_normal((5, 16)).astype(np.float32))
    x[1] = 0

    def slope(f):
        return torch.autograd.grad(f(given := x.clone().requires_grad_()).sum(), given)

    def check(text, groups=0):
        f = eval(f"lambda x: {text}")
        torch.testing.assert_close(kf.fuse(f)(x), f(x), rtol=1e-4, atol=1e-4)
        assert not groups or len(kf.fuse(f).plan(x).groups) == groups

    of_abs, of_turns, *others = texts(SPECTRA)
    sweep(check, [(of_abs, 2), (of_turns, 1), *((text,) for text in others)])
    of_silence = eval(f"lambda x: {of_abs}")  # whose spectrum is 0, and its gradient
    torch.testing.assert_close(slope(kf.fuse(of_silence)), slope(of_silence))


def view_of_changed(image):
    a = image + 1
    part = a[1:]
    a += 1
    return part + 1


def test_arguments_of_other_dtypes(rng):
    x = torch.from_numpy(rng.standard_normal((4, 6)).astype(np.float32))
    small = {d: torch.from_numpy(rng.integers(0, 100, (4, 6)).astype(d)) for d in ("uint8", "int8", "int16", "uint16")}
    image, z = small["uint8"], torch.complex(x, x + 1)

    def check(f, *given):
        torch.testing.assert_close(kf.fuse(f)(*given), f(*given), rtol=1e-5, atol=1e-5)

    rows = [
        (lambda i: i.float() / 255, image),
        (lambda i: (i / 255 - 0.5) * 2, image),
        (lambda i, x: torch.where(i > 50, x, -x) * i.to(x.dtype), image, x),
        (lambda i: i.T.contiguous().to(torch.int32) + 1, image[:, ::2]),
        (lambda i: (i.bool(), i.int() * 2), small["int8"]),
        (lambda i, j: i.double().sum(-1) + j.float().sum(-1), small["int16"], small["uint16"]),
        (lambda i, j: (i + 1, j, i.T), image, (small["uint16"].int() * 650).to(torch.uint16)),
        (lambda x: ((x * 50).to(torch.uint8), x.char().mul_(3)), x),
        (lambda z: (z.abs(), (z * z).real, torch.fft.fft(z)), z.T),
        (lambda x: (x * image, image.T - x.T, torch.where(image > 50, x, -x), torch.ldexp(x, small["int8"] % 4)), x),
        (lambda x: (x * z, z.T[::2] / x.T[::2], x + z.to(torch.complex128)), x),
        (lambda i: (x.half() / (i + 1), x - i, i.int() << i, image ^ i), image),
        (lambda i, x: (i + 1, x * (i + 1)), image, x.clone().requires_grad_()),  # which backward reads, too
    ]
    sweep(check, rows)
    f, table = kf.fuse(lambda x: x[0] * table), torch.arange(12, dtype=torch.uint8)[::2]
    for _ in range(2):  # what is changed outside is seen
        torch.testing.assert_close(f(x), x[0] * table)
        table.add_(7)
    double = kf.fuse(lambda i: i.float() * 2)
    for i in (*(small[d] for d in ("uint8", "int8", "int16")), image > 50, image.int()):
        torch.testing.assert_close(double(i), i.float() * 2)
    refusals([
        (lambda: kf.fuse(view_of_changed)(image), kf.TraceError, "shares memory with one that was changed"),
        (lambda: kf.fuse(lambda i: i.add_(1).float())(image), kf.TraceError, "writes to uint8"),
        (lambda: kf.fuse(lambda z: z.t_() * 2)(z[:, :4]), kf.TraceError, "t_ changes how"),
        (lambda: kf.fuse(lambda x: x > 0)(x, out=image), TypeError, "out must be .* got numbers of another dtype"),
        (lambda: kf.relu(image), TypeError, "x must be .*, got uint8"),
        (lambda: kf.fuse(lambda z: z.abs())(z.conj()), TypeError, "lazily conjugated"),
    ])  # fmt: skip
    kept = kf.fuse(lambda z: (z.contiguous(), z.mul_(2))[0])(z.T)  # a copy
    torch.testing.assert_close(kept, torch.complex(x, x + 1).T)
    torch.testing.assert_close(z, torch.complex(x, x + 1) * 2)


STORED = """
x.real.astype(np.float32) / 255 ; np.sqrt(x / 4) * 2 + x ; (x + x, 3 * x, x - 7, -x, x << 1) if is_real(x) else x * 1j
(np.where(x == x[0, 0], x, 0), (x != 3) & (x[:1] == x)) ; (x.real.astype(np.float64) * 1.7).astype(x.dtype)
(x.real.astype(np.float32) + x, x * x.real.astype(np.float64), x + I[0])
(x.sum(), np.mean(x, 0), x.max(1) if is_real(x) else abs(x).max(1))
(x.T, x[1:, ::2], x.reshape(-1), x[0, 0], np.stack([x, x])) ; (x, x)
x.real * (x.ndim + len(x) + np.size(x) + x.nbytes + isinstance(x, np.ndarray)) * 1.0
"""


def is_real(x):
    return x.dtype.kind != "c"


def test_arrays_of_numpy_of_other_dtypes(rng, some):
    def check(text, dtype):
        x, f = rng.integers(0, 128, (4, 6)).astype(dtype), eval(f"lambda x: {text}")
        x = x if is_real(x) else x * np.asarray(1 - 2j, dtype)
        for a in (x, np.asfortranarray(x)[::-1]):
            got, want = (v if isinstance(v, tuple) else (v,) for v in (kf.fuse(f)(a), f(a)))
            assert [type(g) for g in got] == [type(w) for w in want]
            assert_same(got, want)

    dtypes = ("uint8", "int8", "int16", "uint16", "uint32", "uint64", "complex64", "complex128")
    sweep(check, some([(text, dtype) for text in texts(STORED) for dtype in dtypes], 24))


def test_arrays_of_other_dtypes_that_the_function_names():
    small, pairs, x = np.arange(6, dtype=np.uint8), np.arange(6) * 1j, X[:, :6]
    functions = [lambda x: x * small + 1, lambda x: small - x, lambda x: (x > 0) & (small > 2), lambda x: x + pairs]
    functions += [lambda x: x[:, small[:3]] * 2, lambda x: abs(x) ** small, lambda x: x @ small]
    functions += [lambda x: np.where(x > 0, small, x)]
    for f in functions:
        assert_same(kf.fuse(f)(x), f(x))
    f = kf.fuse(lambda x: x * small)
    f(x)
    small[0] = 9  # its elements are read by each call
    np.testing.assert_array_equal(f(x), x * small)


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
        r"x \+= y is not traced": lambda x: operator.iadd(x, 1), r"x\[...\] = y is not traced": assigned,
        "add with out= is not traced": lambda x: np.add(x, 1, out=x),
        "copyto is not traced": lambda x: np.copyto(x, 1),
        r"the shape of x\[mask\] depends on data": lambda x: x[x > 3], "nonzero is not traced": np.nonzero,
        "branching on a traced value": lambda x: x if x[0, 0] else x + 1, "making a NumPy array": np.asarray,
    }  # fmt: skip
    for message, f in refused.items():
        with pytest.raises(kf.TraceError, match=message):
            kf.fuse(lambda x, f=f: f(x))(image)
    np.testing.assert_array_equal(image.ravel(), np.arange(12))
    assert (kf.fuse(lambda x: x + 1)(read_only) == 8).all()
    with pytest.raises(OverflowError, match="300 out of bounds for uint8"):
        kf.fuse(lambda x: x + 300)(image)
    with pytest.raises(TypeError, match=r"x must be .* got uint8"):
        kf.relu(image)


# ---- on GPUs --------------------------------------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.parametrize("shape", [(8, 64), (2, 4, 64), (3, 1000, 64), (7, 64)])
@pytest.mark.parametrize("columns", [257, 1001, 1024])
def test_products_with_odd_rows(shape, columns):
    """Products of half types are computed transposed where that is faster."""
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
