"""`kf.fuse` of torch modules: modules that run as kernels, and never with what a module was before."""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import pickle
import types
import weakref
from typing import Any

import pytest

import kfusion as kf
from sweeps import sweep

torch = pytest.importorskip("torch")
nn = torch.nn


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.drop = nn.Dropout()
        self.scale, self.options = 2.0, {"by": [1.0]}
        self.register_buffer("shift", torch.randn(width))

    def forward(self, x):
        return x + self.drop(torch.relu(self.query(self.norm(x)))) * self.scale * self.by() + self.shift

    def by(self):
        return self.options["by"][0]

    def twice(self, x):
        return x * 2 * self.scale


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x):
        return x * self.weight


def frozen(module: Any) -> Any:
    return module.requires_grad_(False)


def weight_of(*shape: int) -> Any:
    return nn.Parameter(torch.randn(*shape), requires_grad=False)


def blocks() -> Any:
    torch.manual_seed(0)
    inner = nn.ModuleDict({"layer": nn.ModuleList([Block(), Block()])})
    made = nn.Sequential(nn.Module(), inner)[1]["layer"]
    return frozen(nn.Sequential(*made).eval())


@pytest.fixture
def model() -> Any:
    return blocks()


X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def assert_same(fused: Any, plain: Any, x: Any = X) -> None:
    torch.testing.assert_close(fused(x), plain(x), rtol=2e-2 if x.dtype.itemsize == 2 else 1e-5, atol=1e-5)


def names_of(plan: Any) -> list[str]:
    return [node["name"] for node in plan.graph.to_dict()["nodes"] if node["op"] == "input"]


# ---- it is a module ----


def test_it_is_the_module_in_everything_but_calls(model):
    fused = kf.fuse(model)
    assert isinstance(fused, nn.Sequential)
    assert fused.state_dict().keys() == model.state_dict().keys()
    assert [id(p) for p in fused.parameters()] == [id(p) for p in model.parameters()]
    assert dict(fused.named_buffers()).keys() == dict(model.named_buffers()).keys()
    assert (len(fused), fused[0], fused.__wrapped__, fused.training) == (2, model[0], model, False)
    assert repr(fused) == f"<kfusion.fuse: {model!r}>"
    for f in (fused, fused.forward, kf.fuse(fused), fused.unfused):
        assert_same(f, model)
    assert "__global__" in fused.source(X)
    assert fused.plan(X).fused.launches < fused.unfused.plan(X).fused.launches
    assert kf.plan(fused, X).fused.launches
    assert kf.fuse(Block().eval()).twice(X).equal(X * 4)


def test_it_is_a_submodule(model):
    outer = nn.Sequential(kf.fuse(model[0]), nn.ReLU())
    assert "0.query.weight" in outer.state_dict()
    for f in (outer, kf.fuse(outer)):
        for _ in range(2):
            torch.testing.assert_close(f(X), torch.relu(model[0](X)))
            model[0].scale += 1


def test_copies(model):
    for copied in (copy.copy, copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))):
        fused = copied(kf.fuse(model, forbid=[("relu", "multiply")]))
        assert fused.fused_function._options["forbid"] == [("relu", "multiply")]
        assert_same(fused, model)
        before = model[0].query.weight.clone()
        fused[0].query.weight.data = torch.zeros(4, 4)
        assert (copied is copy.copy) == model[0].query.weight.equal(torch.zeros(4, 4))
        assert_same(fused, fused.__wrapped__)
        model[0].query.weight.data = before


def test_what_is_not_kept():
    """Neither a module nor parameters that were replaced."""
    fused = kf.fuse(frozen(Scaled()))
    weights = []
    for _ in range(4):
        fused.__wrapped__.weight = weight_of(4)
        weights.append(weakref.ref(fused.weight))
        assert_same(fused, fused.__wrapped__)
    gc.collect()
    assert [w() is None for w in weights] == [True] * 3 + [False]
    module = weakref.ref(fused.__wrapped__)
    del fused
    gc.collect()
    assert weights[-1]() is None
    assert module() is None


# ---- names ----


def test_weights_are_named_as_the_module_names_them(model):
    expected = [f"0.{name}" for name in ("norm.weight", "norm.bias", "query.weight", "query.bias", "shift")]
    assert names_of(kf.fuse(model).plan(X))[1:6] == expected
    assert names_of(kf.plan(model, kf.spec((3, 4), like="torch")))[1:6] == expected
    assert names_of(kf.fuse(lambda x: model(x) + 1).plan(X))[1] == "model.0.norm.weight"
    assert names_of(kf.fuse(model[0].forward).plan(X))[1] == "norm.weight"
    assert names_of(kf.fuse(lambda x, w=model[0].query: x @ w.weight.T).plan(X))[1] == "w.weight"


