"""The reference interpreter: sources, views, stages, kinds of array, refusals, memory, random graphs."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings

import graph_strategies
import kfusion as kf
from graph_runs import draw, run, run_map, wide
from kfusion import _core
from kinds import ALL_DTYPES, SANITIZED, np_dtype

pytestmark = pytest.mark.native


class TestSources:
    def test_outputs_that_are_inputs_are_copies(self):
        x = np.arange(6.0).reshape(2, 3)
        a, b = run(lambda g, i: [i, g.transpose(i, [1, 0])], x)
        np.testing.assert_array_equal(a, x)
        np.testing.assert_array_equal(b, x.T)
        assert not np.shares_memory(a, x)
        assert not np.shares_memory(b, x)


class TestStages:
    """Half types are rounded where a stage ends, not within one."""

    @staticmethod
    def build(split, view=False):
        def add(g, x):
            if not split:
                g.begin_stage("all")
            y = g.map("multiply", [x, x])
            if view:
                y = g.transpose(y, [0])
            y = g.map("divide", [y, x])
            if not split:
                g.end_stage()
            return y

        return add

    def test_float16_overflows_between_stages_only(self):
        x = np.array([300], np.float16)
        assert run(self.build(split=True), x)[0] == np.inf
        assert run(self.build(split=False), x)[0] == 300
        assert run(self.build(split=True, view=True), x)[0] == np.inf
        assert run(self.build(split=False, view=True), x)[0] == 300

    def test_one_value_read_from_inside_and_outside(self):
        x = np.array([300], np.float16)

        def build(g, i):
            g.begin_stage("first")
            square = g.map("multiply", [i, i])
            inside = g.map("divide", [square, i])
            g.end_stage()
            return [inside, g.map("divide", [square, i]), square, g.map("divide", [g.cast(square, "float32"), i])]

        inside, outside, square, widened = run(build, x)
        assert (inside, outside, square, widened) == (300, np.inf, np.inf, np.inf)

    def test_a_cast_rounds_even_within_a_stage(self):
        def build(g, i):
            g.begin_stage("all")
            y = g.cast(g.cast(i, "float16"), "float32")
            g.end_stage()
            return y

        assert run(build, np.array([1e5, 1.0001], np.float32))[0].tolist() == [np.inf, 1]


class TestKinds:
    @pytest.mark.parametrize("dtype", ALL_DTYPES)
    def test_results_are_of_the_first_inputs_kind(self, kind, dtype, rng):
        if dtype == "bfloat16" and dtype not in kind.dtypes:
            pytest.skip(f"{kind.name} has no {dtype}")
        x = draw(rng, dtype, (3, 5))
        a = kind.make(x)
        g = _core.Graph()
        i = g.input("x", (3, 5), dtype)
        outputs = [i, g.transpose(i, [1, 0]), g.cast(i, "bool"), g.reduce("sum", i, None), g.cast(i, "float32")]
        outputs += [g.cast(i, "int32"), g.cast(i, "int64"), g.reduce("any", i, [0])]
        g.set_outputs([(str(k), o) for k, o in enumerate(outputs)])
        if kind.cuda:
            with pytest.raises(kf.DeviceError, match=r"kfusion\.f: .*on the CPU, and x is on cuda:0: copy it"):
                _core.run_graph(g, [a], "f")
            return
        results = _core.run_graph(g, [a], "f")
        sample = kf.fused_relu_layernorm(kind.make(np.ones((1, 1), np.float32)))  # what the kind's results are
        total = wide(x).sum()
        wants = [x, x.T, x.astype(bool), total, x.astype("f4"), x.astype("i4"), x.astype("i8"), x.any(0)]
        for got, want in zip(results, wants, strict=True):
            assert isinstance(got, type(sample)) or np.ndim(want) == 0
            np.testing.assert_allclose(kind.back(got), np.asarray(want, float), rtol=0.02, atol=0.3)

    def test_numpy_results_without_axes_are_scalars(self):
        results = run(
            lambda g, i: [g.reduce("sum", i, None), g.cast(g.reduce("max", i, None), "bfloat16")], np.arange(3.0)
        )
        assert type(results[0]) is np.float64
        assert type(results[1]) is np_dtype("bfloat16").type
        assert run_map("negative", results[0]) == -3  # and are taken again
        assert run_map("negative", results[1]) == -2
        assert type(run(lambda g: g.scalar(2.5))[0]) is np.float64

    def test_torch_results_without_axes_are_tensors(self):
        torch = pytest.importorskip("torch")
        g = _core.Graph()
        g.set_outputs([("", g.reduce("sum", g.input("x", (3,), "float32", "torch"), None))])
        (y,) = _core.run_graph(g, [torch.ones(3)], "f")
        assert torch.equal(y, torch.tensor(3.0))

    def test_numpy_and_torch_may_mix(self):
        torch = pytest.importorskip("torch")
        x, y = np.ones(3, np.float32), torch.ones(3)
        assert type(run(lambda g, i, j: g.map("add", [i, j]), x, x)[0]) is np.ndarray
        g = _core.Graph()
        ids = [g.input(n, (3,), "float32") for n in "ab"]
        g.set_outputs([("", g.map("add", ids))])
        assert type(_core.run_graph(g, [y, x], "f")[0]) is torch.Tensor
        assert type(_core.run_graph(g, [x, y], "f")[0]) is np.ndarray

    def test_jax_without_64_bits(self):
        pytest.importorskip("jax")
        code = """
