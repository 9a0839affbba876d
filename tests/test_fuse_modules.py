"""`kf.fuse` of torch modules: modules that run as kernels, and never with what a module was before."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import weakref
from typing import Any

import pytest

import kfusion as kf
from kfusion._graph.static import Static

torch = pytest.importorskip("torch")
nn = torch.nn


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.drop = nn.Dropout()
        self.scale = 2.0
        self.register_buffer("shift", torch.randn(width))

    def forward(self, x):
        return x + self.drop(torch.relu(self.query(self.norm(x)))) * self.scale + self.shift

    def twice(self, x):
        return x * 2 * self.scale


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x):
        return x * self.weight


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    inner = nn.ModuleDict({"layer": nn.ModuleList([Block(), Block()])})
    made = nn.Sequential(nn.Module(), inner)[1]["layer"]
    return nn.Sequential(*made).eval().requires_grad_(False)


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
    assert len(fused) == 2
    assert fused[0] is model[0]
    assert repr(fused) == f"<kfusion.fuse: {model!r}>"
    assert fused.__wrapped__ is model
    assert not fused.training
    assert_same(fused, model)
    assert_same(fused.forward, model)
    assert_same(kf.fuse(fused), model)
    assert_same(fused.unfused, model)
    assert "__global__" in fused.source(X)
    assert fused.plan(X).fused.launches < fused.unfused.plan(X).fused.launches
    assert kf.plan(fused, X).fused.launches
    assert kf.fuse(Block().eval()).twice(X).equal(X * 4)


def test_it_is_a_submodule(model):
    outer = nn.Sequential(kf.fuse(model[0]), nn.ReLU())
    assert "0.query.weight" in outer.state_dict()
    for f in (outer, kf.fuse(outer)):
        torch.testing.assert_close(f(X), torch.relu(model[0](X)))
        model[0].scale += 1
        torch.testing.assert_close(f(X), torch.relu(model[0](X)))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))])
def test_copies(model, copied):
    fused = copied(kf.fuse(model, forbid=[("relu", "multiply")]))
    assert fused.fused_function._options["forbid"] == [("relu", "multiply")]
    assert_same(fused, model)
    fused[0].query.weight.data = torch.zeros(4, 4)
    assert (copied is copy.copy) == model[0].query.weight.equal(torch.zeros(4, 4))
    assert_same(fused, fused.__wrapped__)


def test_it_does_not_live_longer_than_its_module():
    fused = kf.fuse(Scaled().requires_grad_(False))
    fused(X)
    weight, module = weakref.ref(fused.weight), weakref.ref(fused.__wrapped__)
    del fused
    gc.collect()
    assert weight() is None
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
    tied = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False)).requires_grad_(False)
    tied[2].weight = tied[0].weight
    fused = kf.fuse(tied)
    assert names_of(fused.plan(X)) == ["input", "0.weight"]
    assert_same(fused, tied)
    tied[2].weight = nn.Parameter(torch.randn(4, 4), requires_grad=False)
    assert_same(fused, tied)


# ---- what changes is seen ----


def replaced(m):
    m[0].query.weight = nn.Parameter(torch.randn(4, 4), requires_grad=False)


def loaded(m):
    m.load_state_dict({name: torch.randn_like(v) for name, v in m.state_dict().items()}, assign=True)
    m.requires_grad_(False)


def another_kind(m):
    m[1].query.__class__ = type("Other", (nn.Linear,), {"forward": lambda self, x: x})


CHANGES = {
    "a parameter": replaced,
    "its data": lambda m: setattr(m[0].query.weight, "data", torch.randn(4, 4)),
    "in place": lambda m: m[0].query.weight.mul_(2),
    "a buffer": lambda m: setattr(m[1], "shift", torch.randn(4)),
    "a parameter that goes": lambda m: setattr(m[1].query, "bias", None),
    "load_state_dict": loaded,
    "a submodule": lambda m: setattr(m[0], "query", nn.Identity()),
    "one more": lambda m: m.append(nn.ReLU()),
    "one less": lambda m: m.pop(1),
    "an attribute": lambda m: setattr(m[1], "scale", 3.0),
    "a new attribute": lambda m: setattr(m[0], "forward", lambda x: x * 3),
    "a hook": lambda m: m[0].query.register_forward_hook(lambda module, args, y: y + 1),
    "a class": another_kind,
    "strides": lambda m: setattr(m[0].query.weight, "data", torch.randn(4, 4).T),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_seen(model, change):
    fused, closing = kf.fuse(model), kf.fuse(lambda x: model(x))
    before = model(X)
    for f in (fused, closing):
        torch.testing.assert_close(f(X), before)
    change(model)
    assert not model(X).equal(before)
    for f in (fused, closing) * 2:
        assert_same(f, model)


class OfWeights(Scaled):
    """Computes with its weights alone, before it meets x."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return x.to(self.shift.dtype) * torch.softmax(self.weight, 0) + self.shift.T[0]


