"""Both kernels against the float64 oracle: every dtype, instruction set, width class, layout and special value."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import kfusion as kf
import reference
from kfusion import _core
from kinds import DTYPES, SPACING, Kind, np_dtype

VERSIONS = [pytest.param(kf.fused_relu_layernorm, id="fused"), pytest.param(kf.unfused_relu_layernorm, id="unfused")]
# Round a vector (4 to 64 elements), a chunk of the CPU (4096), a warp, a block and a cluster of the GPU.
WIDTHS = [1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 255, 256, 257, 511, 768, 1000, 1023, 1024, 1025]
LONG_WIDTHS = [2047, 2048, 4095, 4096, 4097, 8192, 8193, 16383, 16384, 32768, 50257, 65537, 131072, 262147, 1_000_003]

every_version = pytest.mark.parametrize("f", VERSIONS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def close(got: np.ndarray, x: np.ndarray, weight=None, bias=None, eps: float = 1e-5) -> None:
    """`got` is the oracle's result up to the roundings of a correct kernel, everywhere (NaN only where it is NaN)."""
    name = str(x.dtype)
    want = reference.relu_layernorm(x, weight, bias, eps)
    assert got.shape == want.shape
    if not want.size:
        return
    w = 1.0 if weight is None else np.abs(reference.float64(weight))
    r = np.maximum(reference.float64(x), 0.0)
    # A mean that is off by a few roundings of the largest element moves every result by that over the deviation.
    with np.errstate(all="ignore"):
        sums = SPACING["float64" if name == "float64" else "float32"] * r.max(-1, keepdims=True, initial=1.0)
        centre = 8 * sums / np.sqrt(r.var(-1, keepdims=True) + eps)
        # Unfused, the centred value is rounded to the stored type before it is scaled, so it is relative to y - bias.
        stored = 6 * SPACING[name] * (np.abs(want) + np.abs(want if bias is None else want - reference.float64(bias)))
        tiny = 2.0**-23 if name == "float16" else 0.0  # float16's subnormals
        allowed = stored + w * (centre + tiny / np.sqrt(r.var(-1, keepdims=True) + eps)) + tiny
    bad = ~((np.abs(got - want) <= allowed) | (got == want) | (np.isnan(got) & np.isnan(want)))
    assert not bad.any(), (
        f"{bad.sum()} of {bad.size} wrong, first at {np.argwhere(bad)[0]}: got {got[bad][0]}, want {want[bad][0]}"
    )


def draw(rng: np.random.Generator, shape, dtype: str, scale: float = 1.0, shift: float = 0.0) -> np.ndarray:
    return (rng.standard_normal(shape) * scale + shift).astype(np_dtype(dtype))


@every_version
@every_dtype
@pytest.mark.parametrize("cols", WIDTHS)
def test_widths_on_every_instruction_set(f, dtype, cols, isa, rng):
    x = draw(rng, (5, cols), dtype)
    weight, bias = draw(rng, cols, dtype), draw(rng, cols, dtype)
    close(reference.float64(f(x)), x)
    close(reference.float64(f(x, weight, bias)), x, weight, bias)


@every_version
@every_dtype
@pytest.mark.parametrize("cols", LONG_WIDTHS)
def test_long_rows(f, dtype, cols, isa, rng):
    x = draw(rng, (3, cols), dtype)
    weight = draw(rng, cols, "float32")
    close(reference.float64(f(x, weight)), x, weight)


@pytest.mark.cuda
@every_version
@every_dtype
@pytest.mark.parametrize("cols", [*WIDTHS, *LONG_WIDTHS])
@pytest.mark.parametrize("rows", [1, 5, 133])
def test_widths_on_the_gpu(f, dtype, cols, rows, rng):
    gpu = Kind("own", kf.to_device, lambda a: reference.float64(a.numpy()), cuda=True)
    gpu.require()
    x = draw(rng, (rows if cols < 100_000 else min(rows, 3), cols), dtype)
    weight, bias = draw(rng, cols, dtype), draw(rng, cols, "float32")
    close(gpu.back(f(gpu.make(x))), x)
    close(gpu.back(f(gpu.make(x), gpu.make(weight), gpu.make(bias))), x, weight, bias)


@every_version
@every_dtype
def test_every_kind_of_array(f, dtype, kind, rng):
    if dtype not in kind.dtypes:
        pytest.skip(f"{kind.name} has no {dtype}")
    x, weight, bias = draw(rng, (2, 3, 257), dtype), draw(rng, 257, dtype), draw(rng, 257, dtype)
    given = kind.make(x)
    y = f(given, kind.make(weight), bias=kind.make(bias), eps=1e-3)
    if kind.name != "dlpack":
        assert type(y) is type(given)
        assert y.dtype == given.dtype
        assert tuple(y.shape) == x.shape
        assert str(getattr(y, "device", "")) == str(getattr(given, "device", ""))
    close(kind.back(y), x, weight, bias, 1e-3)
    close(kind.back(f(given)), x)


