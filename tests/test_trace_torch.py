"""Functions in torch's spelling: traced and executed, they give what torch gives: values, dtypes and shapes."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest

import kfusion as kf
from kfusion import _core
from kfusion._tracing.trace import trace
from sweeps import sweep, texts
from tracing import assert_same, run

torch = pytest.importorskip("torch")
F, nn = torch.nn.functional, torch.nn

torch.manual_seed(0)
A, B = torch.randn(5, 7), torch.randn(5, 7)
V = torch.randn(7, dtype=torch.float64)
N = torch.arange(35).reshape(5, 7) % 11 - 5
J = ((torch.arange(35) % 3) + 1).reshape(5, 7).int()
H, BF = A.half(), A.bfloat16()
P = torch.tensor([4, 0, 1, 4])
IMAGE, KERNEL = torch.randn(2, 6, 9, 8), torch.randn(4, 3, 3, 2)
CHANNELS = torch.randn(6), torch.rand(6) + 0.5, torch.randn(6), torch.randn(6)
Q, K, W = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 6, 4), torch.randn(2, 3, 6, 8)
SEES = torch.rand(2, 1, 5, 6) > 0.4
SEES[0, 0, 2] = False
HIDES = torch.zeros(5, 6)
HIDES[1], HIDES[3, 2:] = -torch.inf, -torch.inf  # all keys of a row: its results are 0
CLASSES = torch.tensor([0, 3, 6, 2, 2])
IGNORED = torch.tensor([0, -100, 6, 2, 2])


def augmented(x, y):
    x = x * 1
    x += y
    x *= 2
    return x


def unpacked(pair):
    values, _ = pair
    return values


PAIRS = """
x + y ; x - 2.5 ; 3 - x ; x * y ; x / y ; x / 7 ; 1 / y ; x // y ; x % y ; x**2 ; (x < y, x >= y, x == y, x != 1)
((x > 0) & (y > 0)) | ~(x < y) ^ (x > 1) ; torch.add(x, y, alpha=2) - torch.sub(x, y, alpha=3) + torch.rsub(x, y)
x.add(y).mul(y).sub(1).neg() ; torch.div(x, y, rounding_mode="floor") ; torch.true_divide(x, y)
torch.maximum(x, y) + torch.min(x, y) + x.max(y) + torch.fmin(x, y)
torch.where(x > y, x, y) + x.where(y > 0, 0) + torch.where(x > 0, 1.0, y) ; x.masked_fill(y > 0, 2)
(x + y).masked_fill(torch.ones((), dtype=torch.bool), 2) ; augmented(x, y)
"""
CUT = ("x // y", "x % y", 'torch.div(x, y, rounding_mode="floor")')  # by a rounding off to the next integer


def test_operators(some):
    def check(text, x, y):
        f = eval(f"lambda x, y: {text}")
        try:
            expected = f(x, y)
        except RuntimeError:  # an integer tensor cannot hold x += 0.5
            with pytest.raises(TypeError):
                run(f, x, y)
            return
        got, is_half = run(f, x, y), bool({x.dtype, y.dtype} & {torch.half, torch.bfloat16})
        if is_half and text in CUT:
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        else:
            assert_same(got, expected, 4e-2 if is_half else 1e-5)

    pairs = [(A, B), (N, J), (A, V), (N, V), (H, BF), (BF, J), (A, torch.tensor(2.0).double())]
    sweep(check, some([(text, *pair) for text in texts(PAIRS) for pair in pairs], 70))


def test_unary():
    def check(name, x):
        f = getattr(torch, name)
        assert_same(run(lambda v: f(v), x), f(x))
        assert_same(run(lambda v: getattr(v, name)(), x), f(x))

    rows = [r for r in _core.op_table() if r["kind"] == "map" and r["signature"] in ("F_F", "N_N", "S_S", "A_B")]
    names = [n for row in rows for n in (row["name"], *row["other_names"]) if hasattr(torch, n)]
    sweep(check, [(n, x) for n in names if hasattr(torch.Tensor, n) for x in (A, N)])


FUNCTIONS = """
torch.sum(x) ; x.sum(1) ; torch.sum(x, dim=(0, 1), keepdim=True) ; x.sum(axis=-1, keepdims=True) ; x.sum(dim=())
x.sum(0, dtype=torch.float64) ; x.float().mean(-1, True) ; torch.prod(x, 1) ; x.amax(1) + x.amin(dim=(1,))
torch.max(x) - x.min() ; x.max(1).values ; unpacked(torch.max(x, dim=0, keepdim=True))
(x > 0).any(1) & torch.all(x > -9, dim=1) ; x.float().var(-1) ; x.float().var(False) + x.float().var()
x.float().var(1, unbiased=False) + torch.var(x.float(), dim=1, correction=0)
torch.std(x.float(), (0, 1), keepdim=True) ; torch.logsumexp(x, 1) + x.logsumexp(dim=1)
torch.norm(x.float()) + x.float().norm(dim=1, p=1).sum()
torch.linalg.norm(x.float(), dim=1) + torch.linalg.vector_norm(x.float(), dim=1)
torch.clamp(x, -1, 1) + x.clamp(min=0) + x.clamp_max(2) + torch.clip(x, max=1)
x.reshape(7, -1) + x.view(7, 5) + torch.reshape(x, (7, 5)) + x.view((7, 5))
x[None].permute(2, 0, 1) + torch.permute(x[None], dims=(2, 0, 1)) ; torch.movedim(x[:, None], 0, -1)
x.transpose(0, 1) + x.t() + x.T + x.mT + torch.swapaxes(x, 0, 1) ; x[None, :, None].flatten(1, 2) * 2
torch.flatten(x.T) + x.T.ravel() ; x[None].squeeze(0) + x[:, None].squeeze() + torch.squeeze(x, 0)
x.unsqueeze(1) + x.unsqueeze(-2) ; x[:, None].expand(-1, 3, 7) + x.unsqueeze(1).expand_as(torch.zeros(5, 3, 7))
x.flip(0) + torch.flip(x, dims=(0,)) + x.flip((0,)) ; x.split(3, dim=1) ; torch.split(x, [2, 3]) ; x.chunk(2, -1)
torch.unbind(x, 1)[2] ; torch.index_select(x, 0, torch.tensor(1))
x.narrow(1, 2, 3).select(1, 0) ; torch.index_select(x, 1, P) + x[:, P] ; torch.take(x, P) ; x[1:4, ::2][..., None, 1]
(x.double(), x.half(), x.bfloat16(), x.float(), x.bool(), x.int(), x.long())
(x.to(torch.float64), x.to(dtype=torch.half), x.to("cpu"), x.to(A), x.to(x.device, torch.float16))
x.type(torch.float64) + x.type_as(A) ; x.clone() + x.contiguous() + x.detach()
torch.zeros_like(x) + torch.ones_like(x) + torch.full_like(x, 2) ; torch.zeros_like(x, dtype=torch.float64)
(x.float() @ A.T, torch.mm(x.float(), A.T), torch.bmm(x.float()[None], A.T[None]))
(torch.mv(x.float(), A[0]), torch.dot(x.float()[0], A[0])) ; torch.addmm(A[0, :5], x.float(), A.T, beta=2, alpha=0.5)
(x.dim(), x.numel(), x.size(0), tuple(x.size()), x.ndim, len(x), x.is_floating_point(), x * 1)
(x.dtype is N.dtype, x.is_cuda, x.requires_grad, x.is_complex(), x.device.type, x * 1)
"""
OF_NN = """
F.relu(x) + nn.ReLU()(x) + F.relu6(x * 9) ; F.gelu(x) + F.gelu(x, approximate="tanh") + nn.GELU()(x)
F.silu(x) + nn.SiLU()(x) ; F.softplus(x) + F.softplus(x * 30, beta=2, threshold=10)
F.leaky_relu(x) + F.leaky_relu(x, 0.3) ; F.elu(x) + F.elu(x, alpha=0.5)
F.sigmoid(x) + nn.Sigmoid()(x) + F.tanh(x) + torch.special.expit(x) ; F.log_softmax(x, dim=1)
F.softmax(x, -1) + x.softmax(0) + torch.softmax(x, dim=1) + nn.Softmax(1)(x) ; F.softmax(x, dim=-1, dtype=torch.float64)
F.layer_norm(x, (7,)) + F.layer_norm(x, x.shape, A, B, 1e-3) ; F.rms_norm(x, (7,), A[0]) + F.rms_norm(x, [7], eps=0.1)
F.linear(x, A) + F.linear(x, A, B[0, :5]) ; F.normalize(x) + F.normalize(x, dim=0, p=1.0)
F.dropout(x, 0.5, training=False) + F.dropout(x, 0.0) ; F.mse_loss(x, B) + F.mse_loss(B, x, reduction="sum")
F.mse_loss(x, B, reduction="none") ; F.cross_entropy(x, CLASSES) ; F.cross_entropy(x, IGNORED)
F.cross_entropy(x, CLASSES, ignore_index=2) ; F.cross_entropy(x, IGNORED, reduction="sum")
F.embedding(torch.tensor([[1, 0], [4, 4]]), x)
F.cross_entropy(x[None], torch.tensor([[0, 1, 2, 3, 4, 0, 1]]), reduction="none")
"""
OF_IMAGES = """
F.conv2d(x[:, :3], KERNEL) ; F.conv2d(x[:, :3], KERNEL[..., :1], padding="same", dilation=(2, 1)) ; nn.Flatten()(x)
F.conv2d(x, KERNEL, torch.arange(4.0), stride=2, padding=(1, 2), dilation=2, groups=2)
F.conv2d(x[:, :3], KERNEL, padding="valid") ; F.batch_norm(x, None, None, *CHANNELS[2:], training=True)
F.batch_norm(x, *CHANNELS[:2]) + F.batch_norm(x, *CHANNELS, eps=0.1)
"""
ATTENTION = """
F.scaled_dot_product_attention(x, K, W) ; F.scaled_dot_product_attention(x, K, W, is_causal=True)
F.scaled_dot_product_attention(x, K, W, scale=0.3) ; F.scaled_dot_product_attention(x, K, W, attn_mask=SEES)
F.scaled_dot_product_attention(x, K, W, attn_mask=torch.ones(5, 6).cumsum(1))
F.scaled_dot_product_attention(x, K, W, HIDES)
"""
MODULES = [
    (nn.LayerNorm(7), A),
    (nn.Sequential(nn.Linear(7, 4), nn.Dropout(), nn.Linear(4, 2)).eval(), A),
    (nn.Conv2d(6, 4, 3, padding=1), IMAGE),
    (nn.BatchNorm2d(6).eval(), IMAGE),
    (nn.BatchNorm2d(6, track_running_stats=False), IMAGE),
    (nn.Sequential(nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval(), IMAGE),
]


def test_functions_methods_and_modules():
    def check(text, x, rtol=2e-5):
        f = eval(f"lambda x: {text}") if isinstance(text, str) else text
        with torch.no_grad():
            assert_same(run(f, x), f(x), rtol)

    sweep(check, [(text, x) for text in texts(FUNCTIONS) for x in (A, N)])
    sweep(check, [*((text, A) for text in texts(OF_NN)), *((text, Q) for text in texts(ATTENTION))])
    sweep(check, [(text, IMAGE, 5e-5) for text in texts(OF_IMAGES)] + [(*pair, 5e-5) for pair in MODULES])
    of_halves = ("F.gelu(x)", "x.softmax(-1)", "F.layer_norm(x, (7,))", "(x * 2.5).mean(1)")
    sweep(check, [(text, x, 2e-2) for text in of_halves for x in (H, BF)])


def test_what_torch_refuses():
    both = lambda q: F.scaled_dot_product_attention(q, K, W, HIDES, is_causal=True)  # noqa: E731
    with pytest.raises(RuntimeError):
        both(Q)
    with pytest.raises(ValueError, match="attn_mask must be None"):
        trace(both, Q)
    for f in (torch.mean, lambda x: x @ N.T.int(), lambda x: x.float() @ N.T):
        with pytest.raises(RuntimeError):
            f(N)
        with pytest.raises(TypeError):
            trace(f, N)


def test_parameters_are_captured_once():
    layer = torch.nn.Linear(7, 7)
    traced = trace(lambda x: layer(layer(x)), A)
    assert [i.captured for i in traced.inputs] == [False, True, True]
    assert traced.inputs[1].array is layer.weight
    assert traced.inputs[1].spec == kf.spec((7, 7), like="torch")


def test_pairs_are_of_torchs_classes():
    x = torch.tensor([[1.0, 3.0], [4.0, 2.0]])
    largest, smallest, both, back = kf.fuse(lambda x: (x.max(1), torch.min(x, 0), x.aminmax(), x.max(1)[::-1]))(x)
    kinds = torch.return_types
    assert (type(largest), type(smallest), type(both)) == (kinds.max, kinds.min, kinds.aminmax)
    assert (largest.values.tolist(), smallest.indices.tolist(), both.max.item()) == ([3, 4], [0, 1], 4)
    assert [v.tolist() for v in back] == [[1, 0], [3, 4]]


REFUSED = {
    r"no argument, and that the function does not name": lambda x: torch.Tensor(x.shape).copy_(x),
    r"torch\.gumbel_softmax is not traced: random": lambda x: F.gumbel_softmax(x),
    r"torch\.rand_like is not traced: random": lambda x: torch.rand_like(x),
    r"torch\.equal is not traced: values": lambda x: torch.equal(x, x),
    r"torch\.range is not traced": lambda x: torch.range(0, 3, out=x),
    r"torch\.nonzero is not traced: the shape": lambda x: torch.where(x > 0),
    r"x\[mask\] depends on data": lambda x: x[x > 0],
    r"tensor_split by a tensor is not traced": lambda x: x.tensor_split(torch.tensor(2)),
    r"x\.item is not traced": lambda x: x.sum().item(),
    r"torch\.rrelu is not traced: random": lambda x: F.rrelu(x, training=True),
    r"moving a value to cuda": lambda x: x.to("cuda"),
    r"torch\.masked_select is not traced: the shape": lambda x: torch.masked_select(x, x > 0),
    r"torch\.bincount is not traced: the shape": lambda x: torch.bincount((x > 0).long().ravel()),
    r"a tensor without data": lambda x: torch.tensor(x) + x,
    r"numpy arrays have|torch arrays have no \.swap|x\.frobnicate is not traced": lambda x: x.frobnicate(),
}


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor", "ignore:torch.range is deprecated")
def test_refused():
    def check(pattern, f):
        with pytest.raises(kf.TraceError, match=pattern):
            trace(f, A)

    sweep(check, REFUSED.items())


def test_softmax_without_a_dim_is_along_the_axis_that_torch_takes():
    for shape in ((), (7,), (3, 5), (2, 3, 4), (2, 3, 4, 5)):
        x = torch.randn(shape)
        for function in (F.softmax, F.log_softmax, F.softmin):
            with pytest.warns(UserWarning, match="deprecated"):
                want = function(x)
            with pytest.warns(UserWarning, match="deprecated"):
                torch.testing.assert_close(kf.fuse(function)(x), want)


def test_specs_need_no_torch():
    code = """