import os
os.environ |= {"JAX_ENABLE_X64": "0", "JAX_PLATFORMS": "cpu"}
import jax, numpy as np
from kfusion import _core
g = _core.Graph()
x = g.input("x", (3,), "bool")
g.set_outputs([("", g.reduce("sum", x, None))])
(y,) = _core.run_graph(g, [jax.numpy.ones(3, bool)], "f")
assert int(y) == 3, y
"""
        subprocess.run([sys.executable, "-c", code], check=True)


class TestRefusals:
    def test_messages(self):
        g = _core.Graph()
        g.set_outputs([("", g.map("relu", [g.input("x", (3,), "float32")]))])
        good = np.ones(3, np.float32)
        cases = [
            (ValueError, r"the graph has 1 inputs, got 0", []),
            (ValueError, r"the graph has 1 inputs, got 2", [good, good]),
            (TypeError, r"x must be float32, got float64", [np.ones(3)]),
            (TypeError, r"x must be float32, got bool", [np.ones(3, bool)]),
            (ValueError, r"x must have shape \(3,\), got \(4,\)", [np.ones(4, np.float32)]),
            (ValueError, r"x must have shape \(3,\), got \(\)", [np.float32(1)]),
            (TypeError, r"x must be a NumPy array .* got list", [[1, 2, 3]]),
            (TypeError, r"x must be .*bool, int32 or int64, got complex128", [np.ones(3, complex)]),
            (TypeError, r"x must be .*, got uint8", [np.ones(3, np.uint8)]),
            (TypeError, r"x must be .*, got >f4", [good.astype(">f4")]),
        ]
        for error, message, inputs in cases:
            with pytest.raises(error, match=r"kfusion\.relu: " + message):
                _core.run_graph(g, inputs, "relu")

    def test_torch_gradients(self):
        torch = pytest.importorskip("torch")
        g = _core.Graph()
        g.set_outputs([("", g.map("relu", [g.input("x", (3,), "float32")]))])
        with pytest.raises(RuntimeError, match=r"kfusion\.relu: x requires grad"):
            _core.run_graph(g, [torch.ones(3, requires_grad=True)], "relu")

    def test_no_memory(self):
        x = np.broadcast_to(np.float32(1), (2**40, 2**10))
        with pytest.raises(MemoryError):
            run_map("exp", x)
        if not SANITIZED:  # whose allocator ends the process instead
            with pytest.raises(MemoryError):
                run(lambda g, i: g.reduce("sum", g.map("exp", [i]), None), x)
        assert run(lambda g, i: g.reduce("sum", g.slice(i, [(0, 2, 1), (0, 3, 1)]), None), x)[0] == 6


class TestRunning:
    @pytest.mark.skipif(SANITIZED or not sys.platform.startswith("linux"), reason="needs /proc and plain memory")
    def test_values_are_freed_after_their_last_use(self):
        """A chain of 100 steps over 2 MB, within 32 MB."""
        code = """
import resource
import numpy as np
from kfusion import _core
g = _core.Graph()
y = g.input("x", (2**18,), "float64")
for k in range(100):
    y = g.map("add", [y, g.map("negative", [y])]) if k % 2 else g.map("exp", [y])
g.set_outputs([("", y)])
x = np.zeros(2**18)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**25, -1))
(y,) = _core.run_graph(g, [x], "f")
assert (y == 0).all()
"""
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_ten_thousand_nodes(self):
        def build(g, x):
            for _ in range(5000):
                x = g.map("negative", [g.map("positive", [x])])
            return x

        assert run(build, np.ones(3))[0].tolist() == [1, 1, 1]


class TestRandomGraphs:
    @settings(max_examples=150, deadline=None)
    @given(graph_strategies.cases())
    def test_against_numpy(self, case):
        case.check(_core.run_graph(case.graph, case.inputs, "f"))

    @settings(max_examples=50, deadline=None)
    @given(graph_strategies.cases(contractions=True, gathers=True))
    def test_simplified_and_read_back(self, case):
        case.check(_core.run_graph(case.graph.simplify(), case.inputs, "f"))
        case.check(_core.run_graph(_core.Graph.from_dict(case.graph.to_dict()), case.inputs, "f"))
