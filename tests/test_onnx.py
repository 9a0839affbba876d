"""ONNX models: planned without weights, run with the reference's results, refused by name, never crashed on."""

from __future__ import annotations

import itertools
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

from onnx import helper as h  # noqa: E402 - needs onnx

import kfusion as kf  # noqa: E402
import onnx_nodes  # noqa: E402
from kfusion._cli.main import main  # noqa: E402
from kfusion._onnx import refusals as refused  # noqa: E402
from kfusion._onnx import tensors  # noqa: E402
from onnx_models import expected, info, model, nodes  # noqa: E402
from sweeps import refusals, sweep  # noqa: E402
from tools import onnx_operators  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
F = np.float32


def perceptron(path: Path, rng: np.random.Generator, *, external: bool = False) -> str:
    weights = {"w": rng.random((32, 16), F), "b": rng.random(32, F)}
    file = model(path, "a = Gemm<transB=1>(x, w, b) ; c = Relu(a) ; y = Softmax(c)", {"x": ["batch", 16]}, weights)
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
    file = model(tmp_path, "y = Concat<axis=1>(x, z)", {"x": ["batch", "seq", 4], "z": ["batch", None, 4]})
    plan = kf.plan(file, sizes={"batch": 2, "seq": 3}, default_size=5)
    assert plan.graph.shape(plan.graph.to_dict()["outputs"][0]["node"]) == (2, 8, 4)
    assert kf.plan(file, kf.spec((2, 3, 4)), z=kf.spec((2, 1, 4))).groups
    integers = "sizes must be integers by name"
    refusals([
        (lambda: kf.plan(file), ValueError, re.escape('pass sizes={"batch": 8, "seq": 8, "z.1": 8}')),
        (lambda: kf.plan(file, sizes={"bach": 2}, default_size=1), ValueError,
         "no size named 'bach'; its symbols: batch, seq, z"),
        (lambda: kf.plan(file, 1, 2, 3), TypeError, "takes 2 inputs"),
        (lambda: kf.plan(file, q=kf.spec(1)), TypeError, "q is no input of model; it has x, z"),
        (lambda: kf.plan(file, sizes=8), TypeError, integers),
        (lambda: kf.plan(file, sizes={"batch": "8"}), TypeError, integers),
        (lambda: kf.plan(file, sizes=[("batch", 8)]), TypeError, integers),
        (lambda: kf.plan(file, kf.spec((2, 3, 4), "float64"), default_size=1), TypeError,
         "x must be of float32, got a spec of float64"),
    ])  # fmt: skip


def test_sweeps_and_the_command_line(tmp_path, rng, capsys):
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
    assert main(["plan", file, "--size", "batch=8", "--device", "H200"]) == 0
    assert "model(x: float32[8,16])" in capsys.readouterr().out
    for arguments, message in [([], "has symbolic sizes"), (["--shape", "8x16"], "--size for a model's symbols")]:
        assert main(["plan", file, *arguments]) == 2
        assert message in capsys.readouterr().err
    assert main(["plan", file, "--default-size", "2"]) == 0


