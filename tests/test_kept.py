"""What a forward pass keeps for a backward pass: by a minimal cut, within memory=, and as a report."""

import contextlib
import gc
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings

import kfusion as kf
from graph_strategies import cases
from sweeps import sweep

torch = pytest.importorskip("torch")

from gradients import require_close, seeds_of, torch_vjp_of_graph, vjp_in_two_passes  # noqa: E402
from tracing import Traces  # noqa: E402

F = torch.nn.functional


def leaf(*shape, dtype=None):
    return torch.randn(*shape, dtype=dtype or torch.float64).requires_grad_()


def gradients(function, *tensors):
    y = function(*tensors)
    return list(torch.autograd.grad((y * torch.cos(y.detach())).sum(), tensors))


def saved(y):
    """Shapes of what a call keeps beside its arguments."""
    node = y.grad_fn.node
    return [tuple(t.shape) for t in y.grad_fn.saved_tensors[node.count + len(node.captured) :]]


def chain(x):
    for _ in range(8):
        x = torch.tanh(x) * 1.1 + torch.sin(x)
    return x


class Mlp(torch.nn.Module):
    def __init__(self, layers, d):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(d, d) for _ in range(layers)])

    def forward(self, x):
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        return x


# ---- the choice ----


def kept_shapes(function, *shapes):
    """On a device whose prices are known: those of this one are measured."""
    specs = [kf.spec(s, like="torch") for s in shapes]
    return [v.shape for v in kf.kept_for_backward(function, *specs, device="H200").values if v.role == "kept"]


def test_statistics_of_rows_are_kept_and_no_rows():
    assert kept_shapes(lambda x, w, b: F.layer_norm(x, (256,), w, b), (64, 256), (256,), (256,)) == [(64, 1), (64, 1)]
    assert kept_shapes(lambda x: torch.softmax(x, -1) * 2, (64, 256)) == [(64, 1), (64, 1)]


@pytest.mark.parametrize("device", ["H200", "EPYC-9654", "slow arithmetic"])
@pytest.mark.parametrize("wide", [False, True])
def test_logits_of_a_product_are_kept_with_two_numbers_of_each_row(device, wide):
    """Not their exponentials, which are float32. The maximum is subtracted, and need not be found again."""

    def loss(x, w):
        logits = x @ w
        return F.cross_entropy(logits.float() if wide else logits, torch.zeros(64, dtype=torch.int64))

    slow = kf.Device("slow", bandwidth=20e9, peaks={"vector_float32": 1e11, "vector_float64": 5e10}, is_cpu=True)
    specs = [kf.spec(s, "bfloat16", like="torch") for s in ((64, 32), (32, 8192))]
    kept = kf.kept_for_backward(loss, *specs, device=slow if device == "slow arithmetic" else device).values
    rows = sorted((v.shape, v.dtype) for v in kept if v.role == "kept" and v.shape)
    assert [(s, t) for s, t in rows if math.prod(s) > 64] == [((64, 8192), "bfloat16")]
    assert [t for s, t in rows if math.prod(s) == 64] == ["float32", "float32"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_statistics_of_half_rows_are_float32(dtype):
    """And no exponentials, which are as large as the rows."""
    targets = kf.spec((64,), "int64", like="torch")
    for function, *more in (
        (lambda x: torch.softmax(x, -1) * 2,),
        (lambda x: torch.log_softmax(x, -1) * 2,),
        (lambda x: torch.logsumexp(x, -1),),
        (lambda x, t: F.cross_entropy(x, t, reduction="none"), targets),
        (lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), targets),
    ):
        kept = kf.kept_for_backward(function, kf.spec((64, 256), dtype, like="torch"), *more, device="H200").values
        rows = [v for v in kept if v.role == "kept"]
        assert rows
        assert all(v.dtype == "float32" and max(v.shape, default=1) <= 64 for v in rows)


