"""ONNX models on arrays of other libraries, calls of torch within them, and weights that callers give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kfusion as kf

onnx = pytest.importorskip("onnx")
from onnx import TensorProto as T  # noqa: E402
from onnx import helper as h  # noqa: E402

from kfusion._onnx import tensors, torch_calls  # noqa: E402
from onnx_models import expected, model  # noqa: E402
from sweeps import refusals, sweep  # noqa: E402

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
F = np.float32


# ---- weights with default values ----


def scaled(path: Any) -> str:
    """y = (x * w + b) in the shape s, all of w, b and s with values of their own."""
    weights = {"w": F([2] * 6), "b": F([1] * 6), "s": np.int64([2, 3])}
    return model(path, "a = Mul(x, w) ; c = Add(a, b) ; y = Reshape(c, s)", {"x": [6], **weights}, weights)


def test_weights_with_defaults_are_given_by_name(tmp_path, rng):
    file, x, w = scaled(tmp_path), np.arange(6, dtype=F), F([1, 2, 3, 4, 5, 6])
    fused = kf.fuse(file)
    assert (fused.input_names, fused.default_names) == (("x",), ("w", "b", "s"))
    for _ in range(2):  # the second time everything is known
        np.testing.assert_array_equal(fused(x), (x * 2 + 1).reshape(2, 3))
        np.testing.assert_array_equal(fused(x, w=w), (x * w + 1).reshape(2, 3))
        np.testing.assert_array_equal(fused(x, b=w), (x * 2 + w).reshape(2, 3))
        np.testing.assert_array_equal(fused(x, b=x, w=w), (x * w + x).reshape(2, 3))
        np.testing.assert_array_equal(fused(x, s=np.int64([3, 2])), (x * 2 + 1).reshape(3, 2))
    assert len(fused.plan(x, w=w).groups) == 1

    def shape(**given: Any) -> Any:
        graph = kf.plan(file, **given).unfused_graph
        return tuple(graph.shape(graph.to_dict()["outputs"][0]["node"]))

    assert shape() == (2, 3)
    assert shape(s=np.int64([3, 2]), w=kf.spec(6)) == (3, 2)
    refusals([
        (lambda: kf.plan(file, w=kf.spec(6, "float64")), TypeError, "w must be of float32, got a spec of float64"),
        (lambda: fused(x, w=np.ones(6)), TypeError, "w must be of float32, got float64"),
        (lambda: fused(x, w=np.ones(5, F)), ValueError, r"w must have shape \(6\), got \(5,\)"),
        (lambda: fused(x, v=w), TypeError, "v is no input of model; it has x, w, b, s"),
        (lambda: fused(x, x=x), TypeError, "x is given twice"),
    ])  # fmt: skip
    w = rng.standard_normal((300, 20), F)
    large = kf.fuse(model(tmp_path, "y = MatMul(x, w)", {"x": ["n", 300], "w": w}, {"w": w}))
    x = rng.standard_normal((4, 300), F)
    np.testing.assert_allclose(large(x), x @ w, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(large(x, w=w * 2), x @ w * 2, rtol=1e-3, atol=1e-4)


# ---- arrays of other libraries ----

# A product, a convolution by torch, sorting, a shape that an input decides on, and small integers.
NETWORK = """a = Conv<pads=[1,1,1,1]>(x, k) ; b = Relu(a) ; values, where = TopK<axis=-1>(b, two) ;
y = Reshape(values, shape) ; z = Slice(y, first, last, axis, back) ; same = Identity(small) ;
wide = Cast<to=1>(small)"""


def network(path: Any, rng: Any) -> str:
    weights = {"k": rng.standard_normal((4, 3, 3, 3), F), "two": np.int64([2])}
    weights |= {n: np.int64([v]) for n, v in (("first", -1), ("last", -100), ("axis", 0), ("back", -1))}
    inputs = {"x": ["n", 3, 5, 6], "shape": np.zeros(2, np.int64), "small": np.zeros(3, np.int8)}
    return model(path, NETWORK.replace("\n", " "), inputs, weights, "z where same wide")


def arguments(rng: Any) -> list[Any]:
    return [rng.standard_normal((2, 3, 5, 6), F), np.int64([8, 10]), np.int8([-3, 0, 7])]


def require_equal(got: Any, want: Any) -> None:
    for g, w in zip(got, want, strict=True):
        g = g if isinstance(g, np.ndarray) else g.cpu().numpy()
        assert g.dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4)


def test_arrays_of_numpy_and_tensors(tmp_path, rng, monkeypatch):
    file, given = network(tmp_path, rng), arguments(rng)
    fused, want = kf.fuse(file), expected(file, *given, inputs=3)
    of_arrays, of_tensors = fused(*given), fused(*map(torch.from_numpy, given))
    mixed = fused(torch.from_numpy(given[0]), *given[1:])
    assert all(type(g) is np.ndarray for g in of_arrays)
    assert all(isinstance(g, torch.Tensor) for g in (*of_tensors, mixed[0]))
    for got in (of_arrays, of_tensors, mixed):
        require_equal(got, want)
    zeros = torch.zeros(2, 3, 5, 6)
    refusals([
        (lambda: fused(zeros.double(), *given[1:]), TypeError, "x must be of float32, got float64"),
        (lambda: fused(zeros.requires_grad_(), *given[1:]), TypeError, "x requires grad"),
    ])  # fmt: skip
    x = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.bfloat16)
    of_halves = kf.fuse(model(tmp_path, "y = Exp(x)", {"x": h.make_tensor_value_info("x", T.BFLOAT16, [3])}))
    assert torch.equal(of_halves(x), x.exp())
    assert of_halves(tensors.to_numpy(x)).astype(F).tolist() == x.exp().tolist()
    for module in (torch, None):  # results without axes are arrays
        monkeypatch.setattr(tensors, "torch", lambda module=module: module)
        y = kf.fuse(model(tmp_path, "y = ReduceSum<keepdims=0>(x)", {"x": [3]}))(np.ones(3, F))
        assert (type(y), y.shape, y.dtype, float(y)) == (np.ndarray, (), F, 3.0)
    require_equal(kf.fuse(network(tmp_path, rng))(*given), expected(file, *given, inputs=3))  # without torch


def test_arrays_of_any_strides(tmp_path, rng):
    fused, x = kf.fuse(model(tmp_path, "y = Exp(x)", {"x": [3, 4]})), rng.standard_normal((6, 8), F)
    packed = np.zeros((3, 4), np.dtype([("a", "i1"), ("x", "f4")]))["x"]
    frozen = x[:3, :4].copy()
    frozen.flags.writeable = False
    views = x[::2, ::2], x[:3, :4].T.copy().T, x[2::-1, 3::-1], packed, frozen, np.broadcast_to(x[0, :4], (3, 4))
    for given in views:
        np.testing.assert_allclose(fused(given), np.exp(given), rtol=1e-5)


@pytest.mark.cuda
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_arrays_on_a_gpu(tmp_path, rng, library):
    module = pytest.importorskip(library)
    pytest.importorskip("torch")
    file, given = network(tmp_path, rng), arguments(rng)
    to_gpu = (lambda a: module.from_numpy(a).cuda()) if library == "torch" else module.asarray
    fused = kf.fuse(file)
    for _ in range(2):
        got = fused(*map(to_gpu, given))
        assert all(type(g) is type(to_gpu(given[0])) and kf._arrays.on_cuda(g) for g in got)
        require_equal([g if library == "torch" else g.get() for g in got], expected(file, *given, inputs=3))


# ---- calls of torch ----

WINDOW = "kernel_shape=[9,9], strides=[2,3], pads=[3,1,2,0]"
X4, X3, IMAGE, GRID = (1, 4, 5, 6), (5, 2, 3), (1, 2, 6, 8), (2, 3, 5, 6)
DEEP, SAME = {"x": (1, 2, 5, 6, 7), "w": (3, 2, 3, 2, 3), "b": (3,)}, {"x": X4, "w": (4, 3, 2, 3), "b": (3,)}
PLACES, TIES = np.int64([[0, 2, -1], [3, -4, 1]]), np.tile(F([2, 0, 3, 1, 3, 0]), (6, 5))
BYTES, SIGNED = np.arange(210, dtype=np.uint8).reshape(3, 70), np.arange(280).astype(np.int8).reshape(70, 4)
FEW_FINITE = np.where(np.arange(594).reshape(6, 99) % 10 < 9, np.sin(np.arange(594.0)).reshape(6, 99), np.inf).astype(F)


def layer(gates: int, ways: int = 1) -> dict[str, Any]:
    return {"x": X3, "w": (ways, gates * 4, 3), "r": (ways, gates * 4, 4), "b": (ways, 2 * gates * 4)}


# Inputs are arrays, or floats of a shape that are drawn.
CALLS = [
    ("y = Conv<pads=[1,0,2,0,1,1], strides=[1,2,1], group=2>(x, w)", {"x": (2, 4, 5, 6, 7), "w": (6, 2, 3, 2, 3)}),
    ('y = Conv<auto_pad="SAME_LOWER">(x, w, b)', DEEP),
    ("y = ConvTranspose<strides=[2,3], output_padding=[1,2], pads=[1,0,1,0]>(x, w)", {"x": X4, "w": (4, 3, 3, 2)}),
    ("y = ConvTranspose<strides=[2], pads=[2,1], dilations=[2]>(x, w)", {"x": (2, 4, 9), "w": (4, 3, 4)}),
    ('y = ConvTranspose<strides=[2,1], auto_pad="SAME_LOWER">(x, w, b)', {"x": X4, "w": (4, 3, 3, 4), "b": (3,)}),
    ('y = ConvTranspose<strides=[3,2], auto_pad="SAME_UPPER">(x, w, b)', SAME),  # with gaps
    ('y = ConvTranspose<strides=[3,2], auto_pad="SAME_LOWER">(x, w, b)', SAME),
    (f"y = MaxPool<{WINDOW}>(x)", {"x": (2, 3, 17, 19)}),
    (f"y = MaxPool<{WINDOW}, ceil_mode=1>(x)", {"x": (2, 3, 17, 19)}),
    (f"y = AveragePool<{WINDOW}>(x)", {"x": (2, 3, 17, 19)}),
    (f"y = AveragePool<{WINDOW}, count_include_pad=1, ceil_mode=1>(x)", {"x": (2, 3, 17, 19)}),
    ('y, h, c = LSTM<hidden_size=4, direction="forward">(x, w, r, b)', layer(4)),
    ('y, h, c = LSTM<hidden_size=4, direction="bidirectional">(x, w, r, b)', layer(4, 2)),
    (', h = GRU<hidden_size=4, direction="forward", linear_before_reset=1>(x, w, r, b)', layer(3)),
    ('y = RNN<hidden_size=4, direction="forward">(x, w, r, b)', layer(1)),
    ("y = CumSum<exclusive=1, reverse=1>(x, axis)", {"x": (3, 5)}, {"axis": np.int64(1)}),
    ("y = CumSum(x, axis)", {"x": PLACES.astype(np.int32)}, {"axis": np.int64(0)}),
    ("y, i = TopK<axis=1>(x, k)", {"x": (6, 99)}, {"k": np.int64([7])}),
    ("y, i = TopK<axis=1>(x, k)", {"x": FEW_FINITE}, {"k": np.int64([4])}),
    ("y, i = TopK<axis=1>(x, k)", {"x": TIES}, {"k": np.int64([7])}),
    ("y, i = TopK<axis=0, largest=0>(x, k)", {"x": TIES}, {"k": np.int64([3])}),
    ('y = Einsum<equation="b i j, b j k -> b k i">(x, z)', {"x": (2, 3, 4), "z": (2, 4, 5)}),
    ("y = GatherND(x, i)", {"x": (4, 5, 6)}, {"i": np.int64([[[0, -1]], [[3, 2]]])}),
    ('y = ScatterND<reduction="add">(x, i, u)', {"x": (4, 5), "i": np.int64([[0], [2]]), "u": (2, 5)}),
    ("y = ScatterElements<axis=1>(x, i, u)", {"x": (2, 5), "i": PLACES, "u": (2, 3)}),
    ('y = ScatterElements<axis=1, reduction="add">(x, i, u)', {"x": (2, 5), "i": PLACES * 0, "u": (2, 3)}),
    ('y = GridSample<mode="linear", padding_mode="border", align_corners=1>(x, g)', {"x": GRID, "g": (2, 4, 7, 2)}),
    ('y = GridSample<mode="linear", padding_mode="reflection">(x, g)', {"x": GRID, "g": (2, 4, 7, 2)}),
    ('y = GridSample<mode="cubic", align_corners=1>(x, g)', {"x": GRID, "g": (2, 4, 7, 2)}),
    ("y = Cast<to=1>(x)", {"x": BYTES}),
    ("y = MatMulInteger(x, z, a, b)", {"x": BYTES, "z": SIGNED}, {"a": np.uint8(12), "b": np.int8(-3)}),
    *((f"y = Resize<{options}>(x, , scales)", {"x": IMAGE}, {"scales": F(by)}) for options, by in (
        ('mode="linear"', [1, 1, 2, 2]), ('mode="linear"', [1, 1, 0.7, 0.6]), ('mode="nearest"', [1, 1, 2, 2]),
        ('mode="linear", coordinate_transformation_mode="asymmetric"', [1, 1, 2, 1.5]),
        ('mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5', [1, 1, 1.7, 0.6]),
    )),
    *((f"y = Resize<{options}>(x, , , sizes)", {"x": IMAGE}, {"sizes": np.int64(to)}) for options, to in (
        ('mode="linear"', [1, 2, 13, 11]), ('mode="cubic"', [1, 2, 13, 11]), ('mode="nearest", axes=[3,2]', [3, 12]),
        ('mode="linear", coordinate_transformation_mode="align_corners"', [1, 2, 13, 11]),
        ('mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric"', [1, 2, 9, 5]),
        ('mode="linear", antialias=1', [1, 2, 2, 3]),
    )),
]  # fmt: skip


def test_calls_of_torch(tmp_path, rng, monkeypatch):
    """They give what onnx.reference does, which does not run."""
    found: list[Any] = []
    rule = torch_calls.function
    monkeypatch.setattr(torch_calls, "function", lambda *a: found.append(rule(*a)) or found[-1])

    def check(text, inputs, weights=None, is_call=True):
        found.clear()
        given = {n: F(rng.uniform(-1.3, 1.3, x)) if isinstance(x, tuple) else x for n, x in inputs.items()}
        names = " ".join(n.strip() for n in text.partition("=")[0].split(",") if n.strip())
        file = model(tmp_path, text, given, weights, names)
        got = kf.fuse(file)(*given.values())
        assert not is_call or found[0] is not None
        for g, w in zip(got if isinstance(got, tuple) else (got,), expected(file, *given.values()), strict=True):
            assert (g.dtype, g.shape) == (w.dtype, w.shape)
            np.testing.assert_allclose(g, w, rtol=1e-2 if g.dtype == np.float16 else 1e-4, atol=1e-5)

    sweep(check, CALLS)
    # What torch does otherwise is the reference's: a GRU of the other kind, and halves.
    check('y = GRU<hidden_size=4, direction="forward">(x, w, r, b)', layer(3), None, False)
    check("y = LpPool<kernel_shape=[2]>(x)", {"x": np.float16(rng.standard_normal(X3))}, None, False)


def test_resized_images_of_infinities_and_to_nothing(tmp_path):
    x = np.arange(24, dtype=F).reshape(1, 1, 2, 12)
    x[..., 0, 0] = np.inf
    for options in ('mode="cubic"', 'mode="linear", exclude_outside=1'):  # infinities stay where they are
        text = f'y = Resize<coordinate_transformation_mode="align_corners", {options}>(x, , scales)'
        y = kf.fuse(model(tmp_path, text, {"x": x}, {"scales": F([1, 1, 1, 0.5])}))(x)
        assert np.isfinite(y[..., 3:]).all()
        assert np.isfinite(y[..., 1, :]).all()
    for mode in ("linear", "nearest"):
        text = f'y = Resize<coordinate_transformation_mode="asymmetric", mode="{mode}">(x, , scales)'
        y = kf.fuse(model(tmp_path, text, {"x": [1, 1, 2, 4]}, {"scales": F([1, 1, 0.25, 1])}))
        assert y(np.ones((1, 1, 2, 4), F)).shape == (1, 1, 0, 4)