OF_WEIGHTS = {
    "in place": lambda m: m.weight.mul_(2),
    "data": lambda m: setattr(m.weight, "data", torch.randn(4)),
    "data of a view": lambda m: setattr(m.shift, "data", torch.randn(4, 4)),
    "a dtype": lambda m: m.double(),
    "in place of a view": lambda m: m.shift.add_(1),
}


@pytest.mark.parametrize("change", OF_WEIGHTS.values(), ids=OF_WEIGHTS)
def test_what_is_computed_of_weights_alone(change):
    module = OfWeights().requires_grad_(False)
    fused, closing = kf.fuse(module), kf.fuse(lambda x: module(x) + 1)
    for _ in range(3):
        assert_same(fused, module)
        assert_same(closing, lambda x: module(x) + 1)
        change(module)


class OnlyAsked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.randn(4))
        self.transposed = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return (x @ self.transposed.T.to(x.dtype)).to(self.unused.dtype)


def test_tensors_that_are_no_inputs():
    module = OnlyAsked().requires_grad_(False)
    fused = kf.fuse(module)
    assert_same(fused, module)
    module.unused.data = module.unused.double()
    assert_same(fused, module)
    module.transposed.data = torch.zeros(4, 4)
    assert_same(fused, module)
    assert fused(X).dtype == torch.float64
    assert not fused(X).any()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("scripted", [torch.jit.script, lambda m: torch.jit.trace(m, X)], ids=["script", "trace"])
def test_modules_of_torchscript_are_refused(scripted):
    with pytest.raises(kf.TraceError, match=r"torch\.forward of TorchScript is not traced"):
        kf.fuse(scripted(nn.ReLU()))(X)


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


class Slot:  # a data descriptor, which goes before an object's own attribute
    def __get__(self, instance, owner=None):
        raise AssertionError("code of an attribute ran")

    __set__ = __get__


def test_attributes_are_found_as_inspect_finds_them():
    def ones(self, x):
        return x

    forwards = (ones, staticmethod(ones), classmethod(ones), property(ones), Slot(), None, 3)
    kinds = [Scaled, type("Inherits", (Scaled,), {}), *(type("Has", (Scaled,), {"forward": f}) for f in forwards)]
    for kind in kinds:
        plain, own = kind(), kind()
        vars(own)["forward"] = vars(own)["__wrapped__"] = ones
        static = Static()
        for value in (plain, own, plain):
            for name in ("forward", "__wrapped__", "weight"):
                assert static.attribute(value, name, 1) is inspect.getattr_static(value, name, 1), (kind, name)
    for value in (3, None, other := type("Plain", (), {"__wrapped__": ones})(), type(other)):
        assert Static().attribute(value, "__wrapped__") is inspect.getattr_static(value, "__wrapped__", None)


def test_modules_in_a_list():
    layers = [Scaled().requires_grad_(False), nn.ReLU()]
    fused = kf.fuse(lambda x: layers[1](layers[0](x)))
    for _ in range(2):
        assert_same(fused, nn.Sequential(*layers))
        layers[0].weight = nn.Parameter(torch.randn(4), requires_grad=False)


def test_modes(model):
    fused = kf.fuse(model)
    assert_same(fused, model)
    model[1].drop.train()
    assert not torch.equal(fused(X), fused(X))
    fused.eval()
    assert_same(fused, model)
    assert fused.fused_function._cached() == 2


def test_dtypes(model):
    fused = kf.fuse(model)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
        assert_same(fused.to(dtype), model, X.to(dtype))
    fused[0].norm.double()
    with pytest.raises(RuntimeError):
        model(X)
    assert fused[1].double() is model[1]


def test_mixed_dtypes():
    for module in (nn.LayerNorm(4), nn.BatchNorm1d(4).eval()):
        module.requires_grad_(False)
        assert_same(kf.fuse(module), module, X.bfloat16())  # weights of float32 among half types
    for name in ("weight", "bias"):
        linear = nn.Linear(4, 4).requires_grad_(False)
        fused = kf.fuse(linear)
        assert_same(fused, linear)
        getattr(linear, name).data = getattr(linear, name).half()
        with pytest.raises(RuntimeError, match="dtype"):
            linear(X)
        with pytest.raises(TypeError, match="torch wants"):
            fused(X)


def test_gradients_are_asked_for_in_every_call(model):
    fused = kf.fuse(model)
    assert not fused(X).requires_grad
    fused.requires_grad_()
    assert fused(X).requires_grad
    with torch.no_grad():
        assert not fused(X).requires_grad
        assert_same(fused, model)