def test_a_residual_is_kept_in_place_of_its_product():
    """Later layers read the sum: a product that is kept beside it would be one more array."""

    def f(x, y, weight, scale, gate):
        x = x + (y @ weight.T).reshape(x.shape)
        return x + F.rms_norm(x, (512,), scale) @ gate.T

    x = kf.spec((4, 1024, 512), "bfloat16", like="torch")
    square = kf.spec((512, 512), "bfloat16", like="torch")
    y, scale = kf.spec((4096, 512), "bfloat16", like="torch"), kf.spec((512,), "bfloat16", like="torch")
    kept = kf.kept_for_backward(f, x, y, square, scale, square, device="H200")
    (large,) = (v for v in kept.values if v.role == "kept" and math.prod(v.shape) == math.prod(x.shape))
    assert large.name == "add"
    product = next(g for g in kept.forward.groups if "matmul" in g.ops)
    assert len(product.stores) == 1


def test_maps_of_arguments_are_computed_again():
    assert kept_shapes(chain, (64, 256)) == []
    assert kept_shapes(lambda x: F.leaky_relu(x * 2, 0.1).exp(), (64, 256)) == []  # no mask


def test_results_are_read_where_they_serve():
    f = lambda x: torch.exp(chain(x))  # noqa: E731
    roles = [v.role for v in kf.kept_for_backward(f, kf.spec((64, 256), like="torch"), device="H200").values]
    assert roles in (["argument"], ["argument", "result"])
    products = kf.kept_for_backward(
        lambda x, w: torch.tanh(x @ w), *[kf.spec((512, 512), like="torch")] * 2, device="H200"
    )
    assert [v.role for v in products.values] == ["argument", "argument", "result"]


def bytes_of_torchs_partition(function, *arguments):
    """The bytes that torch's AOTAutograd keeps beside arguments: results of its forward graph behind the function's
    own.
    """
    from functorch.compile import aot_function, min_cut_rematerialization_partition, nop

    kept = []

    def forward(graph, inputs):
        *_, output = graph.graph.nodes
        values = [n.meta["val"] for n in output.args[0] if n is not None and n.op != "placeholder"][1:]
        kept.extend(v.numel() * v.element_size() for v in values if isinstance(v, torch.Tensor))
        return nop(graph, inputs)

    made = aot_function(
        function, fw_compiler=forward, bw_compiler=nop, partition_fn=min_cut_rematerialization_partition
    )
    made(*arguments).sum().backward()
    return sum(kept)


@pytest.mark.parametrize("kind", ["16 maps", "16 layers", "norm", "softmax"])
def test_no_more_bytes_than_torchs_partition(kind):
    functions = {
        "16 maps": (chain, (leaf(512, 512, dtype=torch.float32),)),
        "16 layers": (Mlp(16, 256), (leaf(512, 256, dtype=torch.float32),)),
        "norm": (lambda x: F.layer_norm(x, (512,)).tanh(), (leaf(512, 512, dtype=torch.float32),)),
        "softmax": (lambda x: torch.softmax(x, -1).sin(), (leaf(512, 512, dtype=torch.float32),)),
    }
    function, arguments = functions[kind]
    if isinstance(function, torch.nn.Module):
        parameters = dict(function.named_parameters())
        names = list(parameters)

        def call(x, *values):
            return torch.func.functional_call(function, dict(zip(names, values, strict=True)), (x,))

        theirs = bytes_of_torchs_partition(call, *arguments, *parameters.values())
    else:
        theirs = bytes_of_torchs_partition(function, *arguments)
    ours = kf.kept_for_backward(function, *arguments, device="H200").bytes
    assert ours <= theirs


# ---- memory= ----


@pytest.mark.parametrize("memory", [None, 1 << 20, 300_000, 4096, 0])
def test_less_memory_gives_the_same_gradients(memory):
    module = Mlp(4, 64).double()
    x = leaf(128, 64)
    want = torch.autograd.grad(module(x).square().sum(), [x, *module.parameters()])
    fused = kf.fuse(module, memory=memory)
    y = fused(x)
    got = torch.autograd.grad(y.square().sum(), [x, *module.parameters()])
    torch.testing.assert_close(got, want)
    own = sum(math.prod(shape) * 8 for shape in saved(fused(x)))
    result = 128 * 64 * 8
    assert memory is None or own <= memory + result


def test_memory_is_monotonous():
    module, x = Mlp(6, 64), kf.spec((256, 64), like="torch")
    kept = [kf.kept_for_backward(module, x, device="H200", memory=m).bytes for m in (1 << 30, 400_000, 100_000, 0)]
    assert kept == sorted(kept, reverse=True)
    assert all(k <= m for k, m in zip(kept, (1 << 30, 400_000, 100_000, 0), strict=True))
    assert kept[0] > 0


