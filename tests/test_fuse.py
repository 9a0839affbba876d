"""`kf.fuse`: what a call computes, what it keeps, what it says no to."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import pickle
import pydoc
import threading
import types
import weakref
from collections import namedtuple
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from kfusion import _core


@kf.fuse
def chain(x, b, scale=2.0):
    """A chain of elementwise calls."""
    return kf.log(kf.relu(x + b) * scale + 1)


def chain_by_numpy(x, b, scale=2.0):
    return np.log(np.maximum(x + b, 0) * scale + 1)


def add(x, b):
    return x + b


class Layer:
    def __init__(self, weight: np.ndarray) -> None:
        self.weight = weight

    @kf.fuse
    def forward(self, x):
        """Scaled and cut."""
        return kf.relu(x * self.weight)


def counting(body: Any) -> Any:
    """The body, fused, with the number of its traces in `.count`."""
    count: list[int] = []

    def function(*args, **kwargs):
        count.append(1)
        return body(*args, **kwargs)

    fused = kf.fuse(function)
    fused.count = count
    return fused


def test_it_computes_what_the_function_says(rng):
    x, b = rng.standard_normal((5, 7)), rng.standard_normal(7)
    np.testing.assert_allclose(chain(x, b), chain_by_numpy(x, b), rtol=1e-14)
    np.testing.assert_allclose(chain(x, b=b, scale=3.0), chain_by_numpy(x, b, 3.0), rtol=1e-14)
    np.testing.assert_array_equal(chain.unfused(x, b), chain(x, b))


def test_it_looks_like_the_function():
    assert chain.__name__ == "chain"
    assert chain.__doc__ == "A chain of elementwise calls."
    assert chain.__module__ == __name__
    assert str(inspect.signature(chain)) == "(x, b, scale=2.0)"
    assert repr(chain) == "<kfusion.fuse: chain(x, b, scale=2.0)>"
    assert repr(chain.unfused) == "<kfusion.fuse: chain.unfused(x, b, scale=2.0)>"


def test_it_pickles_by_name():
    for f in (chain, chain.unfused, Layer.forward):
        assert pickle.loads(pickle.dumps(f)) is f


class Doubled:
    """Twice its argument."""

    def __call__(self, x):
        return x * 2


@pytest.mark.parametrize(("function", "name"), [(functools.partial(add, b=2.0), "add"), (Doubled(), "Doubled")])
def test_objects_without_a_name(function, name, rng):
    f, x = kf.fuse(function), rng.standard_normal((4, 4))
    assert repr(f).startswith(f"<kfusion.fuse: {name}(x")
    assert repr(f.unfused).startswith(f"<kfusion.fuse: {name}.unfused(x")
    assert len(f.plan(x).groups) == 1
    assert "extern" in f.source(x)
    assert name in pydoc.plain(pydoc.render_doc(f))
    for again in (pickle.loads(pickle.dumps(f)), pickle.loads(pickle.dumps(f.unfused))):
        np.testing.assert_array_equal(again(x), function(x))
    kf.compare(f, x, peers=[], repeats=2, cache="hot")


def test_clear_makes_the_next_call_trace_again():
    module = types.SimpleNamespace(factor=2)
    f, x = counting(lambda x: x * module.factor), np.ones(3)
    f(x)
    f.unfused(x)
    module.factor = 3
    np.testing.assert_array_equal(f(x), x * 2)
    f.clear()
    np.testing.assert_array_equal(f(x), x * 3)
    np.testing.assert_array_equal(f.unfused(x), x * 3)
    assert len(f.count) == 4


def test_bound_methods_look_like_python_s():
    layer = Layer(np.ones(3))
    assert layer.forward == layer.forward != Layer(np.ones(3)).forward
    assert len({layer.forward, layer.forward}) == 1
    assert str(inspect.signature(layer.forward)) == "(x)"
    assert layer.forward.__doc__ == "Scaled and cut."
    for again in (
        copy.copy(layer.forward),
        copy.deepcopy(layer.forward),
        pickle.loads(pickle.dumps(layer.forward)),
        pickle.loads(pickle.dumps(layer.forward.unfused)),
    ):
        np.testing.assert_array_equal(again(np.full(3, 2.0)), np.full(3, 2.0))


def test_methods(rng):
    x = rng.standard_normal(6)
    one, two = Layer(np.full(6, 2.0)), Layer(np.full(6, 3.0))
    np.testing.assert_array_equal(one.forward(x), np.maximum(x * 2, 0))
    np.testing.assert_array_equal(two.forward(x), np.maximum(x * 3, 0))
    assert len(Layer.forward.plan(one, x).groups) == len(one.forward.plan(x).groups) == 1
    assert len(one.forward.unfused.plan(x).groups) == 2
    np.testing.assert_array_equal(two.forward.unfused(x), two.forward(x))
    assert one.forward.__name__ == "forward"


def test_a_name_that_fuse_adds_is_refused():
    with pytest.raises(kf.TraceError, match="parameter named out"):
        kf.fuse(lambda x, out: x)
    with pytest.raises(kf.TraceError, match="parameter named stream"):
        kf.fuse(lambda stream: stream)


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="function must be callable, got int"):
        kf.fuse(3)
    with pytest.raises(TypeError, match=r"kfusion\.fuse: allow must be pairs of names"):
        kf.fuse(allow=["relu"])


def test_the_plan_is_what_runs(rng):
    x, b = rng.standard_normal((4, 8)).astype(np.float32), np.ones(8, np.float32)
    plan, unfused = chain.plan(x, b), chain.unfused.plan(x, b)
    assert all(g.executable for g in (*plan.groups, *unfused.groups))
    assert len(plan.groups) == 1
    assert len(unfused.groups) == 5
    assert chain.plan(kf.spec((4, 8)), kf.spec(8), device="A100").device.name.startswith("A100")


def test_options_of_the_plan(rng):
    @kf.fuse(forbid=[("exp", "relu")])
    def f(x):
        return kf.relu(kf.exp(x) + 1)

    x = rng.standard_normal(5)
    assert len(kf.fuse(f.__wrapped__).plan(x).groups) == 1
    np.testing.assert_allclose(f(x), np.maximum(np.exp(x) + 1, 0), rtol=1e-15)
    with pytest.raises(ValueError, match="no call or op 'tanh'"):
        kf.fuse(f.__wrapped__, forbid=[("exp", "tanh")])(x)


def test_the_source_of_its_kernels(rng):
    x, b = kf.spec((64, 100)), kf.spec(100)
    text = chain.source(x, b)
    assert text == chain.source(np.ones((64, 100), np.float32), np.ones(100, np.float32), scale=3.0)
    assert text.count('extern "C"') == 1
    assert chain.unfused.source(x, b).count('extern "C"') == 5
    assert "array library" in kf.fuse(lambda x, b: x @ b + 1).source(x, b)


# ---- the form of arguments and results ----

Pair = namedtuple("Pair", "low high")


@pytest.mark.parametrize(
    "body",
    [
        lambda x: (x + 1, x * 2),
        lambda x: [x + 1],
        lambda x: {"a": x + 1, "b": (x * 2, 3, None)},
        lambda x: Pair(x - 1, x + 1),
        lambda x: (),
        lambda x: (x + 1, "text"),
    ],
)
def test_results_have_the_function_s_form(body, rng):
    x = rng.standard_normal(4)
    expected = body(x)
    if expected == ():
        with pytest.raises(kf.TraceError, match="returns nothing made of its arrays"):
            kf.fuse(body)(x)
        return
    f = kf.fuse(body)
    for got in (f(x), f(x)):
        assert type(got) is type(expected)
        np.testing.assert_equal(got, expected)


def test_one_value_twice_is_two_arrays(rng):
    @kf.fuse
    def f(x):
        y = x + 1
        return y, y

    a, b = f(rng.standard_normal(3))
    np.testing.assert_array_equal(a, b)
    assert not np.shares_memory(a, b)


def test_results_are_arrays_of_their_own(rng):
    x = rng.standard_normal((3, 4))
    for body in (lambda x: x, lambda x: x.T, lambda x: x[1], lambda x: np.broadcast_to(x[0], (5, 4))):
        y = kf.fuse(body)(x)
        np.testing.assert_array_equal(y, body(x))
        assert not np.shares_memory(x, y)
        assert y.flags.writeable


def test_arguments_in_structures(rng):
    x, y = rng.standard_normal((2, 4))

    @kf.fuse
    def f(parameters, *rest, **named):
        return parameters["w"] * parameters["x"][0] + rest[0] + named["bias"]

    np.testing.assert_array_equal(f({"w": x, "x": (y, 3)}, x, bias=y), x * y + x + y)


def test_endless_structures_are_refused():
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="chain: x must not be nested more than 32 deep"):
        chain(endless, 1.0)


def test_scalars_are_numbers_of_numpy():
    x = np.arange(6, dtype=np.float32)
    total = kf.fuse(lambda x: x.sum())(x)
    assert type(total) is np.float32
    assert total == 15
    assert type(kf.fuse(lambda x: x + 1)(np.array(2.0))) is np.float64


EMPTY: list[tuple[Any, tuple[int, ...]]] = [
    (lambda x: x + 1, (0, 3)),
    (lambda x: x.T * 2, (3, 0)),
    (lambda x: x.sum(0), (0, 3)),
    (lambda x: x.sum(0), (3, 0)),
    (lambda x: x.sum(), (0,)),
    (lambda x: (x + 1, x.sum(1)), (3, 0)),
    (lambda x: kf.softmax(x), (0, 3)),
    (lambda x: x @ x.T, (3, 0)),
    (lambda x: (x, x + 1, x.T), (0, 3)),
]


@pytest.mark.parametrize(("body", "shape"), EMPTY)
def test_empty_arrays(body, shape):
    x = np.ones(shape)
    expected = x if "softmax" in body.__code__.co_names else body(x)
    for f in (kf.fuse(body), kf.fuse(body).unfused):
        np.testing.assert_equal(f(x), expected)


# ---- what is kept ----


def test_a_signature_is_traced_once(rng):
    f = counting(lambda x, n=2: x * n)
    for _ in range(3):
        f(rng.standard_normal(4))
    assert len(f.count) == 1
    f(rng.standard_normal(5))  # shape
    f(rng.standard_normal(4).astype(np.float32))  # dtype
    f(rng.standard_normal(8)[::2])  # strides
    f(rng.standard_normal(4), n=3)  # a value
    f(rng.standard_normal(4), n=True)  # equal to 1, but no integer
    assert len(f.count) == 6
    f(rng.standard_normal(4), n=3)
    assert len(f.count) == 6


def test_floats_are_read_when_the_kernels_run(rng):
    f = counting(lambda x, a, b=0.5: x * a + b)
    x = rng.standard_normal(5)
    with np.errstate(invalid="ignore"):
        for a in (0.1, 0.2, float("nan"), float("inf"), -0.0):
            np.testing.assert_array_equal(f(x, a), x * a + 0.5)
            np.testing.assert_array_equal(f(x, a, 2 * a), x * a + 2 * a)
    assert len(f.count) == 2


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_are_rounded_to_what_they_meet(dtype, rng):
    f = counting(lambda x, a: x + a)
    x = rng.standard_normal(5).astype(dtype)
    for a in (0.1, 1 / 3, 1e-9):
        np.testing.assert_array_equal(f(x, a), x + np.dtype(dtype).type(a))
    assert len(f.count) == 1


def test_numpy_s_floats_keep_their_dtype(rng):
    f = counting(lambda x, a: x + a)
    x = rng.standard_normal(5).astype(np.float32)
    for a in (0.1, 0.7):
        assert f(x, a).dtype == np.float32
        assert f(x, np.float64(a)).dtype == np.float64
        np.testing.assert_array_equal(f(x, np.float64(a)), x + np.float64(a))
        np.testing.assert_array_equal(f(x, np.float32(a)), x + np.float32(a))
    assert len(f.count) == 3


LOOKS = {
    "compares": lambda x, a: x * 2 if a > 0 else x,
    "computes": lambda x, a: x * (1 - a),
    "converts": lambda x, a: x * float(a),
    "formats": lambda x, a: {f"{a:.1f}": x + 1}[f"{a:.1f}"],
    "calls": lambda x, a: x * np.sqrt(abs(a)),
    "powers": lambda x, a: x**a,
    "isinstance": lambda x, a: x * (2 if isinstance(a, float) else 3),
    "array": lambda x, a: x * np.full(5, a),
    "returns": lambda x, a: (x + 1, a),
    "hashes": lambda x, a: x * {0.5: 1, 2.0: 7, -1.0: 5}[a],
    "list": lambda x, a: x * sorted([a, 0.7])[0],
}


@pytest.mark.parametrize("body", LOOKS.values(), ids=LOOKS.keys())
def test_floats_that_the_function_looks_at(body, rng):
    f = counting(body)
    x = rng.uniform(1, 2, 5)
    for a in (0.5, 2.0, -1.0, 0.5, 2.0):
        np.testing.assert_equal(f(x, a), body(x, a))
    assert len(f.count) <= 2 * 3  # a trace may fail on what stands for a float first


def test_a_branch_may_look_at_more(rng):
    def body(x, a, b):
        return x * (1 + b) if a > 0 else x * b

    f, x = counting(body), rng.standard_normal(5)
    for a in (-1.0, 1.0, -2.0, 2.0):
        for b in (0.1, 0.2):
            np.testing.assert_array_equal(f(x, a, b), body(x, a, b))
    before = len(f.count)
    for a in (-1.0, 1.0):
        for b in (0.1, 0.2):
            np.testing.assert_array_equal(f(x, a, b), body(x, a, b))
    assert len(f.count) == before


def test_many_floats(rng):
    x = rng.standard_normal(3)
    f = counting(lambda x, values: x + sum((x * v for v in values), 0.0))
    for last in (1.0, 2.0):
        values = [*np.arange(70.0).tolist(), last]
        np.testing.assert_allclose(f(x, values), x + x * sum(values))


def test_a_function_forgets_what_it_has_not_used():
    f = counting(lambda x, n: x + n)
    x = np.ones(2)
    for n in range(1100):
        assert f(x, n)[0] == 1 + n
    assert f._cached() <= 512
    traced = len(f.count)
    f(x, 1099)
    assert len(f.count) == traced


def test_functions_are_collected_with_their_globals():
    scope: dict[str, Any] = {"kf": kf}
    exec("W = __import__('numpy').ones(3)\n@kf.fuse\ndef f(x):\n    return x * W", scope)
    f = scope["f"]
    f(np.ones(3))
    gone = weakref.ref(f)
    del scope, f
    gc.collect()
    assert gone() is None


def test_equal_functions_share_executables(rng):
    x = rng.standard_normal((64, 64))
    for _ in range(3):  # a notebook's cell, run again

        @kf.fuse
        def cell(x):
            return kf.softmax(x * 3) + 1

        np.testing.assert_allclose(cell(x), kf.softmax(x * 3) + 1, rtol=1e-14)


def test_eager_functions_are_traced_once(rng):
    x = rng.standard_normal((3, 4))
    for _ in range(2):
        np.testing.assert_array_equal(kf.relu(x), np.maximum(x, 0))
        np.testing.assert_allclose(kf.softmax(x, axis=0).sum(0), np.ones(4))
        np.testing.assert_array_equal(kf.add(x, 0.25), x + 0.25)
        np.testing.assert_array_equal(kf.add(0.5, x), x + 0.5)


def test_eight_threads(rng):
    xs = [rng.standard_normal((50, n)) for n in range(40, 48)]

    @kf.fuse
    def f(x, scale):
        return kf.softmax(x * scale), x.sum(0)

    expected = [(kf.softmax(x * 0.5), x.sum(0)) for x in xs]
    failures: list[BaseException] = []
    start = threading.Barrier(8)

    def work(first: int) -> None:
        try:
            start.wait()
            for k in range(100):
                i = (first + k) % 8
                for got, want in zip(f(xs[i], 0.5), expected[i], strict=True):
                    np.testing.assert_allclose(got, want, rtol=1e-12)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


# ---- one function within another ----


def test_nested_functions_trace_through(rng):
    @kf.fuse
    def f(x, b):
        return chain(x, b, 0.5) + chain.unfused(x, b)

    x, b = rng.standard_normal((5, 7)), rng.standard_normal(7)
    np.testing.assert_allclose(f(x, b), chain_by_numpy(x, b, 0.5) + chain_by_numpy(x, b), rtol=1e-14)
    assert len(f.plan(x, b).groups) == 1


def test_plan_of_a_fused_function_is_that_of_the_function():
    specs = kf.spec((4, 5)), kf.spec(5)
    assert kf.plan(chain, *specs, device="H200").graph == kf.plan(chain.__wrapped__, *specs, device="H200").graph


# ---- errors ----


def test_errors_name_the_function():
    x = np.ones(3)
    with pytest.raises(TypeError, match=r"kfusion\.chain: x must be float16.*got complex128"):
        chain(np.ones(3, complex), x)
    with pytest.raises(ValueError, match=r"could not be broadcast together with shapes \(3,\) \(4,\)"):
        chain(x, np.ones(4))
    with pytest.raises(TypeError, match=r"chain: missing a required argument: 'b'"):
        chain(x)
    with pytest.raises(TypeError, match=r"kfusion\.chain: a spec is for planning"):
        chain(kf.spec(3), x)
    with pytest.raises(ValueError, match=r"kfusion\.chain: stream applies to CUDA arrays"):
        chain(x, x, stream=0)


def test_a_failed_trace_keeps_nothing():
    f = counting(lambda x: x if x.sum() > 0 else -x)
    for _ in range(2):
        with pytest.raises(kf.TraceError, match="branching on a traced value"):
            f(np.ones(3))
    assert f._cached() == 0


@pytest.mark.parametrize("wrong", [[1, 2, 3], 1.0, 3, "text"])
def test_arguments_that_are_no_arrays(wrong):
    text = rf"kfusion\.f: x must be an array, got {type(wrong).__name__}; convert it with numpy\.asarray\(x\)"

    @kf.fuse
    def f(layer, x):
        return x

    with pytest.raises(TypeError, match=text):
        f(Layer(np.ones(3)), wrong)


@pytest.mark.parametrize("library", ["random", "numpy.random", "torch"])
def test_random_numbers_are_refused(library):
    module = pytest.importorskip(library)
    draw = module.random if library == "random" else lambda: float(np.asarray(module.rand(1)).item())

    @kf.fuse
    def f(x):
        return x * draw()

    with pytest.raises(
        kf.TraceError, match=rf"f draws from {library}, .*: random numbers would be drawn once.*\n  draw them"
    ):
        f(np.ones(3))


def test_a_generator_is_not_seen():
    generator = np.random.default_rng(0)
    assert kf.fuse(lambda x: x * generator.random())(np.ones(3)).shape == (3,)


def test_a_captured_parameter_requires_grad():
    torch = pytest.importorskip("torch")
    linear = torch.nn.Linear(3, 2)
    f = kf.fuse(lambda x: x @ linear.weight.T)
    with pytest.raises(
        RuntimeError, match=r"an array which the function captured requires grad.*requires_grad_\(False"
    ):
        f(torch.ones(4, 3))
    with torch.no_grad():
        torch.testing.assert_close(f(torch.ones(4, 3)), torch.ones(4, 3) @ linear.weight.T)


def test_a_plan_on_the_cpu_says_how_to_measure():
    assert 'f.plan(x, device="cpu") measures them' in " ".join(str(chain.plan(np.ones(3), np.ones(3))).split())


@pytest.mark.parametrize("part", [lambda x: x, lambda x: x[0], lambda x: x.T])
def test_arguments_are_not_changed_in_place(part):
    @kf.fuse
    def f(x):
        y = part(x)
        y += 1
        return y * 2

    with pytest.raises(kf.TraceError, match=r"changes its argument x in place.*\n.*y \+= 1\n  write x = x \+ 1"):
        f(np.ones((2, 2)))


def test_values_of_its_own_are_changed_in_place():
    @kf.fuse
    def f(x):
        y = x + 1
        y += 2
        return y

    np.testing.assert_array_equal(f(np.ones(3)), np.full(3, 4.0))


def test_errors_of_the_user_s_code_pass_through():
    @kf.fuse
    def f(x, table):
        return x * table["missing"]

    with pytest.raises(KeyError, match="missing"):
        f(np.ones(3), {"there": 1.0})


def test_the_class_says_no_to_wrong_options():
    with pytest.raises(ValueError, match="there is no option"):
        _core.FusedCallable("f", ["x"], {"speed": True}, True)


def test_a_float_argument_that_becomes_an_integer():
    f = kf.fuse(lambda x, s: np.full_like(x, s) + x)
    i = np.arange(3)
    assert [f(i, s).tolist() for s in (1.0, 5.0, -2.9)] == [[1, 2, 3], [5, 6, 7], [-2, -1, 0]]
