"""torch's operators, `kfusion._tracing.aten`: the table, alone and in programs of torch.export, and functions that
torch makes of its operators, which are kernels."""

from __future__ import annotations

import copy
import warnings

import pytest

import kfusion as kf
from kfusion._tracing import aten as tracing_aten
from sweeps import refusals, sweep, texts

torch = pytest.importorskip("torch")
aten_sweep = pytest.importorskip("aten_sweep")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
aten, F = torch.ops.aten, torch.nn.functional
# What no step of a plan can compute: Python's numbers, shapes that follow from data, or nothing at all.
IMPOSSIBLE = ("depends on data", "gives None", "complex32", "it gives a value", "where it was traced with")


def floats(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(1))


X, Y, W, MASK = floats(4, 6), floats(4, 6), floats(6), floats(4, 6) > 0
IMAGE, KERNEL = floats(2, 4, 5, 5), floats(3, 4, 3, 3)
ONES = [1, 1]
# Operators that must be kernels, with arguments. Rows of aten_rows.py and what models consist of.
KERNELS = """
add.Tensor(X, Y, alpha=2) ; rsub.Scalar(X, 1.5) ; div.Tensor_mode(X, Y, rounding_mode="floor") ; pow.Scalar(2.0, X)
clamp.default(X, -0.5) ; hardtanh.default(X) ; elu.default(X, 0.7, 1.1, 0.9) ; gelu.default(X, approximate="tanh")
where.self(MASK, X, Y) ; threshold_backward.default(X, Y, 0.1) ; tanh_backward.default(X, Y.tanh())
sigmoid_backward.default(X, Y.sigmoid()) ; sum.dim_IntList(X, [0], True) ; mean.dim(X, [-1])
var_mean.correction(X, [1], correction=0, keepdim=True) ; amax.default(X, [1], True) ; max.dim(X, 1)
argmax.default(X, 1) ; any.dim(MASK, 1) ; _softmax.default(X, 1, False) ; _log_softmax.default(X, 0, False)
_softmax_backward_data.default(X, Y.softmax(1), 1, torch.float32)
_log_softmax_backward_data.default(X, Y.log_softmax(1), 1, torch.float32)
native_layer_norm.default(X, [6], W, W, 1e-5)
native_group_norm.default(IMAGE, floats(4), floats(4), 2, 4, 25, 2, 1e-5)
_native_batch_norm_legit_functional.default(IMAGE, *[floats(4)] * 3, floats(4).abs(), True, 0.1, 1e-5)
_native_batch_norm_legit.no_stats(IMAGE, None, None, True, 0.1, 1e-5)
embedding.default(X, torch.tensor([[0, 3], [1, 1]])) ; slice.Tensor(X, 1, 1, 9223372036854775807, 2)
select.int(X, 1, -1) ; slice_scatter.default(X, floats(2, 6), 0, 1, 3) ; select_scatter.default(X, W, 0, 2)
slice_backward.default(floats(2, 6), [4, 6], 0, 1, 3, 1) ; select_backward.default(W, [4, 6], 0, -1)
cat.default([X, Y], 1) ; split.Tensor(X, 4, 1) ; split_with_sizes.default(X, [2, 4], 1)
constant_pad_nd.default(X, [1, 2, -1, 0], 0.5) ; expand.default(W, [3, -1]) ; permute.default(IMAGE, [0, 2, 3, 1])
repeat.default(W, [2, 2]) ; _to_copy.default(X, dtype=torch.float64) ; full_like.default(X, 2, dtype=torch.int64)
new_zeros.default(X, [2, 3]) ; native_dropout_backward.default(X, MASK, 1.25)
"""
OTHERS = """
mm.default(X, floats(6, 3)) ; addmm.default(floats(3), X, floats(6, 3), alpha=0.5) ; cumsum.default(X, 1)
bmm.default(floats(2, 3, 4), floats(2, 4, 5)) ; sort.default(X, 1) ; max_pool2d_with_indices.default(IMAGE, [2, 2])
convolution.default(IMAGE, KERNEL, floats(3), ONES, ONES, ONES, False, [0, 0], 1)
convolution.default(IMAGE, floats(4, 3, 3, 3), None, ONES, ONES, ONES, True, [0, 0], 1)
index.Tensor(X, [None, torch.tensor([0, 5])])
embedding_dense_backward.default(floats(2, 2, 6), torch.tensor([[0, 3], [1, 1]]), 4, -1, False)
"""