@every_version
@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (3, 0, 7), (2, 3, 0)])
def test_empty(f, shape, kind):
    x = kind.make(np.empty(shape, np.float32))
    assert kind.back(f(x)).shape == shape


@every_version
@pytest.mark.parametrize("shape", [(7,), (1, 1), (1, 300), (300, 1), (2, 3, 4, 5), (1, 2, 1, 33)])
def test_leading_axes(f, shape, place, rng):
    x = draw(rng, shape, "float32")
    y = place.back(f(place.make(x)))
    assert y.shape == shape
    close(y, x)


@every_version
@every_dtype
def test_weight_and_bias_alone_and_in_float32(f, dtype, place, rng):
    x, p = draw(rng, (9, 130), dtype), draw(rng, 130, dtype)
    p32 = p.astype(np.float32)
    close(place.back(f(place.make(x), place.make(p))), x, p)
    close(place.back(f(place.make(x), None, place.make(p))), x, None, p)
    close(place.back(f(place.make(x), place.make(p32), place.make(p))), x, p32, p)
    close(place.back(f(place.make(x), bias=place.make(p32))), x, None, p32)


LAYOUTS = {
    "transposed": lambda a: a.T,
    "fortran": np.asfortranarray,
    "reversed rows": lambda a: a[::-1],
    "reversed columns": lambda a: a[:, ::-1],
    "every second column": lambda a: a[:, ::2],
    "every third row": lambda a: a[::3],
    "column block": lambda a: a[:, 3:40],
    "broadcast rows": lambda a: np.broadcast_to(a[0], a.shape),
    "broadcast columns": lambda a: np.broadcast_to(a[:, :1], a.shape),
    "permuted axes": lambda a: np.broadcast_to(a, (3, *a.shape)).copy().transpose(1, 0, 2),
    "swapped last axes": lambda a: np.broadcast_to(a, (3, *a.shape)).copy().swapaxes(1, 2),
    "sliding window": lambda a: np.lib.stride_tricks.sliding_window_view(a[0], 20),
    "read-only": lambda a: [a.setflags(write=False), a][1],
}


@every_version
@every_dtype
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(f, dtype, layout, isa, rng):
    x = LAYOUTS[layout](draw(rng, (37, 70), dtype))
    before = x.copy()
    y = f(x)
    close(reference.float64(y), x)
    assert np.array_equal(
        x.view(np.uint8) if x.flags.c_contiguous else reference.float64(x),
        before.view(np.uint8) if x.flags.c_contiguous else reference.float64(before),
    )
    if layout in ("transposed", "fortran", "permuted axes", "swapped last axes"):
        assert y.strides == x.strides  # a dense layout is kept
    elif layout != "read-only":
        assert y.flags.c_contiguous


