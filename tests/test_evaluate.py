"""Graphs run with other libraries: every op of the table, random graphs, composites, numexpr's text, rows alone."""

import importlib
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings

import kfusion as kf
import reference_ops
from graph_strategies import cases
from kfusion import _core
from kfusion._compare import evaluate, numexpr_text
from kfusion._compare import libraries as _libraries
from kfusion._compare.batch import batch
from kfusion._tracing.trace import Trace, trace
from sweeps import sweep

ROWS = [row for row in _core.op_table() if row["kind"] in ("map", "reduce")]
INTEGERS = ("II_I", "ZZ_Z", "LLL_L")
UNIT = ("arcsin", "arccos", "arctanh")  # of numbers between -1 and 1


def libraries():
    """Those installed, each with how to make its array of NumPy's."""
    made = [(_libraries.Library("numpy", np), np.asarray), (_libraries.Wide(), np.asarray)]
    if importlib.util.find_spec("torch"):
        torch = importlib.import_module("torch")
        made.append((_libraries.Torch("cpu"), lambda a: torch.from_numpy(a.copy())))
    if importlib.util.find_spec("jax"):
        made.append((_libraries.Jax(), importlib.import_module("jax.numpy").asarray))
    return made


LIBRARIES = [pytest.param(*pair, id=pair[0].name) for pair in libraries()]


def operands(row, rng):
    """One array for each argument, within the op's domain."""
    count = row.get("arity", 1)
    if row["signature"] in INTEGERS:
        return [rng.integers(0, 99, (3, 4)) for _ in range(count)]
    low, high = (-0.9, 0.9) if row["name"] in UNIT else (1.1, 3.0)
    return [rng.uniform(low, high, (3, 4)) for _ in range(count)]


def graph_trace(g):
    """A bare graph as a trace of a function that makes no calls."""
    return Trace("f", g, (), None)


@pytest.mark.parametrize(("library", "make"), LIBRARIES)
def test_every_op_of_the_table(library, make, rng):
    def check(name):
        row = rows[name]
        arrays = operands(row, rng)
        g = _core.Graph()
        ids = [g.input(f"x{i}", a.shape, str(a.dtype)) for i, a in enumerate(arrays)]
        is_map = row["kind"] == "map"
        g.set_outputs([("", g.map(name, ids) if is_map else g.reduce(name, ids[0], [0, 1]))])
        (got,) = evaluate.program(graph_trace(g), library)(*map(make, arrays))
        expected = reference_ops.MAPS[name](*arrays) if is_map else reference_ops.REDUCTIONS[name](arrays[0])
        np.testing.assert_allclose(np.asarray(got).astype(float), np.asarray(expected).astype(float), rtol=1e-9)

    rows = {row["name"]: row for row in ROWS}
    has_erf = library.name != "numpy" or importlib.util.find_spec("scipy")
    sweep(check, [(name,) for name in rows if name != "erf" or has_erf])


@pytest.mark.parametrize(("library", "make"), LIBRARIES)
def test_numbers_beside_arrays(library, make, rng):
    x = rng.uniform(0.5, 2, (3, 4))

    def f(x):
        return 1 - x / 2 + kf.maximum(0.7, x) * kf.arctan2(1.0, x) + kf.where(x > 1, 2.0, x), 3.0 ** kf.clip(x, 0.6, 1)

    got = evaluate.program(trace(f, x), library)(make(x))
    first = 1 - x / 2 + np.maximum(0.7, x) * np.arctan2(1.0, x) + np.where(x > 1, 2.0, x)
    for y, expected in zip(got, (first, 3.0 ** np.clip(x, 0.6, 1)), strict=True):
        np.testing.assert_allclose(np.asarray(y), expected, rtol=1e-12)


@pytest.mark.parametrize(("library", "make"), LIBRARIES)
def test_views_positions_and_products(library, make, rng):
    x, w, index = rng.standard_normal((4, 6)), rng.standard_normal((6, 5)), np.array([2, 0, 3])

    def f(x, w, index):
        y = kf.transpose(x @ w)[::-2, 1:] + kf.iota((3, 3), 1, "float64")
        return y.reshape(-1), kf.broadcast_to(x[:, :1], (4, 3)).prod((0, 1)), kf.take(x, index, 0), x[4:]

    got = evaluate.program(trace(f, x, w, index), library)(make(x), make(w), make(index))
    first = (x @ w).T[::-2, 1:] + np.arange(3.0)
    for y, expected in zip(got, (first.ravel(), (x[:, 0] ** 3).prod(), x[index], x[4:]), strict=True):
        np.testing.assert_allclose(np.asarray(y), expected, rtol=1e-9)


