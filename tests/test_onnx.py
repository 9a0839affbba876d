"""ONNX models: planned without weights, run with the reference's results, refused by name, never crashed on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

onnx = pytest.importorskip("onnx")

from onnx import TensorProto as T  # noqa: E402 - needs onnx
from onnx import helper as h  # noqa: E402

import kfusion as kf  # noqa: E402
import onnx_nodes  # noqa: E402
from kfusion._cli.main import main  # noqa: E402
from kfusion._onnx import refusals, tensors  # noqa: E402
from onnx_models import expected, info, one, saved, weight  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")


def perceptron(path: Path, rng: np.random.Generator, *, external: bool = False) -> str:
    nodes = [
        h.make_node("Gemm", ["x", "w", "b"], ["a"], transB=1),
        h.make_node("Relu", ["a"], ["c"]),
        h.make_node("Softmax", ["c"], ["y"]),
    ]
    weights = [weight("w", rng.random((32, 16), np.float32)), weight("b", rng.random(32, np.float32))]
    file = saved(path, nodes, [info("x", T.FLOAT, ["batch", 16])], [info("y", T.FLOAT, None)], weights)
    if external:
        onnx.save(onnx.load(file), file, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return file


# ---- plans ----


def test_a_plan_needs_no_weights(tmp_path, rng):
    file = perceptron(tmp_path, rng, external=True)
    (tmp_path / "weights.bin").unlink()
    plan = kf.plan(file, sizes={"batch": 8}, device="H200")
    assert plan.function == "model"
    assert [g["shape"] for g in plan.graph.to_dict()["nodes"] if g["op"] == "input"] == [[8, 16], [32, 16], [32]]
    assert plan.fused.launches < plan.unfused.launches
    assert "Softmax that gives ['y']" in {node["source"] for node in plan.unfused_graph.to_dict()["stages"]}
    assert len(kf.trace(file, sizes={"batch": 8}).simplify()) == len(plan.graph)
    with pytest.raises(ValueError, match=r"weight 'w', whose data is in 'weights.bin' cannot be read"):
        kf.fuse(file)(np.zeros((8, 16), np.float32))


def test_sizes_have_names(tmp_path):
    inputs = [info("x", T.FLOAT, ["batch", "seq", 4]), info("z", T.FLOAT, ["batch", None, 4])]
    file = saved(tmp_path, [h.make_node("Concat", ["x", "z"], ["y"], axis=1)], inputs, [info("y", T.FLOAT, None)])
    with pytest.raises(ValueError, match=re.escape('pass sizes={"batch": 8, "seq": 8, "z.1": 8}')):
        kf.plan(file)
    with pytest.raises(ValueError, match="no size named 'bach'; its symbols: batch, seq, z"):
        kf.plan(file, sizes={"bach": 2}, default_size=1)
    plan = kf.plan(file, sizes={"batch": 2, "seq": 3}, default_size=5)
    assert plan.graph.shape(plan.graph.to_dict()["outputs"][0]["node"]) == (2, 8, 4)
    assert kf.plan(file, kf.spec((2, 3, 4)), z=kf.spec((2, 1, 4))).groups
    for arguments, message in [((1, 2, 3), "takes 2 inputs"), ((), "q is no input of model; it has x, z")]:
        with pytest.raises(TypeError, match=message):
            kf.plan(file, *arguments, **({} if arguments else {"q": kf.spec(1)}))
    for sizes in (8, {"batch": "8"}, [("batch", 8)]):
        with pytest.raises(TypeError, match="sizes must be integers by name"):
            kf.plan(file, sizes=sizes)
    with pytest.raises(TypeError, match="x must be of float32, got a spec of float64"):
        kf.plan(file, kf.spec((2, 3, 4), "float64"), default_size=1)


def test_sweeps(tmp_path, rng, capsys):
    file = perceptron(tmp_path, rng)
    swept = kf.sweep(file, batch=[8, 16], device="H200")
    assert [p.sizes for p in swept.points] == [{"batch": 8}, {"batch": 16}]
    for point in swept.points:
        assert point.bytes == kf.plan(file, sizes=point.sizes, device="H200").fused.issued.total
    assert main(["plan", file, "--sweep", "batch=8,16", "--device", "H200", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == swept.to_dicts()
    by_default = kf.sweep(file, default_size=[8, 16], device="H200")
    assert [p.bytes for p in by_default.points] == [p.bytes for p in swept.points]
    with pytest.raises(ValueError, match="no size named 'n'; its symbols: batch"):
        kf.sweep(file, batch=8, n=[1, 2])


def test_models_in_memory(tmp_path, rng):
    model = onnx.load(perceptron(tmp_path, rng))
    for call in (kf.plan, kf.fuse, kf.sweep, kf.trace):
        with pytest.raises(TypeError, match="pass the file's path, got a ModelProto"):
            call(model)
    with pytest.raises(TypeError, match="got an ONNX model: it has no gradients"):
        kf.kept_for_backward(perceptron(tmp_path, rng), kf.spec((8, 16)))


def test_shapes_are_computed_while_planning(tmp_path):
    nodes = [
        h.make_node("Shape", ["x"], ["s"]),
        h.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        h.make_node("Unsqueeze", ["n", "zeros"], ["u"]),
        h.make_node("Concat", ["u", "rest"], ["shape"], axis=0),
        h.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    weights = [weight("zero", np.int64(0)), weight("zeros", np.int64([0])), weight("rest", np.int64([-1]))]
    file = saved(tmp_path, nodes, [info("x", T.FLOAT, ["n", 3, 4])], [info("y", T.FLOAT, None)], weights)
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.testing.assert_array_equal(kf.fuse(file)(x), x.reshape(2, 12))
    assert not kf.plan(file, sizes={"n": 2}).groups


def test_elements_of_known_arrays(tmp_path):
    """An export of BERT has it: a row of a table by the positions that there are."""
    table, places = np.arange(64).reshape(1, 64), np.int64([[3, 0, -1, 5]])
    nodes = [h.make_node("GatherElements", ["table", "places"], ["a"], axis=1), h.make_node("Add", ["x", "a"], ["y"])]
    weights = [weight("table", table), weight("places", places)]
    file = saved(tmp_path, nodes, [info("x", T.INT64, [1, 4])], [info("y", T.INT64, None)], weights)
    assert kf.fuse(file)(np.int64([[100, 200, 300, 400]])).tolist() == [[103, 200, 363, 405]]


def test_values_that_decide_on_shapes_are_asked_for(tmp_path):
    file = one(tmp_path, "Reshape", {"x": np.zeros((2, 6), np.float32), "shape": np.zeros(2, np.int64)})
    with pytest.raises(ValueError, match=r"Reshape 'it': its result depends on values of inputs: pass shape=numpy"):
        kf.plan(file)
    assert not kf.plan(file, shape=np.array([3, 4])).groups  # a view
    fused, x = kf.fuse(file), np.arange(12, dtype=np.float32).reshape(2, 6)
    for shape in ([3, 4], [4, 3], [-1, 2], [3, 4]):
        np.testing.assert_array_equal(fused(x, np.array(shape)), x.reshape(shape))


# ---- calls ----


def test_a_model_is_a_function_of_arrays(tmp_path, rng):
    file = perceptron(tmp_path, rng, external=True)
    fused = kf.fuse(file)
    assert (fused.input_names, fused.output_names) == (("x",), ("y",))
    for n in (1, 3, 70):
        x = rng.standard_normal((n, 16), np.float32)
        np.testing.assert_allclose(fused(x), expected(file, x)[0], rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(fused(x=x), fused(x))
    assert fused.plan(x).groups[-1].executable
    fused.clear()
    assert "model.onnx(x)" in repr(fused)
    for bad, kind, message in [
        (x.astype(np.float64), TypeError, "x must be of float32, got float64"),
        (x[:, :3], ValueError, r"x must have shape \(batch, 16\), got \(70, 3\)"),
        ("no", TypeError, "x must be an array, got str"),
    ]:
        with pytest.raises(kind, match=message):
            fused(bad)
    with pytest.raises(TypeError, match="needs the input x"):
        fused()
    with pytest.raises(TypeError, match="x is given twice"):
        fused(x, x=x)


def test_nan_and_infinities(tmp_path, rng):
    x = np.array([[np.nan, 1, 2], [np.inf, -np.inf, 0], [-np.inf, 3, 4]], np.float32)
    for op, attributes in [
        ("Softmax", {}),
        ("Relu", {}),
        ("ReduceMax", {}),
        ("Clip", {}),
        ("HardSigmoid", {}),
        ("Gelu", {}),
    ]:
        file = one(tmp_path, op, {"x": x}, **attributes)
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(kf.fuse(file)(x), expected(file, x)[0], rtol=1e-5, atol=1e-6)


def test_integers_cut_towards_zero(tmp_path):
    x, y = np.array([7, -7, 7, -7, 6, 0], np.int32), np.array([2, 2, -2, -2, -3, 5], np.int32)
    file = one(tmp_path, "Div", {"x": x, "y": y})
    np.testing.assert_array_equal(kf.fuse(file)(x, y), [3, -3, -3, 3, -2, 0])


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint32", "uint64"])
def test_dtypes_that_graphs_have_not(tmp_path, dtype):
    x = np.array([[0, 1, 250, 3], [4, 5, 6, 127]]).astype(dtype)
    nodes = [h.make_node("Add", ["x", "x"], ["a"]), h.make_node("Transpose", ["a"], ["y"])]
    kind = h.np_dtype_to_tensor_dtype(np.dtype(dtype))
    file = saved(tmp_path, nodes, [info("x", kind, x.shape)], [info("y", kind, None), info("x", kind, x.shape)])
    y, same = kf.fuse(file)(x)
    assert y.dtype == same.dtype == dtype
    np.testing.assert_array_equal(y, (x + x).T)
    np.testing.assert_array_equal(same, x)


def largest(x: Any, k: int, step: int, pad: int, by_columns: bool) -> Any:
    """MaxPool with its indices, window by window."""
    n, c, h, w = x.shape
    size = [(m + 2 * pad - k) // step + 1 for m in (h, w)]
    values, found = np.empty((n, c, *size), x.dtype), np.empty((n, c, *size), np.int64)
    for at in np.ndindex(n, c, *size):
        places = [
            (at[2] * step - pad + i, at[3] * step - pad + j)
            for i, j in np.ndindex(k, k)
            if 0 <= at[2] * step - pad + i < h and 0 <= at[3] * step - pad + j < w
        ]
        i, j = max(places, key=lambda p: x[at[0], at[1], p[0], p[1]])  # the first of equal ones
        values[at] = x[at[0], at[1], i, j]
        found[at] = (at[0] * c + at[1]) * h * w + (j * h + i if by_columns else i * w + j)
    return values, found


@pytest.mark.parametrize(("k", "step", "pad"), [(1, 1, 0), (2, 2, 0), (3, 1, 1), (3, 2, 1)])
@pytest.mark.parametrize("by_columns", [0, 1])
def test_where_the_largest_stand(tmp_path, rng, k, step, pad, by_columns):
    x = rng.integers(-3, 3, (2, 3, 5, 7)).astype(np.float32)
    x[0, 0, :3, :3] = -np.inf
    options = {"kernel_shape": [k, k], "strides": [step, step], "pads": [pad] * 4, "storage_order": by_columns}
    nodes = [h.make_node("MaxPool", ["x"], ["y", "i"], **options)]
    file = saved(tmp_path, nodes, [info("x", T.FLOAT, x.shape)], [info("y", T.FLOAT, None), info("i", T.INT64, None)])
    for got, wanted in zip(kf.fuse(file)(x), largest(x, k, step, pad, bool(by_columns)), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_masked_rows_are_zero(tmp_path, rng):
    q, k, v = (rng.standard_normal((2, heads, 5, 8), np.float32) for heads in (4, 2, 2))
    mask = rng.random((4, 5, 5)) < 0.6
    mask[:, 2] = False
    nodes = [h.make_node("Attention", ["q", "k", "v", "m"], ["y"])]
    infos = [*(info(n, T.FLOAT, a.shape) for n, a in zip("qkv", (q, k, v), strict=True)), info("m", T.BOOL, mask.shape)]
    file = saved(tmp_path, nodes, infos, [info("y", T.FLOAT, None)], opset=23)
    y = kf.fuse(file)(q, k, v, mask)
    np.testing.assert_allclose(y, expected(file, q, k, v, mask)[0], rtol=1e-4, atol=1e-6)
    assert not y[:, :, 2].any()
    assert [g.kind for g in kf.plan(file, device="H200").groups].count("attention") == 1


# ---- functions and control flow ----


def test_functions_of_the_model(tmp_path, rng):
    body = [h.make_node("Mul", ["a", "a"], ["s"]), h.make_node("LeakyRelu", ["s"], ["r"])]
    leaky = h.make_function("own", "Square", ["a"], ["r"], body, [h.make_opsetid("", 21)], [], [])
    attribute = leaky.node[1].attribute.add()
    attribute.name, attribute.ref_attr_name, attribute.type = "alpha", "alpha", onnx.AttributeProto.FLOAT
    leaky.attribute.append("alpha")
    nodes = [h.make_node("Square", ["x"], ["y"], domain="own", alpha=0.5)]
    file = saved(tmp_path, nodes, [info("x", T.FLOAT, [7])], [info("y", T.FLOAT, None)], functions=[leaky])
    x = rng.standard_normal(7, np.float32)
    np.testing.assert_allclose(kf.fuse(file)(x), x * x, rtol=1e-6)
    again = h.make_function("own", "Square", ["a"], ["r"], [h.make_node("Square", ["a"], ["r"], domain="own")], [])
    file = saved(tmp_path, nodes, [info("x", T.FLOAT, [7])], [info("y", T.FLOAT, None)], functions=[again])
    with pytest.raises(ValueError, match="nested too deeply"):
        kf.plan(file)


def branches(of: str) -> Any:
    made = {}
    for name, op in (("then_branch", "Neg"), ("else_branch", "Exp")):
        node = h.make_node(op, ["x"], [f"{name}_y"])
        made[name] = h.make_graph([node], name, [], [info(f"{name}_y", T.FLOAT, [4])])
    return h.make_node("If", [of], ["y"], **made)


def test_branches(tmp_path, rng):
    x = rng.standard_normal(4, np.float32)
    inputs = [info("x", T.FLOAT, [4]), info("c", T.BOOL, [])]
    file = saved(tmp_path, [branches("c")], inputs, [info("y", T.FLOAT, None)])
    fused = kf.fuse(file)
    for condition in (True, False, True):
        np.testing.assert_allclose(fused(x, np.array(condition)), -x if condition else np.exp(x), rtol=1e-6)
    total = [h.make_node("ReduceSum", ["z"], ["s"], keepdims=0), h.make_node("Greater", ["s", "zero"], ["c"])]
    file = saved(
        tmp_path,
        [*total, branches("c")],
        [info("x", T.FLOAT, [4]), info("z", T.FLOAT, [100])],
        [info("y", T.FLOAT, None)],
        [weight("zero", np.float32(0))],
    )
    fused = kf.fuse(file)
    for z in (np.ones(100, np.float32), -np.ones(100, np.float32)):
        np.testing.assert_allclose(fused(x, z), -x if z[0] > 0 else np.exp(x), rtol=1e-6)


def test_branches_have_weights_of_their_own(tmp_path, rng):
    """They have the names of others, and of one of the model."""
    nodes = []
    for k, output in enumerate("ab"):
        made = {}
        for name, value in (("then_branch", 10.0**k), ("else_branch", -(10.0**k))):
            add = h.make_node("Add", ["x", "k"], [f"{name}_{k}"])
            own = [weight("k", np.float32([value] * 4))]
            made[name] = h.make_graph([add], name, [], [info(f"{name}_{k}", T.FLOAT, [4])], initializer=own)
        nodes.append(h.make_node("If", ["yes"], [output], **made))
    nodes.append(h.make_node("Add", ["x", "k"], ["y"]))
    outputs = [info(n, T.FLOAT, None) for n in "aby"]
    weights = [weight("yes", np.array(True)), weight("k", np.float32([100] * 4))]
    x = rng.standard_normal(4, np.float32)
    fused = kf.fuse(saved(tmp_path, nodes, [info("x", T.FLOAT, [4])], outputs, weights))
    for _ in range(2):
        for got, by in zip(fused(x), (1, 10, 100), strict=True):
            np.testing.assert_allclose(got, x + np.float32(by), rtol=1e-6)


@pytest.mark.parametrize("mode", ["wrap", "reflect", "edge"])
@pytest.mark.parametrize("pads", [[2, 1], [3, 3], [4, 2], [7, 5]])
def test_pads_wider_than_their_axis(tmp_path, mode, pads):
    x = np.arange(3, dtype=np.float32)
    node = h.make_node("Pad", ["x", "pads"], ["y"], mode=mode)
    file = saved(
        tmp_path, [node], [info("x", T.FLOAT, [3])], [info("y", T.FLOAT, None)], [weight("pads", np.int64(pads))]
    )
    np.testing.assert_array_equal(kf.fuse(file)(x), np.pad(x, pads, mode))


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("shape", [(4,), (1, 1, 4), (3, 4), (3, 1), (2, 3, 4), (2, 2, 1), (2, 1, 4), ()])
def test_weights_of_norms_are_broadcast(tmp_path, rng, shape, axis):
    """To the input, whatever axes are normalised: (2, 2, 1) has as many elements as (4,), and is not that."""
    x = rng.standard_normal((2, 2 if shape == (2, 2, 1) else 3, 4), np.float32)
    w, b = rng.standard_normal((2, *shape), np.float32)
    axes = tuple(range(axis % 3, 3))
    for op, opset in (("LayerNormalization", 21), ("RMSNormalization", 23)):
        is_centred = op == "LayerNormalization"
        names = ["x", "w", "b"] if is_centred else ["x", "w"]
        nodes, weights = [h.make_node(op, names, ["y"], axis=axis)], [weight("w", w), weight("b", b)]
        file = saved(
            tmp_path, nodes, [info("x", T.FLOAT, x.shape)], [info("y", T.FLOAT, None)], weights[: len(names) - 1], opset
        )
        centred = np.float64(x) - np.float64(x).mean(axes, keepdims=True) * is_centred
        wanted = centred / np.sqrt((centred**2).mean(axes, keepdims=True) + 1e-5) * w + b * is_centred
        np.testing.assert_allclose(kf.fuse(file)(x), wanted, rtol=1e-4, atol=1e-5)
    statistics = ["y", "mean", "scale"]
    nodes = [h.make_node("LayerNormalization", ["x", "w", "b"], statistics, axis=axis)]
    outputs = [info(name, T.FLOAT, None) for name in statistics]
    mean = np.float64(x).mean(axes, keepdims=True)
    scale = 1 / np.sqrt(np.float64(x).var(axes, keepdims=True) + 1e-5)
    made = kf.fuse(saved(tmp_path, nodes, [info("x", T.FLOAT, x.shape)], outputs, weights))(x)
    for got, wanted in zip(made, ((x - mean) * scale * w + b, mean, scale), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_loops_stack_what_their_steps_give(tmp_path, rng):
    body = h.make_graph(
        [
            h.make_node("Identity", ["c"], ["c2"]),
            h.make_node("Add", ["s", "x"], ["s2"]),
            h.make_node("Identity", ["s2"], ["out"]),
        ],
        "body",
        [info("i", T.INT64, []), info("c", T.BOOL, []), info("s", T.FLOAT, [2, 3])],
        [info("c2", T.BOOL, []), info("s2", T.FLOAT, [2, 3]), info("out", T.FLOAT, [2, 3])],
    )
    weights = [weight("n", np.int64(4)), weight("yes", np.array(True))]
    nodes = [h.make_node("Loop", ["n", "yes", "x"], ["last", "all"], body=body)]
    outputs = [info("last", T.FLOAT, None), info("all", T.FLOAT, None)]
    file = saved(tmp_path, nodes, [info("x", T.FLOAT, [2, 3])], outputs, weights)
    x = rng.standard_normal((2, 3), np.float32)
    last, steps = kf.fuse(file)(x)
    np.testing.assert_allclose(last, 5 * x, rtol=1e-5)
    np.testing.assert_allclose(steps, np.stack([x * n for n in (2, 3, 4, 5)]), rtol=1e-5)


def test_scans_along_other_axes(tmp_path, rng):
    body = h.make_graph(
        [h.make_node("Add", ["s", "e"], ["s2"]), h.make_node("Neg", ["s2"], ["out"])],
        "body",
        [info("s", T.FLOAT, [3]), info("e", T.FLOAT, [3])],
        [info("s2", T.FLOAT, [3]), info("out", T.FLOAT, [3])],
    )
    options = {"scan_input_axes": [1], "scan_input_directions": [1], "scan_output_axes": [1]}
    nodes = [h.make_node("Scan", ["zero", "x"], ["last", "all"], body=body, num_scan_inputs=1, **options)]
    outputs = [info("last", T.FLOAT, None), info("all", T.FLOAT, None)]
    zero = weight("zero", np.zeros(3, np.float32))
    file = saved(tmp_path, nodes, [info("x", T.FLOAT, [3, 20])], outputs, [zero])
    x = rng.standard_normal((3, 20), np.float32)
    last, steps = kf.fuse(file)(x)
    np.testing.assert_allclose(last, x.sum(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(steps, -np.cumsum(x[:, ::-1], 1), rtol=1e-4, atol=1e-5)


# ---- the cases of the onnx package ----


@pytest.mark.slow
@pytest.mark.parametrize("with_torch", [True, False])
def test_every_node_case_runs_or_is_refused(tmp_path, monkeypatch, with_torch):
    if with_torch:
        pytest.importorskip("torch")
    else:
        monkeypatch.setattr(tensors, "torch", lambda: None)
    if tuple(map(int, onnx.__version__.split(".")[:2])) < (1, 23):
        pytest.skip("older cases say other things of norms that are 0")
    outcomes = {case.name: onnx_nodes.outcome(case, tmp_path) for case in onnx_nodes.cases()}
    failed = {name: found for name, found in outcomes.items() if found not in ("run", "refused")}
    assert not failed
    assert sum(found == "run" for found in outcomes.values()) > 0.9 * len(outcomes)


def test_what_is_refused_is_refused_by_name(tmp_path):
    x = np.zeros((3, 40), np.float32)
    for op, outputs in [("NonZero", ["y"]), ("Unique", ["y"]), ("Bernoulli", ["y"]), ("SplitToSequence", ["y"])]:
        with pytest.raises(refusals.Refused, match=f"{op} 'it' is refused: {refusals.OPERATORS[op]}"):
            kf.plan(one(tmp_path, op, {"x": x}, outputs))
    nodes = [h.make_node("Identity", ["x"], ["y"])]
    sequence = h.make_tensor_sequence_value_info("x", T.FLOAT, None)
    for x, message in [(sequence, "it is a sequence"), (info("x", T.STRING, [2]), "it is of strings")]:
        with pytest.raises(ValueError, match=f"the input 'x' is refused: {message}"):
            kf.plan(saved(tmp_path, nodes, [x], [info("y", T.FLOAT, None)]))


# ---- damaged files ----


def test_files_that_are_no_models(tmp_path, rng):
    file = Path(perceptron(tmp_path, rng))
    whole = file.read_bytes()
    for damaged in (b"", b"not a model", whole[: len(whole) // 2], bytes(rng.integers(0, 256, 1000, np.uint8))):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"kfusion.onnx: model.onnx (is no ONNX model, or a damaged one|has no)"):
            kf.plan(str(file), default_size=2)
    with pytest.raises(FileNotFoundError):
        kf.plan(str(tmp_path / "absent.onnx"))


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (h.make_node("Add", ["x", "missing"], ["y"]), "reads 'missing': nothing gives it"),
        (h.make_node("Add", ["x", "y"], ["y"]), "reads 'y': nodes are not in order, or form a circle"),
        (h.make_node("Nonsense", ["x"], ["y"]), "Nonsense .* onnx has no such operator in opset 21"),
        (h.make_node("Relu", ["x"], ["y"], domain="elsewhere"), "elsewhere.Relu .* onnx has no such operator"),
        (h.make_node("Relu", ["x"], ["z"]), "nothing gives the model's output 'y'"),
        (h.make_node("Concat", ["x", "x"], ["y"]), "Concat .* the attribute axis is missing"),
        (h.make_node("Transpose", ["x"], ["y"], perm=[0, 7]), "Transpose"),
        (h.make_node("And", ["x", "x"], ["y"]), "And"),
        (h.make_node("MaxPool", ["x"], ["y"], kernel_shape=[0]), "MaxPool"),
        (h.make_node("Relu", [], ["y"]), "Relu"),
    ],
)
def test_graphs_that_are_wrong(tmp_path, node, message):
    file = saved(tmp_path, [node], [info("x", T.FLOAT, [2, 3])], [info("y", T.FLOAT, None)])
    with pytest.raises((ValueError, TypeError), match=f"kfusion.onnx: .*{message}"):
        kf.plan(file)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    return folder / "damaged.onnx", Path(perceptron(folder, np.random.default_rng(0))).read_bytes()


@settings(max_examples=150, deadline=None)
@given(flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=4))
def test_flipped_bytes(model, flips):
    file, whole = model
    damaged = bytearray(whole)
    header = len(whole) - 32 * 16 * 4  # most bytes are weights, where a flip changes nothing but values
    for place, mask in flips:
        damaged[(place if place % 2 else -place) % (header if place % 3 else len(whole))] ^= mask
    file.write_bytes(bytes(damaged))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            kf.plan(str(file), sizes={"batch": 2}, default_size=2)
            kf.fuse(str(file))(np.ones((2, 16), np.float32))
        except (ValueError, TypeError) as error:
            if not str(error).startswith("kfusion"):
                raise


# ---- around it ----


def test_the_command_line(tmp_path, rng, capsys):
    file = perceptron(tmp_path, rng)
    assert main(["plan", file, "--size", "batch=8", "--device", "H200"]) == 0
    assert "model(x: float32[8,16])" in capsys.readouterr().out
    for arguments, message in [
        ([], "has symbolic sizes"),
        (["--shape", "8x16"], "--size for a model's symbols"),
    ]:
        assert main(["plan", file, *arguments]) == 2
        assert message in capsys.readouterr().err
    assert main(["plan", file, "--default-size", "2"]) == 0


def test_without_the_package(tmp_path):
    code = f"""
import sys
sys.modules["onnx"] = None
import kfusion as kf
try:
    kf.plan({str(tmp_path / "model.onnx")!r})
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'kfusion[onnx]'" in done.stdout