def test_tied_weights_are_one_input():
    tied = frozen(nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False)))
    tied[2].weight = tied[0].weight
    fused = kf.fuse(tied)
    assert names_of(fused.plan(X)) == ["input", "0.weight"]
    assert_same(fused, tied)
    tied[2].weight = weight_of(4, 4)
    assert_same(fused, tied)


# ---- what changes is seen ----


def loaded(m):
    m.load_state_dict({name: torch.randn_like(v) for name, v in m.state_dict().items()}, assign=True)
    frozen(m)


def another_kind(m):
    m[1].query.__class__ = type("Other", (nn.Linear,), {"forward": lambda self, x: x})


CHANGES = [
    lambda m: setattr(m[0].query, "weight", weight_of(4, 4)),
    lambda m: setattr(m[0].query.weight, "data", torch.randn(4, 4)),
    lambda m: setattr(m[0].query.weight, "data", torch.randn(4, 4).T),
    lambda m: m[0].query.weight.mul_(2),
    lambda m: setattr(m[1], "shift", torch.randn(4)),
    lambda m: setattr(m[1].query, "bias", None),
    loaded,
    lambda m: setattr(m[0], "query", nn.Identity()),
    lambda m: m.append(nn.ReLU()),
    lambda m: m.pop(1),
    lambda m: setattr(m[1], "scale", 3.0),
    lambda m: setattr(m[0], "forward", lambda x: x * 3),
    lambda m: m[0].query.register_forward_hook(lambda module, args, y: y + 1),
    another_kind,
    lambda m: m[1].options["by"].__setitem__(0, 4.0),
    lambda m: setattr(m[0], "by", lambda: 7),
]


def test_a_change_is_seen():
    def check(change):
        model = blocks()
        fused, closing = kf.fuse(model), kf.fuse(lambda x: model(x))
        before = model(X)
        for f in (fused, closing):
            torch.testing.assert_close(f(X), before)
        change(model)
        assert not model(X).equal(before)
        for f in (fused, closing) * 2:
            assert_same(f, model)

    sweep(check, [(change,) for change in CHANGES])