@settings(deadline=None)
@given(cases(dtypes=("float64",)))
def test_random_graphs_in_float64(case):
    with np.errstate(all="ignore"):
        wide = [a.astype(np.float64) if a.dtype.kind not in "bi" else a for a in case.inputs]
        results = evaluate.program(graph_trace(case.graph), _libraries.Wide())(*wide)
    case.check(results)


CALLS = {
    "layernorm": lambda x, w, t: kf.layernorm(x, w, w),
    "layernorm of all": lambda x, w, t: kf.layernorm(x, axis=None),
    "layernorm across": lambda x, w, t: kf.layernorm(x, axis=0),
    "relu_layernorm": lambda x, w, t: kf.relu_layernorm(x, w, w),
    "rmsnorm": lambda x, w, t: kf.rmsnorm(x, w),
    "batchnorm": lambda x, w, t: kf.batchnorm(x, w, w * w, w, w),
    "batchnorm in training": lambda x, w, t: kf.batchnorm(x, weight=w, bias=w, axis=-1),
    "attention": lambda x, w, t: kf.attention(x, x, x * w, scale=0.3),
    "attention causal": lambda x, w, t: kf.attention(x, x, x, causal=True),
    "attention masked": lambda x, w, t: kf.attention(x, x, x, mask=x @ x.T > -9),
    "linear": lambda x, w, t: kf.linear(x, x * w, t * 0.5),
    "logsumexp": lambda x, w, t: kf.logsumexp(x, -1, keepdims=True),
    "norm": lambda x, w, t: kf.norm(x, 1, 0),
    "var": lambda x, w, t: kf.var(x, -1, correction=1, keepdims=True),
    "std": lambda x, w, t: kf.std(x),
    "log_softmax": lambda x, w, t: kf.log_softmax(x, 0),
    "gelu": lambda x, w, t: kf.gelu(x, approximate="tanh"),
    "silu": lambda x, w, t: kf.silu(x),
    "softplus": lambda x, w, t: kf.softplus(x, beta=2.0),
    "leaky_relu": lambda x, w, t: kf.leaky_relu(x, 0.2),
    "elu": lambda x, w, t: kf.elu(x, 0.5),
    "mse": lambda x, w, t: kf.mse(x, x * w),
    "cross_entropy": lambda x, w, t: kf.cross_entropy(x, t, ignore_index=1),
}


@pytest.mark.parametrize(("library", "make"), LIBRARIES)
def test_composites(library, make, rng):
    x, w, t = rng.standard_normal((5, 4)), rng.standard_normal(4), np.array([0, 1, 3, 2, 1])

    def check(name):
        traced = trace(CALLS[name], x, w, t)
        expected = _core.run_graph(traced.graph, [x, w, t], name)
        got = evaluate.program(traced, library)(make(x), make(w), make(t))
        np.testing.assert_allclose(np.asarray(got[0]), expected[0], rtol=1e-12, atol=1e-12)

    sweep(check, [(name,) for name in CALLS])


def test_every_native_has_a_test():
    pytest.importorskip("torch")
    assert set(_libraries.Torch("cpu").natives) - {"softmax"} <= set(CALLS)


