"""Some random programs, others in every run (random_programs.py checks any number of them), and the net itself: it
holds what it is to hold."""

from dataclasses import replace

import numpy as np
import pytest

import kfusion as kf
from host_cuda import HAVE_COMPILER
from kfusion import _core
from programs.checks import H200, Runner, check_gain, check_groups, poisoned
from programs.drawing import Seeded, draw_program
from programs.interfaces import Interface
from programs.profiles import CALL_PROFILES, GRAD_PROFILES, PROFILES
from programs.program import Program, Step
from programs.torch_programs import TorchProgram
from programs.values import Value
from random_programs import check_programs, shrunk

SHARE, SHARES = 125, 16  # of 2,000 programs


def assert_none(checked, seed, backend):
    failures = checked.failures
    again = f"python tests/support/random_programs.py --backend {backend} --seed {seed} --only"
    assert not failures, "\n".join(f"{again} {f.number}: {f.message}\n{f.script}" for f in failures)


@pytest.mark.parametrize("share", range(SHARES))
def test_programs(share, seed):
    assert_none(check_programs("cpu", seed, range(share * SHARE, (share + 1) * SHARE)), seed, "cpu")


@pytest.mark.parametrize("share", range(4))
def test_products_and_attentions(share, seed):
    pytest.importorskip("torch")
    assert_none(check_programs("cpu", seed, range(share * 100, (share + 1) * 100), "attention"), seed, "cpu")


@pytest.mark.parametrize("share", range(4))
def test_gradients_of_programs(share, seed):
    """Each profile has one; `--backend grad` checks any number."""
    pytest.importorskip("torch")
    each = len(GRAD_PROFILES) // 4 + 1
    assert_none(check_programs("grad", seed, range(share * each, (share + 1) * each)), seed, "grad")


@pytest.mark.parametrize("share", range(4))
def test_calls_of_programs(share, seed):
    """Each profile has two; `--backend calls` checks any number."""
    pytest.importorskip("torch")
    each = len(CALL_PROFILES) // 2 + 1
    assert_none(check_programs("calls", seed, range(share * each, (share + 1) * each)), seed, "calls")


def test_own_functions_of_programs(seed):
    """`--backend own` checks any number."""
    pytest.importorskip("torch")
    assert_none(check_programs("own", seed, range(30)), seed, "own")


ENLARGED = Program(
    [np.ones((3, 4))], [Step("negative", (0,))], [1], Interface("dict", "list", (("rows", 0), ("arange", 0)))
)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda x, calls: None, None),
        (lambda x, calls: x.pop("a") if calls == 2 else None, "KeyError|zip"),
        (lambda x, calls: np.negative(x["a"], x["a"]) if calls == 2 else None, "an argument has changed"),
        (lambda x, calls: calls == 2, "result 1"),
    ],
)
def test_calls_that_are_wrong(monkeypatch, spoil, message):
    """An argument that is changed, and results of an earlier call."""
    from programs import call_checks

    calls = []

    def wrong(function):
        def called(held):
            calls.append(held)
            result = function(held)
            return [result[0], 3, result[2]] if spoil(held, len(calls)) is True else result

        return called

    monkeypatch.setattr(call_checks.kf, "fuse", wrong)
    if message is None:
        call_checks.CallRunner().check(ENLARGED)
        return
    with pytest.raises((AssertionError, KeyError, ValueError), match=message):
        call_checks.CallRunner().check(ENLARGED)


def test_a_gradient_that_is_wrong(monkeypatch):
    """By more than roundings."""
    pytest.importorskip("torch")
    from programs.grad_checks import GradRunner
    from programs.in_torch import TORCH

    program = Program([np.linspace(-2, 2, 12).reshape(3, 4)], [Step("tanh", (0,)), Step("sum", (1,), (0, False))], [2])
    GradRunner().check(program)
    monkeypatch.setitem(TORCH.texts, "tanh", "torch.tanh({0}) + 1e-9 * ({0} - {0}.detach())")
    with pytest.raises(AssertionError, match="vjp: 0 is wrong by"):
        GradRunner().check(program)


def test_an_attention_that_is_wrong(monkeypatch):
    """By more than torch's own is, some times; gradients, too."""
    pytest.importorskip("torch")
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 4)
    steps = [Step("turned", (0,)), Step("matmul", (0, 1)), Step("softmax", (2,)), Step("matmul", (3, 0))]
    program = TorchProgram([x], steps, [4])
    Runner().check(program, thorough=True)
    for wrong, what in ((lambda y: 1.001 * y, "fused"), (lambda y: 1.001 * y - 0.001 * y.detach(), "gradients")):
        monkeypatch.setattr(kf, "fuse", lambda f, wrong=wrong: lambda *args: [wrong(y) for y in f(*args)])
        with pytest.raises(AssertionError, match=f"{what}: .* is wrong by"):
            Runner().check(program)