def test_operators_give_torchs_results():
    def check(text, *who):
        name, _, arguments = text.partition("(")
        args, kwargs = eval(f"(lambda *args, **kwargs: (args, kwargs))({arguments}")
        overload, _, which = name.partition(".")
        assert aten_sweep.check(aten_sweep.Sample(getattr(getattr(aten, overload), which), args, kwargs)) in who

    sweep(check, [(text, "kernels") for text in texts(KERNELS)])
    sweep(check, [(text, "kernels", "library") for text in texts(OTHERS)])
    plan = kf.plan(lambda x, w: torch.relu(aten.mm.default(x, w)), X, floats(6, 3))
    assert "matmul" in str(plan)
    assert plan.fused.launches == 1


def test_operators_that_write_or_read_memory():
    def f(x):
        y = x * 1
        aten.add_.Tensor(y, 2.0)
        return y

    torch.testing.assert_close(kf.fuse(f)(X), X + 2)
    strided = lambda x: aten.as_strided.default(x, [4], [5], 0) * 2  # noqa: E731
    torch.testing.assert_close(kf.fuse(strided)(X), X.as_strided((4,), (5,), 0) * 2, rtol=0, atol=0)
    refused = (lambda x: strided(x[1:]), lambda x: strided(x.t() * 2))  # of no argument
    refusals([(lambda f=f: kf.fuse(f)(X), kf.TraceError, "reads memory by strides") for f in refused])


@pytest.mark.slow
def test_operators_that_torchs_tests_sample(rng, is_sampled):
    """In a sample of the tests about an eighth of them, which is drawn."""
    wrong, seen = [], set()
    for sample in aten_sweep.samples(most=1):
        if not aten_sweep.usable(sample) or aten_sweep.kind(sample) in seen:
            continue
        seen.add(aten_sweep.kind(sample))
        if is_sampled and rng.integers(8):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = aten_sweep.check(sample)
        if found not in ("kernels", "library") and not any(text in found for text in IMPOSSIBLE):
            wrong.append((str(sample.op), found))
    assert len(seen) > 1000
    assert not wrong


# ---- programs of torch.export ---------------------------------------------------------------------------------------


