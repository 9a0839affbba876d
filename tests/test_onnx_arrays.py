"""ONNX models on arrays of other libraries, calls of torch within them, and weights that callers give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kfusion as kf
from kfusion import _core

onnx = pytest.importorskip("onnx")
from onnx import TensorProto as T  # noqa: E402
from onnx import helper as h  # noqa: E402

from kfusion._onnx import tensors, torch_calls  # noqa: E402
from onnx_models import expected, info, one, saved, weight  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")

F = np.float32


# ---- weights with default values ----


def scaled(path: Any) -> str:
    """y = (x * w + b) in the shape s, all of w, b and s with values of their own."""
    nodes = [
        h.make_node("Mul", ["x", "w"], ["a"]),
        h.make_node("Add", ["a", "b"], ["c"]),
        h.make_node("Reshape", ["c", "s"], ["y"]),
    ]
    inputs = [info("x", T.FLOAT, [6]), info("w", T.FLOAT, [6]), info("b", T.FLOAT, [6]), info("s", T.INT64, [2])]
    weights = [weight("w", F([2] * 6)), weight("b", F([1] * 6)), weight("s", np.int64([2, 3]))]
    return saved(path, nodes, inputs, [info("y", T.FLOAT, None)], weights)


def test_weights_with_defaults_are_given_by_name(tmp_path):
    fused, x = kf.fuse(scaled(tmp_path)), np.arange(6, dtype=F)
    assert (fused.input_names, fused.default_names) == (("x",), ("w", "b", "s"))
    w = F([1, 2, 3, 4, 5, 6])
    for _ in range(2):  # the second time everything is known
        np.testing.assert_array_equal(fused(x), (x * 2 + 1).reshape(2, 3))
        np.testing.assert_array_equal(fused(x, w=w), (x * w + 1).reshape(2, 3))
        np.testing.assert_array_equal(fused(x, b=w), (x * 2 + w).reshape(2, 3))
        np.testing.assert_array_equal(fused(x, b=x, w=w), (x * w + x).reshape(2, 3))
        np.testing.assert_array_equal(fused(x, s=np.int64([3, 2])), (x * 2 + 1).reshape(3, 2))
    assert len(fused.plan(x, w=w).groups) == 1


def test_large_weights_with_defaults(tmp_path, rng):
    w = rng.standard_normal((300, 20), F)
    nodes = [h.make_node("MatMul", ["x", "w"], ["y"])]
    inputs = [info("x", T.FLOAT, ["n", 300]), info("w", T.FLOAT, [300, 20])]
    fused = kf.fuse(saved(tmp_path, nodes, inputs, [info("y", T.FLOAT, None)], [weight("w", w)]))
    x = rng.standard_normal((4, 300), F)
    np.testing.assert_allclose(fused(x), x @ w, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(fused(x, w=w * 2), x @ w * 2, rtol=1e-3, atol=1e-4)


def test_plans_with_another_default(tmp_path):
    file = scaled(tmp_path)

    def shape(**given: Any) -> Any:
        graph = kf.plan(file, **given).unfused_graph
        return tuple(graph.shape(graph.to_dict()["outputs"][0]["node"]))

    assert shape() == (2, 3)
    assert shape(s=np.int64([3, 2]), w=kf.spec(6)) == (3, 2)
    with pytest.raises(TypeError, match="w must be of float32, got a spec of float64"):
        kf.plan(file, w=kf.spec(6, "float64"))


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"w": np.ones(6)}, TypeError, "w must be of float32, got float64"),
        ({"w": np.ones(5, F)}, ValueError, r"w must have shape \(6\), got \(5,\)"),
        ({"v": np.ones(6, F)}, TypeError, "v is no input of model; it has x, w, b, s"),
        ({"x": np.ones(6, F)}, TypeError, "x is given twice"),
    ],
)
def test_wrong_defaults(tmp_path, given, kind, message):
    fused = kf.fuse(scaled(tmp_path))
    with pytest.raises(kind, match=message):
        fused(np.ones(6, F), **given)


# ---- arrays of other libraries ----


def network(path: Any, rng: Any) -> str:
    """A product, a convolution by torch, sorting, a shape that an input decides on, and small integers."""
    nodes = [
        h.make_node("Conv", ["x", "k"], ["a"], pads=[1, 1, 1, 1]),
        h.make_node("Relu", ["a"], ["b"]),
        h.make_node("TopK", ["b", "two"], ["values", "where"], axis=-1),
        h.make_node("Reshape", ["values", "shape"], ["y"]),
        h.make_node("Slice", ["y", "first", "last", "axis", "back"], ["z"]),
        h.make_node("Identity", ["small"], ["same"]),
        h.make_node("Cast", ["small"], ["wide"], to=T.FLOAT),
    ]
    weights = [weight("k", rng.standard_normal((4, 3, 3, 3), F)), weight("two", np.int64([2]))]
    weights += [weight(n, np.int64([v])) for n, v in (("first", -1), ("last", -100), ("axis", 0), ("back", -1))]
    inputs = [info("x", T.FLOAT, ["n", 3, 5, 6]), info("shape", T.INT64, [2]), info("small", T.INT8, [3])]
    outputs = [info(n, kind, None) for n, kind in (("z", T.FLOAT), ("where", T.INT64), ("same", T.INT8))]
    return saved(path, nodes, inputs, [*outputs, info("wide", T.FLOAT, None)], weights)


def arguments(rng: Any) -> list[Any]:
    return [rng.standard_normal((2, 3, 5, 6), F), np.int64([8, 10]), np.int8([-3, 0, 7])]


def require_equal(got: Any, want: Any) -> None:
    for g, w in zip(got, want, strict=True):
        g = g if isinstance(g, np.ndarray) else g.cpu().numpy()
        assert g.dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4)


def test_numpys_arrays_with_and_without_torch(tmp_path, rng, monkeypatch):
    file, given = network(tmp_path, rng), arguments(rng)
    got = kf.fuse(file)(*given)
    assert all(type(g) is np.ndarray for g in got)
    require_equal(got, expected(file, *given, inputs=3))
    monkeypatch.setattr(tensors, "torch", lambda: None)
    require_equal(kf.fuse(file)(*given), got)


@pytest.mark.parametrize("with_torch", [True, False])
def test_results_without_axes_are_arrays(tmp_path, monkeypatch, with_torch):
    if not with_torch:
        monkeypatch.setattr(tensors, "torch", lambda: None)
    file = one(tmp_path, "ReduceSum", {"x": np.ones(3, F)}, keepdims=0)
    y = kf.fuse(file)(np.ones(3, F))
    assert (type(y), y.shape, y.dtype, float(y)) == (np.ndarray, (), F, 3.0)


def test_tensors(tmp_path, rng):
    torch = pytest.importorskip("torch")
    file, given = network(tmp_path, rng), arguments(rng)
    fused = kf.fuse(file)
    got = fused(*map(torch.from_numpy, given))
    assert all(isinstance(g, torch.Tensor) for g in got)
    require_equal(got, expected(file, *given, inputs=3))
    mixed = fused(torch.from_numpy(given[0]), *given[1:])
    assert isinstance(mixed[0], torch.Tensor)
    require_equal(mixed, [g.numpy() for g in got])
    with pytest.raises(TypeError, match="x must be of float32, got float64"):
        fused(torch.zeros(2, 3, 5, 6, dtype=torch.float64), *given[1:])
    with pytest.raises(TypeError, match="x requires grad"):
        fused(torch.zeros(2, 3, 5, 6, requires_grad=True), *given[1:])


def test_bfloat16_tensors(tmp_path):
    torch = pytest.importorskip("torch")
    file = saved(tmp_path, [h.make_node("Exp", ["x"], ["y"])], [info("x", T.BFLOAT16, [3])], [info("y", 16, None)])
    x = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.bfloat16)
    fused = kf.fuse(file)
    assert torch.equal(fused(x), x.exp())
    assert fused(tensors.to_numpy(x)).astype(F).tolist() == x.exp().tolist()


def test_arrays_of_any_strides(tmp_path, rng):
    file = saved(tmp_path, [h.make_node("Exp", ["x"], ["y"])], [info("x", T.FLOAT, [3, 4])], [info("y", T.FLOAT, None)])
    fused, x = kf.fuse(file), rng.standard_normal((6, 8), F)
    packed = np.zeros((3, 4), np.dtype([("a", "i1"), ("x", "f4")]))["x"]
    frozen = x[:3, :4].copy()
    frozen.flags.writeable = False
    for given in (
        x[::2, ::2],
        x[:3, :4].T.copy().T,
        x[2::-1, 3::-1],
        packed,
        frozen,
        np.broadcast_to(x[0, :4], (3, 4)),
    ):
        np.testing.assert_allclose(fused(given), np.exp(given), rtol=1e-5)


@pytest.mark.cuda
@pytest.mark.skipif(_core.cuda_device_count() == 0, reason="needs an NVIDIA GPU")
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


def volumes(rng: Any, *shape: int) -> Any:
    return rng.standard_normal(shape, F)


def long_windows(op: str, **more: Any) -> Any:
    options = {"kernel_shape": [9, 9], "strides": [2, 3], "pads": [3, 1, 2, 0], **more}
    return op, lambda r: {"x": volumes(r, 2, 3, 17, 19)}, {}, options


def layer(op: str, gates: int, ways: int = 1, **more: Any) -> Any:
    def inputs(r: Any) -> Any:
        shapes = {"x": (5, 2, 3), "w": (ways, gates * 4, 3), "r": (ways, gates * 4, 4), "b": (ways, 2 * gates * 4)}
        return {n: volumes(r, *s) for n, s in shapes.items()}

    return op, inputs, {}, {"hidden_size": 4, "direction": "forward" if ways == 1 else "bidirectional", **more}


def resized(mode: str, by: Any, **more: Any) -> Any:
    """By scales, as floats, or to sizes."""
    weights = {"": None, "scales": F(by)} if isinstance(by[0], float) else {"": None, "-": None, "sizes": np.int64(by)}
    return "Resize", lambda r: {"x": volumes(r, 1, 2, 6, 8)}, weights, {"mode": mode, **more}


def grid(**attributes: Any) -> Any:
    return (
        "GridSample",
        lambda r: {"x": volumes(r, 2, 3, 5, 6), "g": F(r.uniform(-1.3, 1.3, (2, 4, 7, 2)))},
        {},
        attributes,
    )


PLACES = np.int64([[0, 2, -1], [3, -4, 1]])
CASES = {
    "volumes": ("Conv", lambda r: {"x": volumes(r, 2, 4, 5, 6, 7), "w": volumes(r, 6, 2, 3, 2, 3)}, {},
                {"pads": [1, 0, 2, 0, 1, 1], "strides": [1, 2, 1], "group": 2}),
    "same": ("Conv", lambda r: {"x": volumes(r, 1, 2, 5, 6, 7), "w": volumes(r, 3, 2, 3, 2, 3), "b": volumes(r, 3)}, {},
             {"auto_pad": "SAME_LOWER"}),
    "transpose": ("ConvTranspose", lambda r: {"x": volumes(r, 2, 4, 5, 6), "w": volumes(r, 4, 3, 3, 2)}, {},
                  {"strides": [2, 3], "output_padding": [1, 2], "pads": [1, 0, 1, 0]}),
    "transpose uneven": ("ConvTranspose", lambda r: {"x": volumes(r, 2, 4, 9), "w": volumes(r, 4, 3, 4)}, {},
                         {"strides": [2], "pads": [2, 1], "dilations": [2]}),
    "transpose same": ("ConvTranspose", lambda r: {"x": volumes(r, 1, 4, 5, 6), "w": volumes(r, 4, 3, 3, 4),
                                                   "b": volumes(r, 3)}, {},
                       {"strides": [2, 1], "auto_pad": "SAME_LOWER"}),
    **{f"transpose with gaps, {end}": ("ConvTranspose", lambda r: {"x": volumes(r, 1, 4, 5, 6),
                                                                   "w": volumes(r, 4, 3, 2, 3), "b": volumes(r, 3)}, {},
                                       {"strides": [3, 2], "auto_pad": f"SAME_{end}"}) for end in ("UPPER", "LOWER")},
    "max": long_windows("MaxPool"),
    "max up": long_windows("MaxPool", ceil_mode=1),
    "mean": long_windows("AveragePool"),
    "mean of padding": long_windows("AveragePool", count_include_pad=1, ceil_mode=1),
    "LSTM": layer("LSTM", 4),
    "LSTM of both directions": layer("LSTM", 4, 2),
    "GRU": layer("GRU", 3, linear_before_reset=1),
    "RNN": layer("RNN", 1),
    "sums": ("CumSum", lambda r: {"x": volumes(r, 3, 5)}, {"axis": np.int64(1)}, {"exclusive": 1, "reverse": 1}),
    "sums of integers": ("CumSum", lambda r: {"x": np.int32(r.integers(-9, 9, (3, 5)))}, {"axis": np.int64(0)}, {}),
    "largest of all": ("TopK", lambda r: {"x": volumes(r, 6, 99)}, {"k": np.int64([7])}, {"axis": 1}),
    "largest of infinities": ("TopK", lambda r: {"x": np.where(r.random((6, 99)) < 0.9, volumes(r, 6, 99), F(np.inf))},
                         {"k": np.int64([4])}, {"axis": 1}),
    "largest": ("TopK", lambda r: {"x": F(r.integers(0, 4, (6, 30)))}, {"k": np.int64([7])}, {"axis": 1}),
    "smallest": ("TopK", lambda r: {"x": F(r.integers(0, 4, (6, 30)))}, {"k": np.int64([3])},
                 {"axis": 0, "largest": 0}),
    "einsum": ("Einsum", lambda r: {"x": volumes(r, 2, 3, 4), "y": volumes(r, 2, 4, 5)}, {},
               {"equation": "b i j, b j k -> b k i"}),
    "gather": ("GatherND", lambda r: {"x": volumes(r, 4, 5, 6)}, {"i": np.int64([[[0, -1]], [[3, 2]]])}, {}),
    "scatter": ("ScatterND", lambda r: {"x": volumes(r, 4, 5), "i": np.int64([[0], [2]]), "u": volumes(r, 2, 5)}, {},
                {"reduction": "add"}),
    "elements": ("ScatterElements", lambda r: {"x": volumes(r, 2, 5), "i": PLACES, "u": volumes(r, 2, 3)}, {},
                 {"axis": 1}),
    "elements added": ("ScatterElements", lambda r: {"x": volumes(r, 2, 5), "i": PLACES * 0, "u": volumes(r, 2, 3)}, {},
                       {"axis": 1, "reduction": "add"}),
    "grid": grid(mode="linear", padding_mode="border", align_corners=1),
    "grid reflected": grid(mode="linear", padding_mode="reflection"),
    "cubic grid": grid(mode="cubic", align_corners=1),
    "bytes": ("Cast", lambda r: {"x": np.uint8(r.integers(0, 256, (4, 5)))}, {}, {"to": T.FLOAT}),
    "product of bytes": ("MatMulInteger", lambda r: {"x": np.uint8(r.integers(0, 256, (3, 70))),
                                                     "y": np.int8(r.integers(-128, 128, (70, 4)))},
                         {"a": np.uint8(12), "b": np.int8(-3)}, {}),
    "linear": resized("linear", [1, 2, 13, 11]),
    "linear by 2": resized("linear", [1.0, 1.0, 2.0, 2.0]),
    "linear by 0.7": resized("linear", [1.0, 1.0, 0.7, 0.6]),
    "linear corners": resized("linear", [1, 2, 13, 11], coordinate_transformation_mode="align_corners"),
    "linear asymmetric": resized("linear", [1.0, 1.0, 2.0, 1.5], coordinate_transformation_mode="asymmetric"),
    "nearest": resized("nearest", [1.0, 1.0, 2.0, 2.0]),
    "nearest floor": resized("nearest", [1, 2, 9, 5], nearest_mode="floor",
                             coordinate_transformation_mode="asymmetric"),
    "cubic": resized("cubic", [1, 2, 13, 11]),
    "cubic without what is outside": resized("cubic", [1.0, 1.0, 1.7, 0.6], exclude_outside=1, cubic_coeff_a=-0.5),
    "smooth": resized("linear", [1, 2, 2, 3], antialias=1),
    "axes": resized("nearest", [3, 12], axes=[3, 2]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_calls_of_torch(tmp_path, rng, monkeypatch, name):
    """They give what onnx.reference does, which does not run."""
    pytest.importorskip("torch")
    op, inputs, constants, attributes = CASES[name]
    given = inputs(rng)
    found: list[Any] = []
    rule = torch_calls.function
    monkeypatch.setattr(torch_calls, "function", lambda *a: found.append(rule(*a)) or found[-1])
    names = [*given, *("" if v is None else n for n, v in constants.items())]
    outputs = {"TopK": ["y", "i"], "LSTM": ["y", "h", "c"], "GRU": ["", "h"]}.get(op, ["y"])
    nodes = [h.make_node(op, names, outputs, name="it", **attributes)]
    infos = [info(n, h.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in given.items()]
    weights = [weight(n, v) for n, v in constants.items() if v is not None]
    file = saved(tmp_path, nodes, infos, [info(o, T.UNDEFINED, None) for o in outputs if o], weights)
    got = kf.fuse(file)(*given.values())
    assert found[0] is not None
    for g, w in zip(got if isinstance(got, tuple) else (got,), expected(file, *given.values()), strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attributes", [{"mode": "cubic"}, {"mode": "linear", "exclude_outside": 1}])
def test_infinities_stay_where_they_are_when_an_image_is_resized(tmp_path, attributes):
    pytest.importorskip("torch")
    x = np.arange(24, dtype=F).reshape(1, 1, 2, 12)
    x[..., 0, 0] = np.inf
    options = {"coordinate_transformation_mode": "align_corners", **attributes}
    nodes = [h.make_node("Resize", ["x", "", "scales"], ["y"], **options)]
    infos = [info("x", T.FLOAT, x.shape)], [info("y", T.FLOAT, None)]
    y = kf.fuse(saved(tmp_path, nodes, *infos, [weight("scales", F([1, 1, 1, 0.5]))]))(x)
    assert np.isfinite(y[..., 3:]).all()
    assert np.isfinite(y[..., 1, :]).all()


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_an_axis_may_be_resized_to_nothing(tmp_path, mode):
    x = np.ones((1, 1, 2, 4), F)
    nodes = [h.make_node("Resize", ["x", "", "scales"], ["y"], mode=mode, coordinate_transformation_mode="asymmetric")]
    infos = [info("x", T.FLOAT, x.shape)], [info("y", T.FLOAT, None)]
    y = kf.fuse(saved(tmp_path, nodes, *infos, [weight("scales", F([1, 1, 0.25, 1]))]))(x)
    assert y.shape == (1, 1, 0, 4)


def test_what_torch_does_otherwise_is_the_references(tmp_path, rng):
    """A GRU of the other kind, lengths of sequences, and halves."""
    x = volumes(rng, 5, 2, 3)
    op, inputs, _, attributes = layer("GRU", 3)
    file = one(tmp_path, op, inputs(rng), ["y"], **attributes)
    given = inputs(rng)
    np.testing.assert_allclose(kf.fuse(file)(*given.values()), expected(file, *given.values())[0], rtol=1e-4, atol=1e-5)
    half = np.float16(x)
    file = one(tmp_path, "LpPool", {"x": half}, kernel_shape=[2])
    np.testing.assert_allclose(kf.fuse(file)(half), expected(file, half)[0], rtol=1e-2, atol=1e-2)