def test_programs_that_are_not_compared(monkeypatch):
    """Where a gradient jumps within roundings, unless nothing is rounded; where there is none."""
    pytest.importorskip("torch")
    from programs import grad_checks

    says = grad_checks.GradRunner().says_something
    x = np.arange(-3.0, 9.0).reshape(3, 4)
    bent = Program([x], [Step("tanh", (0,)), Step("relu", (1,))], [2])
    assert says(Program([x], [Step("relu", (0,))], [1]))  # exact: everybody is at the bend
    assert says(bent)  # with other values nearby
    monkeypatch.setattr(grad_checks, "MOVE", 0.0)
    assert not says(bent)
    assert says(replace(bent, inputs=[x + 0.5]))
    assert not says(Program([x], [Step("threshold", (0,), (0, "<"))], [1]))
    assert not says(Program([x.astype(int)], [Step("square", (0,))], [1]))


@pytest.mark.slow
@pytest.mark.skipif(not HAVE_COMPILER, reason="needs g++")
def test_programs_as_cuda_text(seed):
    assert_none(check_programs("text", seed, range(12)), seed, "text")


@pytest.mark.cuda
@pytest.mark.parametrize("profile", [None, "attention"])
def test_programs_on_a_gpu(seed, profile):
    assert_none(check_programs("gpu", seed, range(40), profile), seed, "gpu")


TANH = TorchProgram([np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)], [Step("tanh", (0,))], [1])


def test_torch_s_error_on_another_device():
    """Nothing of torch's own is run on "meta", where no value could be compared."""
    torch = pytest.importorskip("torch")
    from programs.against_torch import Beside, results

    beside = Beside(TANH, "meta", "cpu", results)
    assert {t.device.type for t in beside.tensors} == {"meta"}
    beside.require("same", results(TANH.function(), [torch.from_numpy(x) for x in TANH.inputs]))


@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: p.name)
def test_a_program_is_its_seed_s_and_its_text_computes_it(profile):
    for seed in range(5):
        program = draw_program(Seeded(seed), profile)
        assert program.source() == draw_program(Seeded(seed), profile).source()
        assert program.needed().needed().source() == program.needed().source()
        compile(program.reproducer(), "reproducer", "exec")


def softmax_twice():
    return _core.make_plan(kf.trace(lambda x: kf.softmax(kf.softmax(x, 0), 1), kf.spec((6, 8))), H200, {})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda groups: groups[:-1], "are in no kernel"),
        (lambda groups: groups[::-1], "which is not stored yet"),
        (lambda groups: [*groups, groups[-1]], "computed twice"),
        (lambda groups: [*groups[:-1], {**groups[-1], "stores": []}], "no kernel stores result"),
    ],
)
def test_plans_that_do_not_hold_together(spoil, message):
    plan = softmax_twice()
    assert len(plan["groups"]) > 1
    check_groups(plan["graph"], plan["groups"])
    with pytest.raises(AssertionError, match=message):
        check_groups(plan["graph"], spoil(plan["groups"]))


def test_plans_that_lose():
    plan = softmax_twice()
    check_gain(plan)
    with pytest.raises(AssertionError, match="bytes"):
        check_gain({**plan, "fused": plan["unfused"], "unfused": plan["fused"]})
    with pytest.raises(AssertionError, match="launches"):
        check_gain({**plan, "unfused": {**plan["unfused"], "launches": 0}})


@pytest.mark.parametrize("dtype", ["bool", "int32", "float16", "bfloat16", "float32", "float64"])
def test_what_nobody_wrote_is_no_value(dtype):
    value = Value(np.ones((2, 3)), dtype, 0.0 if dtype in ("bool", "int32") else 0.5)
    with pytest.raises(AssertionError, match="6 of 6 elements are wrong"):
        value.check(poisoned(value))


def test_a_failure_shrinks():
    class NoExponentials(Runner):
        def check(self, program, *, thorough=False):
            program.values()
            if any(s.op == "exp" for s in program.steps):
                raise ValueError("an exponential")

    steps = [Step("add", (0, 0)), Step("exp", (1,)), Step("tanh", (2,)), Step("sum", (3,), (0, True))]
    program = Program([np.ones((2, 3), np.float32)], steps, [2, 3, 4])
    small = shrunk(NoExponentials(), program, ValueError("an exponential"), 100, thorough=False)
    assert [s.op for s in small.steps] == ["exp"]
    assert len(small.outputs) == 1