# How users spell what torch has as one kernel: the name of the call that torch must get, and the function.
SPELLINGS = {
    "F.layer_norm": lambda F, x, a: F.layer_norm(x, (8,), a.w, a.w),
    "F.layer_norm, a list": lambda F, x, a: F.layer_norm(x, [8]),
    "F.layer_norm, two extents": lambda F, x, a: F.layer_norm(x, x.shape[-2:]),
    "nn.LayerNorm": lambda F, x, a: _module(F.torch.nn.LayerNorm(8))(x),
    "nn.LayerNorm, two extents": lambda F, x, a: _module(F.torch.nn.LayerNorm((6, 8)))(x),
    "kf.layernorm": lambda F, x, a: kf.layernorm(x, a.w, a.w),
    "kf.layernorm, (-1,)": lambda F, x, a: kf.layernorm(x, a.w, axis=(-1,)),
    "kf.layernorm, 2": lambda F, x, a: kf.layernorm(x, a.w, axis=2),
    "kf.layernorm, (1, 2)": lambda F, x, a: kf.layernorm(x, axis=(2, 1)),
    "kf.relu_layernorm, 2": lambda F, x, a: kf.relu_layernorm(x, axis=2),
    "F.rms_norm": lambda F, x, a: F.rms_norm(x, (8,), a.w),
    "nn.RMSNorm": lambda F, x, a: _module(F.torch.nn.RMSNorm(8))(x),
    "kf.rmsnorm": lambda F, x, a: kf.rmsnorm(x, a.w),
    "kf.rmsnorm, (-1,)": lambda F, x, a: kf.rmsnorm(x, a.w, axis=(-1,)),
    "F.softmax": lambda F, x, a: F.softmax(x, -1),
    "x.softmax": lambda F, x, a: x.softmax(dim=0),
    "nn.Softmax": lambda F, x, a: F.torch.nn.Softmax(-1)(x),
    "kf.softmax": lambda F, x, a: kf.softmax(x),
    "kf.softmax, (-1,)": lambda F, x, a: kf.softmax(x, (-1,)),
    "F.log_softmax": lambda F, x, a: F.log_softmax(x, 2),
    "kf.log_softmax": lambda F, x, a: kf.log_softmax(x, (1,)),
    "F.scaled_dot_product_attention": lambda F, x, a: F.scaled_dot_product_attention(x, x, x),
    "F.scaled_dot_product_attention, causal": lambda F, x, a: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "F.scaled_dot_product_attention, masked": lambda F, x, a: F.scaled_dot_product_attention(x, x, x, a.mask),
    "F.scaled_dot_product_attention, added": lambda F, x, a: F.scaled_dot_product_attention(x, x, x, a.added),
    "kf.attention": lambda F, x, a: kf.attention(x, x, x),
    "kf.attention, masked": lambda F, x, a: kf.attention(x, x, x, mask=a.mask),
    "F.gelu": lambda F, x, a: F.gelu(x),
    "F.silu": lambda F, x, a: F.silu(x),
    "F.linear": lambda F, x, a: F.linear(x, a.matrix),
    "F.batch_norm": lambda F, x, a: F.batch_norm(x, a.mean, a.var),
    "F.cross_entropy": lambda F, x, a: F.cross_entropy(x, a.targets),
    "torch.logsumexp": lambda F, x, a: F.torch.logsumexp(x, 1),
    "torch.linalg.vector_norm": lambda F, x, a: F.torch.linalg.vector_norm(x, dim=-1),
    "x.std": lambda F, x, a: x.std(-1),
}


def _module(m):
    return m.double().requires_grad_(False)


def test_what_torch_has_as_one_kernel_is_one_call():
    torch = pytest.importorskip("torch")
    x = torch.randn(4, 6, 8, dtype=torch.float64)
    mean, var, added = x[0, :, 0], x[1, :, 1] ** 2, x[0, :, :6]
    arrays = SimpleNamespace(w=x[0, 0], mean=mean, var=var, matrix=x[0], added=added, mask=added > -0.5)
    arrays.targets = torch.arange(32).reshape(4, 8) % 6

    def check(name):
        traced = trace(lambda x: SPELLINGS[name](torch.nn.functional, x, arrays), x)
        inputs = [i.array for i in traced.inputs]
        library, graph = _libraries.Torch("cpu"), traced.graph.to_dict()
        (got,) = evaluate.program(traced, library, alternatives=traced.alternatives)(*inputs)
        [expected] = _core.run_graph(traced.graph, inputs, name)
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
        outputs, nodes = [output["node"] for output in graph["outputs"]], graph["nodes"]
        natives = evaluate._natives(traced, library, nodes)
        natives |= {f.result: evaluate._of_alternative(f) for f in traced.alternatives}
        steps = evaluate._planned(natives, library, nodes, outputs, [None] * len(nodes))
        views = [s for s in steps[:-1] if nodes[s.result]["op"] in ("transpose", "reshape")]
        assert len(steps) - len(views) == 1

    sweep(check, [(name,) for name in SPELLINGS])