class OfWeights(Scaled):
    """Computes with its weights alone, before it meets x; asks one for its dtype, and another one for its transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.asked, self.turned = (nn.Parameter(torch.randn(4, 4)) for _ in range(3))

    def forward(self, x):
        y = x.to(self.shift.dtype) * torch.softmax(self.weight, 0) + self.shift.T[0]
        return (y @ self.turned.T.to(y.dtype)).to(self.asked.dtype)


OF_WEIGHTS = [
    lambda m: m.weight.mul_(2),
    lambda m: setattr(m.weight, "data", torch.randn(4)),
    lambda m: setattr(m.shift, "data", torch.randn(4, 4)),
    lambda m: m.shift.add_(1),
    lambda m: m.double(),
    lambda m: setattr(m.asked, "data", m.asked.double()),
    lambda m: setattr(m.turned, "data", torch.zeros(4, 4)),
]


def test_what_is_computed_of_weights_alone():
    def check(change):
        module = frozen(OfWeights())
        fused, closing = kf.fuse(module), kf.fuse(lambda x: module(x) + 1)
        for _ in range(3):
            assert_same(fused, module)
            assert_same(closing, lambda x: module(x) + 1)
            change(module)

    sweep(check, [(change,) for change in OF_WEIGHTS])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_modules_of_torchscript_are_refused():
    for scripted in (torch.jit.script(nn.ReLU()), torch.jit.trace(nn.ReLU(), X)):
        with pytest.raises(kf.TraceError, match=r"torch\.forward of TorchScript is not traced"):
            kf.fuse(scripted)(X)


def test_an_attribute_that_is_gone_is_not_none():
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kind, self.weight = nn.ReLU(), nn.Parameter(torch.ones(4), requires_grad=False)
            self.object: Any = type("Object", (), {})()

        def forward(self, x):
            y = x if self.kind is None else self.kind(x)
            y = y if self.object is None else y * 2
            return y if self.weight is None else y + self.weight

    module = Shifted()
    fused = kf.fuse(module)
    for name in ("object", "weight", "kind"):
        assert_same(fused, module)
        gone = weakref.ref(getattr(module, name))
        setattr(module, name, None)
        gc.collect()
        assert gone() is None
        assert_same(fused, module)


def test_modes_and_gradients_are_asked_for_in_every_call(model):
    fused = kf.fuse(model)
    assert_same(fused, model)
    model[1].drop.train()
    assert not torch.equal(fused(X), fused(X))
    fused.eval()
    assert_same(fused, model)
    assert fused.fused_function._cached() == 2
    assert not fused(X).requires_grad
    fused.requires_grad_()
    assert fused(X).requires_grad
    with torch.no_grad():
        assert not fused(X).requires_grad
        assert_same(fused, model)


def test_dtypes(model):
    fused = kf.fuse(model)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
        assert_same(fused.to(dtype), model, X.to(dtype))
    fused[0].norm.double()
    with pytest.raises(RuntimeError):
        model(X)
    assert fused[1].double() is model[1]
    for module in (nn.LayerNorm(4), nn.BatchNorm1d(4).eval()):
        assert_same(kf.fuse(frozen(module)), module, X.bfloat16())  # weights of float32 among half types
    for name in ("weight", "bias"):
        linear = frozen(nn.Linear(4, 4))
        fused = kf.fuse(linear)
        assert_same(fused, linear)
        getattr(linear, name).data = getattr(linear, name).half()
        with pytest.raises(RuntimeError, match="dtype"):
            linear(X)
        with pytest.raises(TypeError, match="torch wants"):
            fused(X)


# ---- modules that change themselves ----


# ---- what a traced function is told ----


def test_traced_values_are_tensors():
    def told(x):
        return torch.is_tensor(x), isinstance(x, torch.Tensor), isinstance(x, nn.Parameter)

    class Asking(nn.Module):
        def forward(self, x):
            assert told(x + 1) == (True, True, False)
            return x * 2 if torch.is_tensor(x) else x

    for f in (Asking(), Asking().forward):
        assert kf.fuse(f)(X).equal(X * 2)


def test_torchs_names_of_axes():
    for x in (X, X.numpy()):
        for f in (kf.sum, kf.var, kf.logsumexp, kf.norm):
            torch.testing.assert_close(f(x, dim=1, keepdim=True), f(x, axis=1, keepdims=True))
            torch.testing.assert_close(kf.fuse(lambda x, f=f: f(x, dim=0))(x), f(x, axis=0))
        torch.testing.assert_close(kf.softmax(x, dim=0), kf.softmax(x, axis=0))
        with pytest.raises(TypeError, match=r"kfusion\.sum: dim is another name for axis: pass one of them"):
            kf.sum(x, dim=1, axis=1)
        with pytest.raises(TypeError, match=r"kfusion\.exp: .*'dim'"):
            kf.exp(x, dim=1)


@dataclasses.dataclass
class Held:
    module: Any


GIVEN = {  # how a function gets a module
    "argument": (lambda m, x: m(x), lambda m: m),
    "list": (lambda held, x: held[0](x), lambda m: [m]),
    "dict": (lambda held, x: held["m"](x), lambda m: {"m": m}),
    "object": (lambda held, x: held.module(x), lambda m: types.SimpleNamespace(module=m)),
    "dataclass": (lambda held, x: held.module(x), Held),
    "method": (lambda f, x: f(x), lambda m: m.forward),
    "partial": (lambda f, x: f(x), functools.partial),
    "closure": (lambda f, x: f(x), lambda m: lambda x: m(x)),
}


def test_modules_among_the_arguments_train():
    """Their buffers are written to, and their parameters have gradients."""

    def check(_, f, given, needs_grad):
        fused, modules = kf.fuse(f), [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(2)]
        copies = copy.deepcopy(modules)
        for n, number in enumerate((0, 1, 0, 0)):
            x = torch.randn(3 + n, 4)
            for call, m in ((f, modules[number]), (fused, copies[number])):
                with torch.set_grad_enabled(needs_grad):
                    y = call(given(m), x)
                if needs_grad:
                    y.pow(2).sum().backward()
            for m, c in zip(modules, copies, strict=True):
                torch.testing.assert_close([*m.buffers()], [*c.buffers()])
                got, want = ([p.grad for p in x.parameters() if p.grad is not None] for x in (c, m))
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)

    sweep(check, [(name, *row, needs_grad) for name, row in GIVEN.items() for needs_grad in (False, True)])