def test_too_little_memory_is_an_error():
    f = kf.fuse(lambda x: torch.linalg.inv(x).sort(-1).values.sin(), memory=10)
    with pytest.raises(ValueError, match="memory: 10 bytes are too few: backward needs at least"):
        f(leaf(8, 8))
    with pytest.raises(TypeError, match="memory must be a number of bytes, got '1 GB'"):
        kf.fuse(chain, memory="1 GB")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="memory must be a number of bytes, got -1"):
        kf.fuse(chain, memory=-1)


# ---- the passes belong together ----


@settings(max_examples=40, deadline=None)
@given(cases(max_steps=8, dtypes=("float64",), contractions=True))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_random_programs_in_two_passes(case):
    seeds = seeds_of(case.graph)
    if not all(v.error == 0 for v in case.outputs):
        return  # ties may differ
    want = torch_vjp_of_graph(case.graph, case.inputs, seeds)
    for memory in (None, 64, 0):
        if got := vjp_in_two_passes(case.graph, case.inputs, seeds, memory):
            require_close(got, want, 1e-7, finite_only=True)


class Softmax(torch.nn.Module):
    axis = 0

    def forward(self, x):
        return torch.softmax(x, self.axis) * x


def what_changes_in_between():
    """A function, what is done after its call, and what backward says."""
    names = SimpleNamespace(scale=torch.rand(4, dtype=torch.float64), other=torch.rand(4, dtype=torch.float64))
    calls, module, made = Traces(), Softmax(), "did not do the same when it was traced again"

    def another(x):
        calls()
        return torch.sin(x) if len(calls) == 1 else torch.cos(x) * torch.tanh(x)

    by_name = lambda x: torch.sin(x) * names.scale + names.other  # noqa: E731
    first, flags = np.array([0]), bytearray([0])
    yield lambda x: (x * x)[int(first[0]) :], lambda: first.__setitem__(0, 1), made
    yield lambda x: (x * x)[flags[0] :], lambda: flags.__setitem__(0, 1), "what it depends on .* was changed after"
    yield by_name, lambda: names.other.add_(1), ""  # no gradient needs it
    yield by_name, lambda: names.scale.add_(1), r"a tensor of shape \(4,\) that it names, .* was changed in place"
    yield by_name, lambda: [setattr(names, n, torch.ones(4).double()) for n in ("scale", "other")], ""
    yield lambda x: x * torch.full((4,), 2.0, dtype=torch.float64), lambda: None, ""  # each time another one
    yield another, lambda: None, made
    yield module, lambda: setattr(module, "axis", 1), ""


def test_what_changes_in_between():
    def check(function, change, message):
        x = leaf(3, 4)
        want = None if message else torch.autograd.grad(function(x).sum(), x)
        y = kf.fuse(function)(x).sum()
        change()
        gc.collect()
        with pytest.raises(RuntimeError, match=message) if message else contextlib.nullcontext():
            torch.testing.assert_close(torch.autograd.grad(y, x), want)

    sweep(check, what_changes_in_between())


def test_attention_keeps_its_sums():
    q, k, v = (leaf(2, 3, 64, 8) for _ in range(3))

    def f(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    y = kf.fuse(f)(q, k, v)
    assert sorted(saved(y)) == [(2, 3, 64), (2, 64, 3, 8)]  # as it lies in memory
    torch.testing.assert_close(gradients(kf.fuse(f), q, k, v), gradients(f, q, k, v))
    torch.testing.assert_close(gradients(kf.fuse(f), q, q * 1.5, v)[::2], gradients(f, q, q * 1.5, v)[::2])


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_between_products(order, scale, causal):
    x, w, o = leaf(2, 48, 24), leaf(72, 24), leaf(24, 24)

    def f(x, w, o):
        q, k, v = (t.reshape(2, 48, 3, 8).transpose(1, 2).permute(order) for t in F.linear(x, w).split(24, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal and order == (0, 1, 2, 3), scale=scale)
        return F.linear(y.permute(order).transpose(1, 2).reshape(2, 48, 24), o)

    torch.testing.assert_close(gradients(kf.fuse(f), x, w, o), gradients(f, x, w, o))


# ---- what is kept is what forward went on with ----


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.gelu(x).amax(-1),
        lambda x: F.gelu(x.abs()).amin(0),  # without the flat minimum, where rounding decides which element is least
        lambda x: (lambda h: h / h.abs().amax())(F.gelu(x)),
        lambda x: (lambda e: e / e.sum())(torch.exp(F.gelu(x) - F.gelu(x).amax())),
        lambda x: torch.softmax(F.layer_norm(x, (128,)) * 30, -1) * x.detach(),
        lambda x: F.normalize(F.gelu(x) * 40),
    ],
)
def test_half_types(function, dtype):
    """Kernels have rows' results in float32: backward must not be given them rounded."""
    x = torch.randn(64, 128, dtype=dtype).requires_grad_()
    exact = x.detach().double().requires_grad_()
    g = torch.randn(function(x).shape).to(dtype)
    (want,) = torch.autograd.grad(function(exact), exact, g.double())
    (eager,) = torch.autograd.grad(function(x), x, g)
    (got,) = torch.autograd.grad(kf.fuse(function)(x), x, g)
    off, allowed = ((d.double() - want).norm() for d in (got, eager))
    assert off <= 1.5 * allowed + 1e-3 * want.norm()


