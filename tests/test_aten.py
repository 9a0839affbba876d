"""The table of torch's operators, `kfusion._tracing.aten`: alone, and in programs of torch.export."""

from __future__ import annotations

import copy
import warnings

import pytest

import kfusion as kf
from kfusion._tracing import aten as tracing_aten

torch = pytest.importorskip("torch")
sweep = pytest.importorskip("aten_sweep")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
aten = torch.ops.aten
# What no step of a plan can compute: Python's numbers, shapes that follow from data, or nothing at all.
IMPOSSIBLE = ("depends on data", "gives None", "complex32", "it gives a value", "where it was traced with")


def floats(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(1))


X, Y, W, MASK = floats(4, 6), floats(4, 6), floats(6), floats(4, 6) > 0
IMAGE, KERNEL = floats(2, 4, 5, 5), floats(3, 4, 3, 3)
ONES = [1, 1]
# Operators that must be kernels, with arguments. Rows of aten_rows.py and what models consist of.
KERNELS = [
    (aten.add.Tensor, (X, Y), {"alpha": 2}),
    (aten.rsub.Scalar, (X, 1.5), {}),
    (aten.div.Tensor_mode, (X, Y), {"rounding_mode": "floor"}),
    (aten.pow.Scalar, (2.0, X), {}),
    (aten.clamp.default, (X, -0.5), {}),
    (aten.hardtanh.default, (X,), {}),
    (aten.elu.default, (X, 0.7, 1.1, 0.9), {}),
    (aten.gelu.default, (X,), {"approximate": "tanh"}),
    (aten.where.self, (MASK, X, Y), {}),
    (aten.threshold_backward.default, (X, Y, 0.1), {}),
    (aten.tanh_backward.default, (X, Y.tanh()), {}),
    (aten.sigmoid_backward.default, (X, Y.sigmoid()), {}),
    (aten.sum.dim_IntList, (X, [0], True), {}),
    (aten.mean.dim, (X, [-1]), {}),
    (aten.var_mean.correction, (X, [1]), {"correction": 0, "keepdim": True}),
    (aten.amax.default, (X, [1], True), {}),
    (aten.max.dim, (X, 1), {}),
    (aten.argmax.default, (X, 1), {}),
    (aten.any.dim, (MASK, 1), {}),
    (aten._softmax.default, (X, 1, False), {}),
    (aten._log_softmax.default, (X, 0, False), {}),
    (aten._softmax_backward_data.default, (X, Y.softmax(1), 1, torch.float32), {}),
    (aten._log_softmax_backward_data.default, (X, Y.log_softmax(1), 1, torch.float32), {}),
    (aten.native_layer_norm.default, (X, [6], W, W, 1e-5), {}),
    (aten.native_group_norm.default, (IMAGE, floats(4), floats(4), 2, 4, 25, 2, 1e-5), {}),
    (
        aten._native_batch_norm_legit_functional.default,
        (IMAGE, floats(4), floats(4), floats(4), floats(4).abs(), True, 0.1, 1e-5),
        {},
    ),
    (aten._native_batch_norm_legit.no_stats, (IMAGE, None, None, True, 0.1, 1e-5), {}),
    (aten.embedding.default, (X, torch.tensor([[0, 3], [1, 1]])), {}),
    (aten.slice.Tensor, (X, 1, 1, 9223372036854775807, 2), {}),
    (aten.select.int, (X, 1, -1), {}),
    (aten.slice_scatter.default, (X, floats(2, 6), 0, 1, 3), {}),
    (aten.select_scatter.default, (X, W, 0, 2), {}),
    (aten.slice_backward.default, (floats(2, 6), [4, 6], 0, 1, 3, 1), {}),
    (aten.select_backward.default, (W, [4, 6], 0, -1), {}),
    (aten.cat.default, ([X, Y], 1), {}),
    (aten.split.Tensor, (X, 4, 1), {}),
    (aten.split_with_sizes.default, (X, [2, 4], 1), {}),
    (aten.constant_pad_nd.default, (X, [1, 2, -1, 0], 0.5), {}),
    (aten.expand.default, (W, [3, -1]), {}),
    (aten.permute.default, (IMAGE, [0, 2, 3, 1]), {}),
    (aten.repeat.default, (W, [2, 2]), {}),
    (aten._to_copy.default, (X,), {"dtype": torch.float64}),
    (aten.full_like.default, (X, 2), {"dtype": torch.int64}),
    (aten.new_zeros.default, (X, [2, 3]), {}),
    (aten.native_dropout_backward.default, (X, MASK, 1.25), {}),
]