def test_shapes_and_elements_that_are_known(tmp_path):
    text = "s = Shape(x) ; n = Gather<axis=0>(s, zero) ; u = Unsqueeze(n, zeros)"
    text += " ; shape = Concat<axis=0>(u, rest) ; y = Reshape(x, shape)"
    weights = {"zero": np.int64(0), "zeros": np.int64([0]), "rest": np.int64([-1])}
    file = model(tmp_path, text, {"x": ["n", 3, 4]}, weights)
    x = np.arange(24, dtype=F).reshape(2, 3, 4)
    np.testing.assert_array_equal(kf.fuse(file)(x), x.reshape(2, 12))
    assert not kf.plan(file, sizes={"n": 2}).groups
    # An export of BERT has it: a row of a table by the positions that there are.
    weights = {"table": np.arange(64).reshape(1, 64), "places": np.int64([[3, 0, -1, 5]])}
    x = np.int64([[100, 200, 300, 400]])
    file = model(tmp_path, "a = GatherElements<axis=1>(table, places) ; y = Add(x, a)", {"x": x}, weights)
    assert kf.fuse(file)(x).tolist() == [[103, 200, 363, 405]]
    x = np.arange(12, dtype=F).reshape(2, 6)  # values that decide on shapes are asked for
    reshape = h.make_node("Reshape", ["x", "shape"], ["y"], name="it")
    file = model(tmp_path, [reshape], {"x": x, "shape": np.zeros(2, int)})
    with pytest.raises(ValueError, match=r"Reshape 'it': its result depends on values of inputs: pass shape=numpy"):
        kf.plan(file)
    assert not kf.plan(file, shape=np.array([3, 4])).groups  # a view
    fused = kf.fuse(file)
    for shape in ([3, 4], [4, 3], [-1, 2], [3, 4]):
        np.testing.assert_array_equal(fused(x, np.array(shape)), x.reshape(shape))


# ---- calls ----


