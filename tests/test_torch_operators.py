"""The named kernels as operators of torch, beside the kernels themselves and torch's own checks of operators."""

from __future__ import annotations

import pytest

import kfusion as kf
from kfusion._named import KERNELS
from sweeps import sweep

torch = pytest.importorskip("torch")
kf.register_torch_ops()

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
TARGETS = torch.tensor([0, 3, 1, 2])


def floats(*shape, requires_grad=True, seed=0):
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return made.requires_grad_(requires_grad)


def positive(*shape):
    return floats(*shape).detach().abs() + 0.1


# Name: arguments and keywords of a call, the first as a user would write it.
# Name: arguments and keywords of a call, the first as a user would write it.
CALLS = {
    "softmax": [((floats(4, 5), -1), {}), ((floats(2, 3, 5), [0, 1]), {})],
    "log_softmax": [((floats(4, 5),), {})],
    "layernorm": [((floats(4, 5), floats(5), floats(5)), {}), ((floats(4, 5),), {"axis": -1, "eps": 1e-3})],
    "relu_layernorm": [((floats(4, 5), floats(5)), {})],
    "rmsnorm": [((floats(4, 5), floats(5)), {"axis": [1]})],
    "batchnorm": [((floats(2, 3, 4), floats(3, requires_grad=False), positive(3), floats(3), floats(3)), {})],
    "gelu": [((floats(5),), {"approximate": "tanh"})],
    "bias_relu_log": [((positive(4, 5).requires_grad_(), positive(5)), {})],
    "mul_add_relu": [((floats(4, 5), floats(5), floats(4, 1)), {})],
    "mse": [((floats(4, 5), floats(4, 5, seed=1)), {"reduction": "sum"})],
    "cross_entropy": [((floats(4, 5), TARGETS, positive(5)), {}), ((floats(4, 5), TARGETS), {"reduction": "none"})],
    "linear_cross_entropy": [((floats(4, 6), floats(5, 6), TARGETS), {})],
    "add_layernorm": [((floats(4, 5), floats(4, 5), floats(5), floats(5)), {})],
    "add_rmsnorm": [((floats(4, 5), floats(4, 5)), {})],
}
CASES = [(name, *call) for name, calls in CALLS.items() for call in calls]


def op(name):
    return getattr(torch.ops.kfusion, name).default


def test_results_and_gradients_are_the_kernels():
    assert {f"kfusion::{k.__name__}" for k in KERNELS} == set(kf.register_torch_ops())
    assert {k.__name__ for k in KERNELS} == set(CALLS)

    def check(name, args, kwargs):
        names = [a.name for a in op(name)._schema.arguments]
        given = dict(zip(names, args, strict=False)) | kwargs
        given = {n: tuple(v) if isinstance(v, list) else v for n, v in given.items()}
        both = op(name)(*args, **kwargs), getattr(kf, f"fused_{name}")(**given)
        wanted = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
        ours, expected = ([y] if isinstance(y, torch.Tensor) else list(y) for y in both)
        torch.testing.assert_close(ours, expected)
        gradients = [torch.autograd.grad([y.square().sum() for y in side], wanted) for side in (ours, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)

    sweep(check, CASES)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "args", "kwargs"), CASES)
def test_torch_finds_nothing_wrong(name, args, kwargs):
    found = torch.library.opcheck(op(name), args, kwargs)
    assert set(found.values()) == {"SUCCESS"}


def test_export_keeps_them():
    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.ops.kfusion.softmax(x * 2, -1)

    program = torch.export.export(Model(), (torch.randn(3, 4),))
    assert "kfusion.softmax" in program.graph_module.code
    x = torch.randn(3, 4)
    torch.testing.assert_close(program.module()(x), (x * 2).softmax(-1))


def test_traced_functions_take_them_apart():
    plan = kf.plan(lambda x: torch.ops.kfusion.softmax(x * 2, [1]) + 1, kf.spec((8, 16), like="torch"))
    assert plan.fused.launches == 1