def test_maxima_of_products_that_are_computed_again():
    x, w = leaf(7, 8, dtype=torch.float32), leaf(8, 8, dtype=torch.float32)

    def f(x, w):
        return (x @ w).amax(-1)

    for memory in (None, 0):
        torch.testing.assert_close(gradients(kf.fuse(f, memory=memory), x, w), gradients(f, x, w))


@pytest.mark.parametrize("function", [lambda x: torch.sort(x * 2, -1)[0] ** 2, lambda x: x.cumsum(-1) ** 2])
def test_gradients_of_library_calls_at_other_sizes(function):
    fused = kf.fuse(function)
    for shape in ((4, 9), (8, 9), (5, 9), (5, 3)):
        x = leaf(*shape)
        torch.testing.assert_close(gradients(fused, x), gradients(function, x))


def test_autocast_of_the_backward_pass_is_that_of_the_forward_pass():
    x = leaf(4, 4, dtype=torch.float32)
    with torch.autocast("cpu"):
        with torch.autocast("cpu", enabled=False):
            y = kf.fuse(lambda x: torch.tanh(x @ x))(x).sum()
        (got,) = torch.autograd.grad(y, x)
    (want,) = torch.autograd.grad(torch.tanh(x @ x).sum(), x)
    torch.testing.assert_close(got, want)


# ---- the report ----


def test_report():
    module = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.LayerNorm(256))
    kept = kf.kept_for_backward(module, kf.spec((512, 64), like="torch"), device="H200")
    assert {v.role for v in kept.values} >= {"argument", "kept"}
    assert any(v.name in ("0.weight", "2.weight") for v in kept.values)
    assert kept.to_dict()["bytes"] == kept.bytes == sum(v.bytes for v in kept.values) > 0
    assert all(words in str(kept) for words in ("only read", "Kept beside arguments and results", "backward"))
    assert "<table>" in kept._repr_html_()
    assert min(kept.forward.fused.launches, kept.backward.fused.launches) > 0

    def f(x, w):
        return F.gelu(F.layer_norm(x, (128,)) @ w)

    x, w = leaf(512, 128), leaf(128, 256)
    shapes = sorted(v.shape for v in kf.kept_for_backward(f, x, w).values if v.role == "kept")
    assert shapes == sorted(saved(kf.fuse(f)(x, w)))
    assert kf.kept_for_backward(lambda x: kf.softmax(x) * 2, kf.spec((32, 100))).values[0].role == "argument"
    with pytest.raises(TypeError, match="must return an array of floats"):
        kf.kept_for_backward(lambda x: kf.argmax(x, 0), kf.spec((3, 4)))


def test_tensors_without_data():
    """Tensors of torch's meta device give what specs give."""
    with torch.device("meta"):
        model, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()), torch.empty(4, 8)
    spec = kf.spec((4, 8), like="torch")
    kept = kf.kept_for_backward(model, x, device="H200")
    assert [v.name for v in kept.values] == [v.name for v in kf.kept_for_backward(model, spec, device="H200").values]
    assert kf.plan(model, x, device="H200") == kf.plan(model, spec, device="H200")