@pytest.mark.parametrize(("op", "args", "kwargs"), KERNELS, ids=[str(op) for op, _, _ in KERNELS])
def test_is_a_kernel_that_gives_torchs_result(op, args, kwargs):
    assert sweep.check(sweep.Sample(op, args, kwargs)) == "kernels"


@pytest.mark.parametrize(
    ("op", "args", "kwargs"),
    [
        (aten.mm.default, (X, floats(6, 3)), {}),
        (aten.addmm.default, (floats(3), X, floats(6, 3)), {"alpha": 0.5}),
        (aten.bmm.default, (floats(2, 3, 4), floats(2, 4, 5)), {}),
        (aten.convolution.default, (IMAGE, KERNEL, floats(3), ONES, ONES, ONES, False, [0, 0], 1), {}),
        (aten.convolution.default, (IMAGE, floats(4, 3, 3, 3), None, ONES, ONES, ONES, True, [0, 0], 1), {}),
        (aten.cumsum.default, (X, 1), {}),
        (aten.sort.default, (X, 1), {}),
        (aten.max_pool2d_with_indices.default, (IMAGE, [2, 2]), {}),
        (aten.index.Tensor, (X, [None, torch.tensor([0, 5])]), {}),
        (aten.embedding_dense_backward.default, (floats(2, 2, 6), torch.tensor([[0, 3], [1, 1]]), 4, -1, False), {}),
    ],
)
def test_gives_torchs_result(op, args, kwargs):
    assert sweep.check(sweep.Sample(op, args, kwargs)) in ("kernels", "library")


def test_products_are_the_graphs_own():
    plan = kf.plan(lambda x, w: torch.relu(aten.mm.default(x, w)), X, floats(6, 3))
    assert "matmul" in str(plan)
    assert plan.fused.launches == 1


def test_in_place_operators_write():
    def f(x):
        y = x * 1
        aten.add_.Tensor(y, 2.0)
        return y

    torch.testing.assert_close(kf.fuse(f)(X), X + 2)


@pytest.mark.slow
def test_operators_that_torchs_tests_sample(rng, is_sampled):
    """In a sample of the tests about an eighth of them, which is drawn."""
    wrong, seen = [], set()
    for sample in sweep.samples(most=1):
        if not sweep.usable(sample) or sweep.kind(sample) in seen:
            continue
        seen.add(sweep.kind(sample))
        if is_sampled and rng.integers(8):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = sweep.check(sample)
        if found not in ("kernels", "library") and not any(text in found for text in IMPOSSIBLE):
            wrong.append((str(sample.op), found))
    assert len(seen) > 1000
    assert not wrong