def test_a_model_is_a_function_of_arrays(tmp_path, rng):
    file = perceptron(tmp_path, rng, external=True)
    fused = kf.fuse(file)
    assert (fused.input_names, fused.output_names) == (("x",), ("y",))
    for n in (1, 3, 70):
        x = rng.standard_normal((n, 16), F)
        np.testing.assert_allclose(fused(x), expected(file, x)[0], rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(fused(x=x), fused(x))
    assert fused.plan(x).groups[-1].executable
    fused.clear()
    assert "model.onnx(x)" in repr(fused)
    rows = [
        (lambda: fused(x.astype(np.float64)), TypeError, "x must be of float32, got float64"),
        (lambda: fused(x[:, :3]), ValueError, r"x must have shape \(batch, 16\), got \(70, 3\)"),
        (lambda: fused("no"), TypeError, "x must be an array, got str"),
        (lambda: fused(), TypeError, "needs the input x"),
        (lambda: fused(x, x=x), TypeError, "x is given twice"),
        (lambda: kf.kept_for_backward(file, kf.spec((8, 16))), TypeError, "got an ONNX model: it has no gradients"),
    ]
    (tmp_path / "weights.bin").unlink()
    made, calls = onnx.load(perceptron(tmp_path, rng)), (kf.plan, kf.fuse, kf.sweep, kf.trace)
    in_memory = "pass the file's path, got a ModelProto"
    refusals(rows + [(lambda call=call: call(made), TypeError, in_memory) for call in calls])


def test_awkward_numbers(tmp_path):
    x = F([[np.nan, 1, 2], [np.inf, -np.inf, 0], [-np.inf, 3, 4]])
    for op in ("Softmax", "Relu", "ReduceMax", "Clip", "HardSigmoid", "Gelu"):
        file = model(tmp_path, f"y = {op}(x)", {"x": x})
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(kf.fuse(file)(x), expected(file, x)[0], rtol=1e-5, atol=1e-6)
    x, y = np.int32([7, -7, 7, -7, 6, 0]), np.int32([2, 2, -2, -2, -3, 5])  # integers are cut towards zero
    file = model(tmp_path, "z = Div(x, y)", {"x": x, "y": y}, outputs="z")
    np.testing.assert_array_equal(kf.fuse(file)(x, y), [3, -3, -3, 3, -2, 0])
    for dtype in ("uint8", "int8", "int16", "uint32", "uint64"):  # that graphs have not
        x = np.array([[0, 1, 250, 3], [4, 5, 6, 127]]).astype(dtype)
        y, same = kf.fuse(model(tmp_path, "a = Add(x, x) ; y = Transpose(a)", {"x": x}, outputs="y x"))(x)
        assert y.dtype == same.dtype == dtype
        np.testing.assert_array_equal(y, (x + x).T)
        np.testing.assert_array_equal(same, x)


def test_where_the_largest_stand(tmp_path, rng):
    torch = pytest.importorskip("torch")
    x = rng.integers(-3, 3, (2, 3, 5, 7)).astype(F)
    x[0, 0, :3, :3] = -np.inf

    def check(k, step, pad, by_columns, up):
        options = f"kernel_shape=[{k},{k}], strides=[{step},{step}], pads=[{pad},{pad},{pad},{pad}]"
        text = f"y, i = MaxPool<{options}, ceil_mode={int(up)}, storage_order={int(by_columns)}>(x)"
        values, places = kf.fuse(model(tmp_path, text, {"x": x}, outputs="y i"))(x)
        pooled = torch.nn.functional.max_pool2d(torch.from_numpy(x), k, step, pad, ceil_mode=up, return_indices=True)
        wanted, found = (t.numpy() for t in pooled)  # the first of equal ones, within its image
        found = (found % 7 * 5 + found // 7 if by_columns else found) + np.arange(6).reshape(2, 3, 1, 1) * 35
        np.testing.assert_array_equal(values, wanted)
        np.testing.assert_array_equal(places, found)

    windows = ((1, 1, 0, False), (2, 2, 0, True), (3, 1, 1, False), (3, 2, 1, False))
    sweep(check, [(k, step, pad, b, up) for k, step, pad, up in windows for b in (False, True)])
    check(2, 2, 1, False, True)  # no window begins behind the elements


def test_masked_rows_are_zero(tmp_path, rng):
    q, k, v = (rng.standard_normal((2, heads, 5, 8), F) for heads in (4, 2, 2))
    mask = rng.random((4, 5, 5)) < 0.6
    mask[:, 2] = False
    file = model(tmp_path, "y = Attention(q, k, v, m)", {"q": q, "k": k, "v": v, "m": mask}, opset=23)
    y = kf.fuse(file)(q, k, v, mask)
    np.testing.assert_allclose(y, expected(file, q, k, v, mask)[0], rtol=1e-4, atol=1e-6)
    assert not y[:, :, 2].any()
    assert [g.kind for g in kf.plan(file, device="H200").groups].count("attention") == 1


def test_pads_wider_than_their_axis(tmp_path):
    x = np.arange(3, dtype=F)
    for mode, pads in itertools.product(("wrap", "reflect", "edge"), ([2, 1], [3, 3], [4, 2], [7, 5])):
        file = model(tmp_path, f'y = Pad<mode="{mode}">(x, pads)', {"x": x}, {"pads": np.int64(pads)})
        np.testing.assert_array_equal(kf.fuse(file)(x), np.pad(x, pads, mode))


def test_weights_of_norms_are_broadcast(tmp_path, rng):
    """To the input, whatever axes are normalised: (2, 2, 1) has as many elements as (4,), and is not that."""

    def check(axis, shape):
        x = rng.standard_normal((2, 2 if shape == (2, 2, 1) else 3, 4), F)
        w, b = rng.standard_normal((2, *shape), F)
        axes = tuple(range(axis % 3, 3))
        mean = np.float64(x).mean(axes, keepdims=True)
        scale, root = 1 / np.sqrt(np.float64(x).var(axes, keepdims=True) + 1e-5), np.float64(x) ** 2
        text = f"y, mean, scale = LayerNormalization<axis={axis}>(x, w, b)"
        got = kf.fuse(model(tmp_path, text, {"x": x}, {"w": w, "b": b}, "y mean scale"))(x)
        rms = kf.fuse(model(tmp_path, f"y = RMSNormalization<axis={axis}>(x, w)", {"x": x}, {"w": w}, opset=23))(x)
        wanted = (x - mean) * scale * w + b, mean, scale, x / np.sqrt(root.mean(axes, keepdims=True) + 1e-5) * w
        for g, want in zip((*got, rms), wanted, strict=True):
            np.testing.assert_allclose(g, want, rtol=1e-4, atol=1e-5)

    shapes = [(4,), (1, 1, 4), (3, 4), (3, 1), (2, 3, 4), (2, 2, 1), (2, 1, 4), ()]
    sweep(check, itertools.product((-1, 1), shapes))


# ---- functions and control flow ----


def test_functions_of_the_model(tmp_path, rng):
    leaky = onnx.parser.parse_function("""<domain: "own", opset_import: ["": 21]> Square <alpha> (a) => (r)
        { s = Mul(a, a) r = LeakyRelu<alpha: float = @alpha>(s) }""")
    again = h.make_function("own", "Square", ["a"], ["r"], nodes("r = own.Square(a)"), [])
    x = rng.standard_normal(7, F)
    file = model(tmp_path, "y = own.Square<alpha=0.5>(x)", {"x": x}, functions=[leaky])
    np.testing.assert_allclose(kf.fuse(file)(x), x * x, rtol=1e-6)
    with pytest.raises(ValueError, match="nested too deeply"):
        kf.plan(model(tmp_path, "y = own.Square<alpha=0.5>(x)", {"x": x}, functions=[again]))


def branches(condition: str, output: str, then: str, otherwise: str, **weights: Any) -> Any:
    """A node that gives what one of two nodes does; `weights` are those of the branches, each with its own value."""
    made = {}
    for k, (name, text) in enumerate((("then_branch", then), ("else_branch", otherwise))):
        own = [onnx.numpy_helper.from_array(values[k], n) for n, values in weights.items()]
        result = f"{name}_{output}"
        made[name] = h.make_graph(nodes(f"{result} = {text}"), name, [], [info(result, [4])], initializer=own)
    return h.make_node("If", [condition], [output], **made)


def test_branches(tmp_path, rng):
    x, neg_or_exp = rng.standard_normal(4, F), branches("c", "y", "Neg(x)", "Exp(x)")
    fused = kf.fuse(model(tmp_path, [neg_or_exp], {"x": x, "c": np.array(True)}))
    for condition in (True, False, True):
        np.testing.assert_allclose(fused(x, np.array(condition)), -x if condition else np.exp(x), rtol=1e-6)
    z = np.ones(100, F)
    total = nodes("s = ReduceSum<keepdims=0>(z) ; c = Greater(s, zero)")
    fused = kf.fuse(model(tmp_path, [*total, neg_or_exp], {"x": x, "z": z}, {"zero": F(0)}))
    for sign in (1, -1):
        np.testing.assert_allclose(fused(x, sign * z), -x if sign > 0 else np.exp(x), rtol=1e-6)
    # Branches have weights of their own, of the names of others, and of one of the model.
    own = {"a": (F([1] * 4), F([-1] * 4)), "b": (F([10] * 4), F([-10] * 4))}
    made = [branches("yes", output, "Add(x, k)", "Add(x, k)", k=k) for output, k in own.items()]
    weights = {"yes": np.array(True), "k": F([100] * 4)}
    fused = kf.fuse(model(tmp_path, [*made, *nodes("y = Add(x, k)")], {"x": x}, weights, "a b y"))
    for _ in range(2):
        for got, by in zip(fused(x), (1, 10, 100), strict=True):
            np.testing.assert_allclose(got, x + F(by), rtol=1e-6)


def test_loops_and_scans(tmp_path, rng):
    body = onnx.parser.parse_graph("""body (int64 i, bool c, float[2,3] s) => (bool c2, float[2,3] s2, float[2,3] out)
        { c2 = Identity(c) s2 = Add(s, x) out = Identity(s2) }""")
    loop = h.make_node("Loop", ["n", "yes", "x"], ["last", "all"], body=body)
    x = rng.standard_normal((2, 3), F)
    weights = {"n": np.int64(4), "yes": np.array(True)}
    last, steps = kf.fuse(model(tmp_path, [loop], {"x": x}, weights, "last all"))(x)
    np.testing.assert_allclose(last, 5 * x, rtol=1e-5)
    np.testing.assert_allclose(steps, np.stack([x * n for n in (2, 3, 4, 5)]), rtol=1e-5)
    body = onnx.parser.parse_graph("""body (float[3] s, float[3] e) => (float[3] s2, float[3] out)
        { s2 = Add(s, e) out = Neg(s2) }""")
    options = {"scan_input_axes": [1], "scan_input_directions": [1], "scan_output_axes": [1], "num_scan_inputs": 1}
    scan = h.make_node("Scan", ["zero", "x"], ["last", "all"], body=body, **options)
    x = rng.standard_normal((3, 20), F)
    last, steps = kf.fuse(model(tmp_path, [scan], {"x": x}, {"zero": np.zeros(3, F)}, "last all"))(x)
    np.testing.assert_allclose(last, x.sum(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(steps, -np.cumsum(x[:, ::-1], 1), rtol=1e-4, atol=1e-5)


# ---- the cases of the onnx package, and the page of what they give ----


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


def test_the_page():
    """docs/onnx.md is what tools/onnx_operators.py writes; no case is wrong."""
    results = json.loads(onnx_operators.RESULTS.read_text())
    assert not results["failed"]
    assert results["total"]["cases"] == results["total"]["run"] + results["total"]["refused"]
    if results["onnx"] != onnx.__version__:
        pytest.skip("the page is of another version")
    assert onnx_operators.PAGE.read_text() == onnx_operators.text()


# ---- what is refused, and damaged files ----


def test_what_is_refused_is_refused_by_name(tmp_path):
    for op in ("NonZero", "Unique", "Bernoulli", "SplitToSequence"):
        node = h.make_node(op, ["x"], ["y"], name="it")
        with pytest.raises(refused.Refused, match=f"{op} 'it' is refused: {refused.OPERATORS[op]}"):
            kf.plan(model(tmp_path, [node], {"x": [3, 40]}))
    sequence = h.make_tensor_sequence_value_info("x", onnx.TensorProto.FLOAT, None)
    strings = h.make_tensor_value_info("x", onnx.TensorProto.STRING, [2])
    for x, message in [(sequence, "it is a sequence"), (strings, "it is of strings")]:
        with pytest.raises(ValueError, match=f"the input 'x' is refused: {message}"):
            kf.plan(model(tmp_path, "y = Identity(x)", {"x": x}))


def test_files_that_are_no_models(tmp_path, rng):
    file = Path(perceptron(tmp_path, rng))
    whole = file.read_bytes()
    for damaged in (b"", b"not a model", whole[: len(whole) // 2], bytes(rng.integers(0, 256, 1000, np.uint8))):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"kfusion.onnx: model.onnx (is no ONNX model, or a damaged one|has no)"):
            kf.plan(str(file), default_size=2)
    with pytest.raises(FileNotFoundError):
        kf.plan(str(tmp_path / "absent.onnx"))


def test_graphs_that_are_wrong(tmp_path):
    def check(text, message):
        with pytest.raises((ValueError, TypeError), match=f"kfusion.onnx: .*{message}"):
            kf.plan(model(tmp_path, text, {"x": [2, 3]}))

    rows = [
        ("y = Add(x, missing)", "reads 'missing': nothing gives it"),
        ("y = Add(x, y)", "reads 'y': nodes are not in order, or form a circle"),
        ("y = Nonsense(x)", "Nonsense .* onnx has no such operator in opset 21"),
        ("y = elsewhere.Relu(x)", "elsewhere.Relu .* onnx has no such operator"),
        ("z = Relu(x)", "nothing gives the model's output 'y'"),
        ("y = Concat(x, x)", "Concat .* the attribute axis is missing"),
        ("y = Transpose<perm=[0,7]>(x)", "Transpose"),
        ("y = And(x, x)", "And"),
        ("y = MaxPool<kernel_shape=[0]>(x)", "MaxPool"),
        ("y = Relu()", "Relu"),
    ]
    sweep(check, rows)


@pytest.fixture(scope="module")
def whole_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    return folder / "damaged.onnx", Path(perceptron(folder, np.random.default_rng(0))).read_bytes()


@settings(max_examples=150, deadline=None)
@given(flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=4))
def test_flipped_bytes(whole_model, flips):
    file, whole = whole_model
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
