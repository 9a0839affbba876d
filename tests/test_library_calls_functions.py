"""Functions of NumPy and torch among the kernels: a table of calls, against the functions themselves."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import kfusion as kf
from kinds import HAVE_GPU
from same_results import assert_same

X, Y = (np.random.default_rng(i).standard_normal((4, 6)).astype(np.float32) for i in range(2))
I = np.array([0, 2, 1])  # noqa: E741


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