import sys, kfusion as kf
from kfusion._tracing.trace import trace
x = kf.spec((5, 7), like="torch")
t = trace(lambda x: (x.relu().sum(-1, keepdim=True), x.max(1).values, x.to(x.dtype).var(1)), x)
assert "torch" not in sys.modules
print(t.graph)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "keepdims=True" in done.stdout


def test_shapes_are_as_torchs():
    def f(x):
        assert x.shape == torch.Size((2, 3)) == x.size()
        assert x.shape.numel() == 6
        assert x.shape[:1].numel() == 2
        assert (x.shape + x.shape[:1]).numel() == 12
        return x.reshape(x.shape[::-1])

    assert kf.fuse(f)(torch.ones(2, 3)).shape == (3, 2)


# ---- images, whose channels stay last -------------------------------------------------------------------------------


def called(fused, x, about):
    """What a later call of a fused function calls of torch: about(name, arguments) of each."""
    from torch.utils._python_dispatch import TorchDispatchMode

    calls = []

    class Listening(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            calls.append(about(function.overloadpacket.__name__, args))
            return function(*args, **(kwargs or {}))

    fused(x)
    with Listening():
        fused(x)
    return calls


def copies_of(fused, x):
    """torch's functions that copy a tensor in another order, in a call."""
    return {"clone", "new_empty_strided", "copy_"} & set(called(fused, x, lambda name, _: name))


def calls_of_images(fused, x):
    """Convolutions and the like: whether channels lie innermost, and whether there is a bias."""

    def about(name, args):
        if "conv" in name or "pool" in name:
            is_last = args[0].is_contiguous(memory_format=torch.channels_last)
            return is_last, len(args) > 2 and isinstance(args[2], torch.Tensor)
        return None

    return [facts for facts in called(fused, x, about) if facts]


def test_channels_stay_last():
    """Between kernels images lie as torch has them: no copy in another order. In a ConvNeXt what layer_norm makes has
    the channels innermost, and so has what convolutions make.
    """
    torch.manual_seed(0)
    wide, deep = (torch.randn(s).to(memory_format=torch.channels_last) for s in ((8, 6, 3, 3), (5, 8, 1, 1)))
    stem, apart, down = torch.randn(8, 3, 4, 4), torch.randn(8, 1, 3, 3), torch.randn(6, 8, 2, 2)
    bias, up, narrow = torch.randn(8), torch.randn(16, 8) / 4, torch.randn(8, 16) / 4

    def views(x):
        y = F.relu(F.conv2d(x, wide, padding=1) * 2 + bias[:, None, None])
        z = F.conv2d(y, deep)
        z = (z + 1) * torch.sigmoid(z)
        return F.layer_norm(z.permute(0, 2, 3, 1), (5,)), z.flip(2), z[:, 1:4, ::2].sum(1), z.reshape(len(z), -1) * 2

    def convnext(x):
        x = F.conv2d(x, stem, bias, stride=4)
        x = F.layer_norm(x.permute(0, 2, 3, 1), (8,), bias, bias).permute(0, 3, 1, 2)
        for _ in range(2):
            y = F.conv2d(x, apart, bias, padding=1, groups=8).permute(0, 2, 3, 1)
            y = F.linear(F.gelu(F.linear(F.layer_norm(y, (8,), bias, bias), up)), narrow) * bias
            x = x + y.permute(0, 3, 1, 2)
        y = F.max_pool2d(F.relu(F.conv2d(x, down, bias[:6], stride=2)), 2)
        return F.layer_norm(y.mean((2, 3)), (6,))

    images = [torch.randn(n, 6, 9, 7).to(memory_format=torch.channels_last) for n in (1, 2)]
    for f, x in ((views, images[0]), (views, images[1]), (convnext, torch.randn(2, 3, 32, 24))):
        fused = kf.fuse(f)
        torch.testing.assert_close(fused(x), f(x), rtol=1e-4, atol=1e-5)
        assert not copies_of(fused, x)


def joined_images(weights):
    """Two convolutions of one image, joined and read by further ones, as in a UNet."""
    w, v, u, bias = weights

    def f(x):
        y = torch.relu(F.conv2d(x, w, bias, padding=1))
        z = torch.cat([y, torch.relu(F.conv2d(y, v, bias, padding=1) + 1)], 1)
        return F.conv2d(F.max_pool2d(z, 2), u), F.conv2d(z, u, stride=2)

    return f


def weights_of_images():
    return torch.randn(8, 8, 3, 3), torch.randn(8, 8, 3, 3), torch.randn(8, 16, 3, 3), torch.randn(8)


def test_joined_images_keep_their_channels_innermost():
    f = joined_images([w.to(memory_format=torch.channels_last) if w.dim() == 4 else w for w in weights_of_images()])
    x = torch.randn(2, 8, 10, 12).to(memory_format=torch.channels_last)
    fused = kf.fuse(f)
    torch.testing.assert_close(fused(x), f(x), rtol=1e-4, atol=1e-4)
    assert all(is_last for is_last, _ in calls_of_images(fused, x))


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_images_of_half_types_lie_channels_last_on_a_gpu(dtype):
    """Tensor cores want that. The bias is in the kernel that follows, where torch would take one of its own."""
    weights = [(w / 8).to(getattr(torch, dtype)).cuda() for w in weights_of_images()]
    f, x = joined_images(weights), torch.randn(2, 8, 10, 12, dtype=getattr(torch, dtype), device="cuda")
    fused = kf.fuse(f)
    exact = joined_images([w.double() for w in weights])(x.double())
    for got, eager, want in zip(fused(x), f(x), exact, strict=True):
        assert got.is_contiguous()
        assert (got - want).norm() <= 1.5 * (eager - want).norm() + 1e-3 * want.norm()
    calls = calls_of_images(fused, x)
    assert all(is_last for is_last, _ in calls)
    assert not any(has_bias for _, has_bias in calls)


def test_what_torch_makes_is_the_result():
    """Not copied to another array: the last layer of a model may be its largest."""
    x, w, b = torch.randn(2, 3, 8, 8), torch.randn(5, 3, 3, 3), torch.randn(5)
    wide = torch.randn(16, 8)

    def check(function, is_copied=False):
        f = kf.fuse(function)
        torch.testing.assert_close(f(x), function(x), rtol=1e-4, atol=1e-4)
        assert is_copied or not copies_of(f, x)
        first, second = f(x), f(x + 1)
        torch.testing.assert_close(first, function(x), rtol=1e-4, atol=1e-4)  # its own memory
        torch.testing.assert_close(second, function(x + 1), rtol=1e-4, atol=1e-4)

    rows = [
        (lambda x: F.conv2d(x * 2, w),),
        (lambda x: F.conv2d(x * 2, w, b),),
        (lambda x: F.linear(x + 1, wide, torch.ones(16)),),
        (lambda x: (y := F.conv2d(x, w, b), torch.relu(y) + 1, y.sum(1)),),
        (lambda x: (y := F.linear(x, wide, torch.ones(16)), y),),
        (lambda x: torch.cat([F.conv2d(x, w, b), F.conv2d(x * 2, w, b)], 1), True),
    ]
    sweep(check, rows)


def test_convolutions_of_themselves_and_of_complex_numbers():
    x, bias = torch.randn(2, 2, 5, 5).to(memory_format=torch.channels_last), torch.randn(2)
    z = torch.complex(torch.randn(1, 2, 6, 6), torch.randn(1, 2, 6, 6))
    for f, argument in ((lambda x: F.conv2d(x, x, bias) * 2, x), (lambda z: F.conv2d(z, z).real * 2, z)):
        torch.testing.assert_close(kf.fuse(f)(argument), f(argument), rtol=1e-4, atol=1e-4)


# ---- what torch says while it is traced -----------------------------------------------------------------------------


def test_torch_compiles_only_what_looks_at_values():
    """A model that may look leaves out a mask that is all true; one that may not look gets its mask."""

    def scaled(x, *, looks):
        if torch.compiler.is_compiling():
            return x * 3
        return x * 2 if not looks or x.sum() > 0 else x

    x = torch.ones(3)
    assert kf.fuse(functools.partial(scaled, looks=False))(x).tolist() == [2, 2, 2]
    assert kf.fuse(functools.partial(scaled, looks=True))(x).tolist() == [3, 3, 3]
    assert not torch.compiler.is_compiling()


def test_the_refusal_is_of_what_runs_by_itself():
    def refused(x):
        if torch.compiler.is_compiling():
            return int(x.sum())
        return x if x.max() > 0 else -x

    with pytest.raises(kf.TraceError, match=r"x\.max\(\) > 0"):
        kf.fuse(refused)(torch.ones(3))


def test_rms_norm_without_eps_adds_what_torch_adds():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x = (torch.randn(5, 64) * 2.0**-10).to(dtype)
        got = kf.fuse(lambda x: F.rms_norm(x, (64,)))(x)
        torch.testing.assert_close(got, F.rms_norm(x, (64,)), rtol=2.0**-7 if x.itemsize == 2 else 1e-6, atol=1e-6)