def test_replaced_parameters_are_not_kept():
    module = Scaled().requires_grad_(False)
    fused = kf.fuse(module)
    weights = []
    for _ in range(4):
        module.weight = nn.Parameter(torch.randn(4), requires_grad=False)
        weights.append(weakref.ref(module.weight))
        assert_same(fused, module)
    gc.collect()
    assert [w() is None for w in weights] == [True] * 3 + [False]


class WithHelper(Scaled):
    factor = 2.0

    def forward(self, x):
        return self.helper(x) * self.factor

    def helper(self, x):
        return x * self.options["by"][0] + self.weight


HELPED = {
    "an attribute of the class": lambda m: setattr(WithHelper, "factor", 5.0),
    "a method of the class": lambda m: setattr(WithHelper, "helper", lambda self, x: x - 7),
    "forward of the class": lambda m: setattr(WithHelper, "forward", lambda self, x: x - 3),
    "forward": lambda m: setattr(m, "forward", lambda x: x * 3),
    "a list in a dict": lambda m: m.options["by"].__setitem__(0, 4.0),
}


@pytest.mark.parametrize("change", HELPED.values(), ids=HELPED)
def test_what_a_method_of_the_module_reads(change, monkeypatch):
    for name in ("factor", "helper", "forward"):
        monkeypatch.setattr(WithHelper, name, vars(WithHelper)[name])
    module = WithHelper().requires_grad_(False)
    module.options = {"by": [2.0]}
    given = kf.fuse(lambda module, x: module(x))
    functions = (kf.fuse(module), kf.fuse(lambda x: module(x)), lambda x: given(module, x))
    for f in functions:
        assert_same(f, module)
    change(module)
    for f in functions * 2:
        assert_same(f, module)


def test_the_default_dtype_and_whether_gradients_are_made():
    fused = kf.fuse(lambda x: (x + torch.ones(4), x * (2 if torch.is_grad_enabled() else 3)))
    for _ in range(2):
        torch.testing.assert_close(fused(X), (X + 1, X * 2))
        with torch.no_grad():
            torch.testing.assert_close(fused(X), (X + 1, X * 3))
        torch.set_default_dtype(torch.float64)
        try:
            assert fused(X)[0].dtype == torch.float64
        finally:
            torch.set_default_dtype(torch.float32)
    assert fused._cached() == 3


# ---- modules that change themselves ----


def test_a_counter_counts():
    class Counting(Scaled):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return x * self.weight

    module = Counting().requires_grad_(False)
    fused = kf.fuse(module)
    for _ in range(5):
        assert_same(fused, lambda x: x * module.weight)
    assert module.calls == 5
    assert fused.fused_function._cached() <= 2
    module.weight = nn.Parameter(torch.zeros(4), requires_grad=False)
    assert fused(X).equal(X * 0)


def test_what_the_first_call_makes_is_no_effect():
    class Caching(Scaled):
        doubled = None

        def forward(self, x):
            if self.doubled is None:
                self.doubled = self.weight * 2
            return x * self.doubled

    module = Caching().requires_grad_(False)
    fused = kf.fuse(module)
    for _ in range(3):
        assert_same(fused, module)
    module.doubled = torch.zeros(4)
    assert fused(X).equal(X * 0)


def test_a_buffer_that_is_set_to_what_is_computed():
    class Averaging(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("average", torch.zeros(4))

        def forward(self, x):
            self.average = self.average * 0.9 + x.mean(0) * 0.1
            return x - self.average

    module, plain = Averaging(), Averaging()
    fused = kf.fuse(module)
    for n in range(4):
        torch.testing.assert_close(fused(X * n), plain(X * n))
        torch.testing.assert_close(module.state_dict(), plain.state_dict())
    assert list(dict(module.named_buffers())) == ["average"]


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


@pytest.mark.parametrize("like", [torch.as_tensor, lambda x: x.numpy()], ids=["torch", "numpy"])
def test_torchs_names_of_axes(like):
    x = like(X)
    for f in (kf.sum, kf.var, kf.logsumexp, kf.norm):
        torch.testing.assert_close(f(x, dim=1, keepdim=True), f(x, axis=1, keepdims=True))
        torch.testing.assert_close(kf.fuse(lambda x, f=f: f(x, dim=0))(x), f(x, axis=0))
    torch.testing.assert_close(kf.softmax(x, dim=0), kf.softmax(x, axis=0))
    with pytest.raises(TypeError, match=r"kfusion\.sum: dim is another name for axis: pass one of them"):
        kf.sum(x, dim=1, axis=1)
    with pytest.raises(TypeError, match=r"kfusion\.exp: .*'dim'"):
        kf.exp(x, dim=1)