class Layer(torch.nn.Module):
    """Linear layers and norms with parameters and buffers."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8)
        self.register_buffer("scale", torch.full((8,), 0.5))

    def forward(self, x):
        return torch.softmax(self.norm(torch.nn.functional.gelu(self.first(x))) * self.scale, -1)


def test_exported_programs_run():
    model = Layer().eval()
    program = torch.export.export(model, (X,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    for fused in (kf.fuse(program), kf.fuse(program.run_decompositions())):
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


def test_what_is_made_of_no_argument_is_each_calls_own():
    x, named = torch.ones(3), torch.arange(4)
    program = torch.export.export(_Constants(), (x,))
    for form in (program, program.module(), _Constants().forward):
        ours = kf.fuse(form)
        for result in ours(x):
            result.zero_().add_(77)
        for y, expected in zip(ours(x), _Constants()(x), strict=True):
            torch.testing.assert_close(y, expected, rtol=0, atol=0)
    assert kf.fuse(lambda x: (x + 1, named))(x)[1] is named  # a tensor that a function names


def test_embeddings_have_torchs_gradients():
    indices, weight = torch.tensor([0, 1, 2, 0]), floats(5, 3)
    for options in ({"padding_idx": 0}, {"padding_idx": -3}, {"scale_grad_by_freq": True}):

        def loss(weight, options=options):
            return F.embedding(indices, weight, **options).sin().sum()

        ours, expected = weight.clone().requires_grad_(), torch.func.grad(loss)(weight)
        kf.fuse(loss)(ours).backward()
        torch.testing.assert_close([kf.grad(loss)(weight), ours.grad], [expected, expected])
    module = torch.nn.Embedding(5, 3, padding_idx=0)
    program = torch.export.export(module, (indices,))
    kf.fuse(program)(indices).sin().sum().backward()
    grad = dict(program.named_parameters())["weight"].grad
    module(indices).sin().sum().backward()
    torch.testing.assert_close(grad, module.weight.grad)
    assert grad[1].any()


def test_gradients_of_attention_that_nobody_wants():
    """With a mask of the gradients that are asked for, the others are no tensors."""
    x = torch.randn(2, 3, 4, 5)
    made = tracing_aten._with_positions_first(lambda: (None, x, None, x), 3)()
    assert [t is None for t in made] == [True, False, True, False]
    assert torch.equal(made[1], x.transpose(1, 2))
    assert not made[1]._is_view()
    assert made[3] is x


# ---- functions that torch makes of its operators --------------------------------------------------------------------

FUNCTIONS = """
torch.einsum("bij,bkj->bik", x, y) ; torch.einsum("i,i->i", x[0, 0], y[0, 0]) ; torch.inner(x, y)
torch.tensordot(x, y, dims=([1, 2], [1, 2])) ; torch.outer(x[0, 0], y[0, 1]) ; torch.kron(x[0], y[0])
torch.linalg.vecdot(x, y) ; torch.linalg.multi_dot((x[0], y[0].T, x[1])) ; torch.fft.fftshift(x + y)
x.inner(y).reshape_as(x.inner(x)) ; torch.slice_scatter(x, y[:, :2], 1, 1, 3)
"""
# torch.kl_div does not reduce by default, and torch.batch_norm takes weights first.
OF_TWO_SPELLINGS = """
torch.kl_div(x, y.exp()) ; torch.kl_div(x, y.exp(), reduction=2) ; torch.kl_div(x, y.exp(), 1)
torch.binary_cross_entropy_with_logits(x, y) ; torch.hinge_embedding_loss(x, y.sign())
torch.margin_ranking_loss(x, y, y.sign()) ; torch.cosine_embedding_loss(x[0], y[0], y[0, :, 0].sign())
torch.triplet_margin_loss(x, y, x * y) ; torch.poisson_nll_loss(x, y, True, False, 1e-8, 1)
torch.batch_norm(x, *norms(x), None, None, True, 0.1, 1e-5, False) ; torch.group_norm(x, 1, *norms(x), 1e-5, False)
torch.instance_norm(x, *norms(x), None, None, True, 0.1, 1e-5, False)
"""


def einsum(x, y):
    return torch.einsum("bij,bkj->bik", x, y)


def norms(x):
    return x.new_ones(x.shape[1]), x.new_zeros(x.shape[1])


def arrays(rng, *shape):
    return [torch.from_numpy(rng.standard_normal(shape)).float() for _ in range(2)]


def calls_of(f, *args):
    return [node["op"] for node in kf.trace(f, *args).to_dict()["nodes"]].count("library_call")


def test_they_are_kernels(rng):
    def check(text, shapes=((2, 5, 4), (2, 5, 3), (3, 7, 6), (3, 5, 8))):  # from the second one on of sizes
        f = eval(f"lambda x, y: {text}")
        fused = kf.fuse(f)
        for shape in shapes:
            args = arrays(rng, *shape)
            torch.testing.assert_close(fused(*args), f(*args))
        assert len(shapes) == 1 or not calls_of(f, *args)

    sweep(check, [(text,) for text in texts(FUNCTIONS)])
    sweep(check, [(text, [(3, 4, 5)]) for text in texts(OF_TWO_SPELLINGS)])
    for name in ("einsum(x, y)", "torch.kron(x[0], y[0])", "torch.fft.fftshift(x + y)"):
        f, args = eval(f"lambda x, y: {name}"), [a.requires_grad_() for a in arrays(rng, 2, 5, 4)]
        got, want = (torch.autograd.grad((g(*args) ** 2).sum(), args) for g in (kf.fuse(f), f))
        torch.testing.assert_close(got, want)


def test_stages_and_devices_that_are_not_there(rng):
    plan = kf.plan(lambda x, y: einsum(x, y).relu(), *arrays(rng, 2, 5, 4))
    assert [g.label for g in plan.groups] == ["einsum+relu"]
    x, y = (kf.spec((2, 64, 64), "bfloat16", like="torch") for _ in range(2))
    plan = kf.plan(lambda x, y: einsum(x, y) * 2, x, y, device="H200")
    assert [g.label for g in plan.groups] == ["einsum+multiply"]
    with torch.device("meta"):
        tensors = [torch.empty(2, 64, 64) for _ in range(2)]
    assert [g.label for g in kf.plan(einsum, *tensors, device="H200").groups] == ["einsum"]


def test_numbers_dtypes_and_views(rng):
    x, y = arrays(rng, 2, 5, 4)
    spaced = lambda x, spacing: torch.gradient(x, spacing=spacing, dim=1)[0]  # noqa: E731
    fused = kf.fuse(spaced)
    for spacing in (0.5, 0.25, 0.5):  # count by their values
        torch.testing.assert_close(fused(x, spacing), spaced(x, spacing))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = kf.fuse(einsum)(x, y)
        torch.testing.assert_close(got, einsum(x, y))
    assert got.dtype == torch.bfloat16
    with pytest.raises(RuntimeError, match=r"kfusion\.constant_pad_nd: value cannot be converted"):
        kf.fuse(lambda x: torch.constant_pad_nd(x, (1, 1), 1e30))(x.half())

    def views(x, y):
        made = x + 1
        diagonal, same = torch.atleast_3d(made[0]), torch.broadcast_tensors(made, y)[0]
        made.mul_(2)
        return diagonal, same

    torch.testing.assert_close(kf.fuse(views)(x, y), views(x, y))


def test_what_has_an_operator_without_a_form_is_one_call(rng):
    """None of its operators is traced where another one has no form, nor those of many steps; nor are those of
    torch whose further results have another dtype on each device, and no gradients.
    """
    x, _ = arrays(rng, 2, 8, 4)
    names = [n["op"] for n in kf.trace(lambda x: F.local_response_norm(x, 2), x).to_dict()["nodes"]]
    assert names == ["input", "library_call"]
    network = torch.nn.RNN(4, 4)
    assert calls_of(lambda x: network(x)[0], x)
    f, x = lambda x: torch.native_layer_norm(x, (4,), None, None, 1e-5), x[0].requires_grad_()
    got, want = kf.fuse(f)(x), f(x)
    torch.testing.assert_close(got, want)
    assert [t.requires_grad for t in got] == [t.requires_grad for t in want]
    with pytest.raises((NotImplementedError, ValueError, RuntimeError, TypeError)):  # as torch does
        kf.fuse(lambda x: torch._softmax(x, 1, False))(torch.arange(6).reshape(2, 3))


def test_what_is_scattered(rng):
    def check(f, bad):
        """What torch refuses after other sizes is refused."""
        fused = kf.fuse(f)
        for sizes in ((4, 2), (5, 2), (6, 2)):
            args = [arrays(rng, n, 3)[0] for n in sizes]
            torch.testing.assert_close(fused(*args), f(*args))
        for sizes in bad:
            args = [arrays(rng, n, 3)[0] for n in sizes]
            error = (RuntimeError, IndexError), r"size equal|out of range"
            refusals([(lambda g=g, args=args: g(*args), *error) for g in (f, fused)])

    rows = [
        (lambda x, y: torch.slice_scatter(x, y, 0, 1, 3), [(6, 3), (7, 1)]),
        (lambda x, y: torch.slice_scatter(x, y, 0, -2), [(7, 3)]),
        (lambda x, y: torch.select_scatter(x, y[0], 0, 2), [(2, 2)]),
        (lambda x, y: torch.select_scatter(x, y[0], 0, -3), [(2, 2)]),
    ]
    sweep(check, rows)
    of_dtypes = lambda x, y: (torch.slice_scatter(x, y[:2], 0, 1, 3), torch.select_scatter(x, y[0], 0, 1))  # noqa: E731
    for dtypes in ((torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)):
        x, y = (a.to(d) for a, d in zip(arrays(rng, 5, 3), dtypes, strict=True))
        for is_cast in (False, True):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_cast):
                torch.testing.assert_close(kf.fuse(of_dtypes)(x, y), of_dtypes(x, y), rtol=0, atol=0)