class Layer(torch.nn.Module):
    """Linear layers and norms with parameters and buffers."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8)
        self.register_buffer("scale", torch.full((8,), 0.5))

    def forward(self, x):
        return torch.softmax(self.norm(torch.nn.functional.gelu(self.first(x))) * self.scale, -1)


@pytest.mark.parametrize("decomposed", [False, True])
def test_exported_programs_run(decomposed):
    model = Layer().eval()
    program = torch.export.export(model, (X,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    fused = kf.fuse(program.run_decompositions() if decomposed else program)
    for x in (X, floats(7, 6)):
        torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-6)


def test_exported_programs_are_planned_without_data():
    with torch.device("meta"):
        model, x = Layer().eval(), torch.empty(64, 6)
    program = torch.export.export(model, (x,))
    plan = kf.plan(program, device="H200")
    assert plan.fused.launches == kf.plan(Layer().eval(), kf.spec((64, 6), like="torch"), device="H200").fused.launches
    assert "first.weight" in str(plan.graph)
    half = kf.plan(program, kf.spec((32, 6), like="torch"), device="H200")
    assert half.fused.issued.total < plan.fused.issued.total


def test_exported_programs_keep_averages():
    model = Layer().train()
    fused = kf.fuse(torch.export.export(copy.deepcopy(model), (X,)))  # which shares buffers with what is exported
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fused(X), model(X), rtol=1e-4, atol=1e-5)
    buffers = dict(fused.named_buffers())
    assert buffers["norm.num_batches_tracked"] == model.norm.num_batches_tracked == 3
    torch.testing.assert_close(buffers["norm.running_mean"], model.norm.running_mean)
    torch.testing.assert_close(buffers["norm.running_var"], model.norm.running_var)


class _Constants(torch.nn.Module):
    def forward(self, x):
        return x + 1, torch.arange(4), torch.full((2,), 3.0) + 1, torch.tensor([1, 2]), torch.eye(2).to(torch.complex64)


@pytest.mark.parametrize("form", ["program", "module", "function"])
def test_what_is_made_of_no_argument_is_each_calls_own(form):
    x = torch.ones(3)
    program = torch.export.export(_Constants(), (x,))
    ours = kf.fuse({"program": program, "module": program.module(), "function": _Constants().forward}[form])
    for result in ours(x):
        result.zero_().add_(77)
    for y, expected in zip(ours(x), _Constants()(x), strict=True):
        torch.testing.assert_close(y, expected, rtol=0, atol=0)


def test_a_tensor_that_a_function_names_comes_back_itself():
    named = torch.arange(4)
    assert kf.fuse(lambda x: (x + 1, named))(torch.ones(2))[1] is named


@pytest.mark.parametrize("options", [{"padding_idx": 0}, {"padding_idx": -3}, {"scale_grad_by_freq": True}])
def test_an_embeddings_options_change_its_gradient(options):
    indices, weight = torch.tensor([0, 1, 2, 0]), floats(5, 3)

    def loss(weight):
        return torch.nn.functional.embedding(indices, weight, **options).sin().sum()

    expected = torch.func.grad(loss)(weight)
    torch.testing.assert_close(kf.grad(loss)(weight), expected)
    ours = weight.clone().requires_grad_()
    kf.fuse(loss)(ours).backward()
    torch.testing.assert_close(ours.grad, expected)


def test_a_programs_embedding_gives_its_padding_no_gradient():
    indices, module = torch.tensor([0, 1, 2, 0]), torch.nn.Embedding(5, 3, padding_idx=0)
    program = torch.export.export(module, (indices,))
    kf.fuse(program)(indices).sin().sum().backward()
    grad = dict(program.named_parameters())["weight"].grad
    module(indices).sin().sum().backward()
    torch.testing.assert_close(grad, module.weight.grad)
    assert grad[1].any()


@pytest.mark.parametrize("made", [lambda x: x[1:], lambda x: x.t() * 2])
def test_an_operator_that_reads_memory_of_no_argument_is_refused(made):
    x = floats(4, 6)
    with pytest.raises(kf.TraceError, match="reads memory by strides"):
        kf.fuse(lambda x: aten.as_strided.default(made(x), [4], [5], 0) * 2)(x)
    y = kf.fuse(lambda x: aten.as_strided.default(x, [4], [5], 0) * 2)(x)
    torch.testing.assert_close(y, x.as_strided((4,), (5,), 0) * 2, rtol=0, atol=0)


def test_gradients_of_attention_that_nobody_wants():
    """With a mask of the gradients that are asked for, the others are no tensors."""
    x = torch.randn(2, 3, 4, 5)
    made = tracing_aten._with_positions_first(lambda: (None, x, None, x), 3)()
    assert [t is None for t in made] == [True, False, True, False]
    assert torch.equal(made[1], x.transpose(1, 2))
    assert not made[1]._is_view()
    assert made[3] is x