@pytest.mark.cuda
@every_version
@every_dtype
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_on_the_gpu(f, dtype, layout, rng):
    if not _core.cuda_device_count():
        pytest.skip("needs an NVIDIA GPU")
    torch = pytest.importorskip("torch")
    x = LAYOUTS[layout](draw(rng, (37, 70), dtype))
    if any(s < 0 for s in x.strides):
        pytest.skip("torch has no negative strides")
    last = sum((n - 1) * step for n, step in zip(x.shape, x.strides, strict=True)) // x.itemsize
    memory = np.lib.stride_tricks.as_strided(x, (last + 1,), (x.itemsize,)).copy().view(np.uint8)
    base = torch.from_numpy(memory).cuda().view(getattr(torch, dtype))
    t = torch.as_strided(base, x.shape, [s // x.itemsize for s in x.strides])
    y = f(t)
    close(y.double().cpu().numpy(), x)


@every_version
def test_unaligned_memory(f, isa, rng):
    packed = np.zeros((11, 33), np.dtype([("tag", "u1"), ("value", "<f4")]))
    packed["value"] = rng.standard_normal((11, 33))
    x = packed["value"]
    assert not x.flags.aligned
    close(reference.float64(f(x)), x)
    for offset in (1, 2, 3):
        bytes_ = np.zeros(4 * 100 * 9 + offset, np.uint8)[offset:]
        x = bytes_.view(np.float32).reshape(9, 100)
        x[...] = rng.standard_normal((9, 100))
        close(reference.float64(f(x)), x)


@every_version
@every_dtype
@pytest.mark.parametrize("cols", [1, 33, 1024, 5000])
def test_special_values(f, dtype, cols, place, rng):
    x = draw(rng, (8, cols), dtype)
    x[0] = -1  # nothing survives the ReLU: variance 0
    x[1, cols // 2] = np.nan
    x[2, -1] = np.inf
    x[3] = 0.0
    x[4] = -0.0
    x[5, 0] = -np.inf
    x[6] = 3.0  # constant
    close(place.back(f(place.make(x))), x)


@pytest.mark.parametrize(("dtype", "value"), [("float32", 2e19), ("bfloat16", 2e19), ("float64", 1e160)])
@pytest.mark.parametrize("shape", [(1, 8704), (1, 17408), (3, 40000), (8, 25000), (5, 100)])
def test_values_whose_squares_overflow(dtype, value, shape, place):
    """A constant row has variance 0 however large it is."""
    y = place.back(kf.fused_relu_layernorm(place.make(np.full(shape, value, np_dtype(dtype)))))
    assert np.isfinite(y).all()


@every_version
@every_dtype
def test_eps_zero_and_large_mean(f, dtype, place, rng):
    x = draw(rng, (4, 1500), dtype, 1.0, 100.0)  # E[x^2] - mean^2 in float32 would lose five digits here
    close(place.back(f(place.make(x), eps=0)), x, eps=0)
    close(place.back(f(place.make(x), eps=7)), x, eps=7)


@every_version
@every_dtype
@pytest.mark.parametrize("shape", [(9, 200), (3, 5000), (2, 70_001)])
def test_out_and_in_place(f, dtype, shape, place, rng):
    if place.cuda:
        torch = pytest.importorskip("torch")
        place = Kind("torch", lambda a: torch.from_numpy(reference.float64(a)).to(getattr(torch, dtype)).cuda(),
                     lambda t: t.double().cpu().numpy())  # fmt: skip
    x = draw(rng, shape, dtype)
    given, out = place.make(x.copy()), place.make(np.full(shape, np.nan, np_dtype(dtype)))
    assert f(given, out=out) is out
    close(place.back(out), x)
    assert f(given, out=given) is given
    close(place.back(given), x)


@every_version
def test_out_in_a_larger_buffer_touches_nothing_else(f, isa, rng):
    x = rng.standard_normal((13, 77)).astype(np.float32)
    for columns in (slice(5, 82), slice(4, 158, 2), slice(158, 4, -2)):
        buffer = np.full((15, 160), 7.0, np.float32)
        out = buffer[1:14, columns]
        f(x, out=out)
        close(reference.float64(out), x)
        out[...] = 7.0
        assert (buffer == 7.0).all()


@every_version
def test_out_beside_x_in_one_matrix(f, rng):
    both = rng.standard_normal((20, 200)).astype(np.float32)
    x, out = both[:, :100], both[:, 100:]
    before = x.copy()
    f(x, out=out)
    close(reference.float64(out), before)
    assert np.array_equal(x, before)
    interleaved = rng.standard_normal((20, 64)).astype(np.float32)
    before = interleaved[:, ::2].copy()
    f(interleaved[:, ::2], out=interleaved[:, 1::2])
    close(reference.float64(interleaved[:, 1::2]), before)


@every_version
@every_dtype
def test_results_do_not_depend_on_threads(f, dtype, threads, isa, rng):
    for shape in ((1, 200_000), (3, 100_000), (700, 700)):
        x = draw(rng, shape, dtype)
        results = []
        for n in (1, 2, 3, 7):
            threads(n)
            results.append(f(x).tobytes())
        assert len(set(results)) == 1


@every_dtype
def test_results_repeat_on_the_gpu(dtype, place, rng):
    x = place.make(draw(rng, (6, 100_003), dtype))
    assert np.array_equal(place.back(kf.fused_relu_layernorm(x)), place.back(kf.fused_relu_layernorm(x)))


@every_version
def test_streaming_stores(f, isa, rng):
    """Outputs beyond the last-level cache are written past it, in rows of every alignment."""
    for cols in (1023, 4096):
        x = rng.standard_normal((48_000_000 // 4 // cols, cols), np.float32)
        y = f(x)
        rows = rng.integers(0, len(x), 50)
        close(reference.float64(y[rows]), x[rows])
        assert np.isfinite(y).all()


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(data=st.data())
def test_any_view(data):
    """Any shape and any strides of a buffer, NumPy semantics throughout."""
    ndim = data.draw(st.integers(1, 4))
    shape = [data.draw(st.integers(0, 9)) for _ in range(ndim)]
    dtype = data.draw(st.sampled_from(DTYPES))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    x = draw(rng, shape, dtype)
    axes = data.draw(st.permutations(range(ndim)))
    steps = [data.draw(st.sampled_from([1, 2, -1, -2])) for _ in range(ndim)]
    x = x.transpose(axes)[tuple(slice(None, None, s) for s in steps)]
    if data.draw(st.booleans()):
        x = np.broadcast_to(x, (2, *x.shape))
    for f in (kf.fused_relu_layernorm, kf.unfused_relu_layernorm):
        close(reference.float64(f(x)), x)


def test_scaling_the_input_does_not_matter_without_eps(rng):
    x = rng.standard_normal((50, 300))
    a, b = kf.fused_relu_layernorm(x, eps=0), kf.fused_relu_layernorm(x * 4, eps=0)
    np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