def test_values_are_let_go_after_their_last_use():
    made = []

    class Watching(_libraries.Library):
        def map(self, op):
            compute = super().map(op)

            def run(*args):
                y = compute(*args)
                made.append(weakref.ref(y))
                assert sum(ref() is not None for ref in made) <= 2, "a chain needs one value and the next"
                return y

            return run

    run = evaluate.program(trace(lambda x: (((x + 1) * 2).exp() - 3) * 4, np.ones(8)), Watching("numpy", np))
    (y,) = run(np.ones(8))
    assert len(made) == 5
    assert made[-1]() is y


class TestNumexpr:
    def text(self, f, *arrays):
        graph = trace(f, *arrays).graph.to_dict()
        return numexpr_text.expression(graph["nodes"], [o["node"] for o in graph["outputs"]])

    def test_the_text_and_its_numbers_keep_float32(self):
        names, numbers, text = self.text(lambda a, b: kf.relu(2 * a + b) ** 2, *[np.ones(3, np.float32)] * 2)
        assert len(names) == 2
        assert {v.dtype for v in numbers.values()} == {np.dtype(np.float32)}
        assert "where" in text

    def test_what_it_has_is_right(self, rng):
        pytest.importorskip("numexpr")

        def check(name, row):
            arrays = operands(row, rng)
            try:
                run = numexpr_text.program(trace(getattr(kf, name), *arrays))
            except TypeError:  # it has no such function
                return
            np.testing.assert_allclose(run(*arrays)[0], reference_ops.MAPS[name](*arrays), rtol=1e-13)

        sweep(check, [(row["name"], row) for row in ROWS if row["kind"] == "map"])

    def test_what_it_has_not(self):
        """Reductions, two results, erf, views, floor; values that are read again and again."""

        def again(x):
            for _ in range(60):
                x = x * x
            return x

        for f in (kf.softmax, lambda x: (x, x + 1), kf.erf, lambda x: x.T, lambda x: x // 2):
            with pytest.raises(TypeError, match="numexpr"):
                self.text(f, np.ones((2, 3)))
        with pytest.raises(TypeError, match="too long"):
            self.text(again, np.ones(3))


class TestRowsAlone:
    def batch_of(self, f, *arrays):
        graph = trace(f, *arrays).graph.to_dict()
        return graph, batch(graph["nodes"], [o["node"] for o in graph["outputs"]])

    def test_some_rows_of_the_inputs_give_those_of_the_result(self, rng):
        x, w, picked = rng.standard_normal((40, 6)), rng.standard_normal(6), np.array([0, 7, 39])

        def check(f):
            graph, rows = self.batch_of(f, x, w)
            assert rows.extent == 40
            traced = trace(f, x, w)
            everything = evaluate.program(traced, _libraries.Wide())(x, w)
            some = evaluate.program(traced, _libraries.Wide(), rows.shrunk(graph["nodes"], 3))(x[picked], w)
            for whole, part in zip(everything, some, strict=True):
                np.testing.assert_allclose(part, whole[picked], rtol=1e-12)

        check(lambda x, w: kf.layernorm(x, w) * 2)
        check(lambda x, w: (kf.softmax(x), x + w))
        check(lambda x, w: x.reshape(40, 2, 3)[:, ::-1] + 1)
        check(lambda x, w: x[:, 1:].sum(-1))
        check(lambda x, w: kf.transpose(x.reshape(40, 2, 3), (0, 2, 1)) @ kf.iota((2, 2), 0, "float64"))
        check(lambda x, w: kf.broadcast_to(x[:, :1], (40, 4)) + kf.iota((4,), 0, "float64"))

    def test_where_rows_are_mixed_there_is_no_batch(self):
        for f in (
            lambda x, w: x.sum(),
            lambda x, w: x / x.sum(),
            lambda x, w: kf.softmax(x, 0),
            lambda x, w: x[::-1],
            lambda x, w: x.T,
            lambda x, w: x @ x,
            lambda x, w: x + kf.iota((6, 6), 0, "float64"),
            lambda x, w: x.sum(-1) + x,
            lambda x, w: (x, w),
            lambda x, w: kf.broadcast_to(w, (6, 6)),
            lambda x, w: x[kf.astype(w, "int64")],
        ):
            assert self.batch_of(f, np.ones((6, 6)), np.ones(6))[1] is None
