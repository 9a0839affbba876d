"""Convolutions and what follows them, in one kernel of cuDNN's, or as products where their windows have one element:
plans anywhere, results on a GPU against float64."""

from __future__ import annotations

import concurrent.futures

import pytest

import kfusion as kf
from kinds import HAVE_GPU
from sweeps import sweep

torch = pytest.importorskip("torch")
F = torch.nn.functional
CAPABILITY = torch.cuda.get_device_capability() if HAVE_GPU and torch.cuda.is_available() else (0, 0)
needs_gpu = pytest.mark.skipif(CAPABILITY < (8, 0), reason="needs a GPU of compute capability 8.0")
needs_hopper = pytest.mark.skipif(CAPABILITY != (9, 0), reason="needs a GPU of compute capability 9.0")
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
LAST = torch.channels_last


def spec(*shape, dtype="float16"):
    """An array that stands for one on a GPU, with its channels innermost."""
    x = torch.empty(shape, dtype=getattr(torch, dtype))
    return x.to(memory_format=LAST) if len(shape) == 4 else x


def image(x):
    """An image of pixels: their channels are innermost."""
    return x.permute(0, 3, 1, 2)


def relu(x, w, *b, **how):
    return F.relu(F.conv2d(x, w, *b, **how))


def normalised(x, w, mean, variance, weight, bias, residual):
    return F.relu(F.batch_norm(F.conv2d(x, w, padding=1), mean, variance, weight, bias) + residual)


STATISTICS = [spec(64, dtype="float32")] * 4
NORMALISED = (spec(32, 64, 56, 56), spec(64, 64, 3, 3), *STATISTICS, spec(32, 64, 56, 56))
# Numbers and vectors that begin between multiples of 16 bytes.
# Numbers and vectors that begin between multiples of 16 bytes.
INSIDE = {
    "two numbers": (lambda x, w, g: F.relu(F.conv2d(x, w, padding=1) * g[1] + g[3]), "float16"),
    "a bias": (lambda x, w, g: F.relu(F.conv2d(x, w, padding=1) + g[1:].view(1, -1, 1, 1)), "float16"),
    "a number of float32": (lambda x, w, g: F.relu(F.conv2d(x, w)).float() * g[3], "float32"),
}

# ---- plans ----------------------------------------------------------------------------------------------------------


def planned(f, *specs, device="H100", executors=("cudnn", "array_library", "cuda")):
    return kf.FusedFunction(f, {"executors": list(executors)}).plan(*specs, device=device)


def executors_of(p):
    return [g.executor for g in p.groups]


def test_batch_norm_residual_and_relu_are_one_kernel():
    for device in ("H100", "A100", "RTX 4090", "B200"):  # on every GPU since Ampere
        p = planned(normalised, *NORMALISED, device=device)
        assert (executors_of(p), p.groups[0].kind) == (["cudnn"], "conv2d")
    # Nothing is folded into weights: subtract, two products, sum, residual, relu.
    assert sum(f.count for f in p.fused.flops if f.unit != "matrix") >= 6 * 32 * 64 * 56 * 56
    assert executors_of(planned(normalised, *NORMALISED, device="T4")) == ["array_library", "cuda"]
    alone = planned(lambda x, w: F.conv2d(x, w), spec(2, 8, 9, 9), spec(8, 8, 3, 3))
    assert executors_of(alone) == ["array_library"]
    for f, dtype in INSIDE.values():  # what lies inside of other arrays
        x, w = spec(8, 64, 32, 32), spec(64, 64, 3, 3)
        for device in ("H100", "A100"):
            for xs in ((x, w), (x.contiguous(), w.contiguous())):
                assert executors_of(planned(f, *xs, spec(65, dtype=dtype), device=device)) == ["cudnn"]


def test_says_what_it_does_not_compute():
    def check(f, x, w, why):
        p = planned(f, x, w)
        assert len(p.groups) == 2
        assert any(why in r.sentence for r in p.refusals), [r.sentence for r in p.refusals]

    rows = [
        (relu, spec(2, 3, 9, 9), spec(8, 3, 3, 3), "channels are a multiple of 8"),
        (relu, spec(2, 8, 9, 9), spec(9, 8, 3, 3), "channels are a multiple of 8"),
        (lambda x, w: relu(x, w, groups=2), spec(2, 16, 9, 9), spec(8, 8, 3, 3), "of one group"),
        (lambda x, w: F.hardtanh(F.conv2d(x, w)), spec(2, 8, 9, 9), spec(8, 8, 3, 3), "computes no clip"),
        (relu, spec(2, 8, 9, 9, dtype="float32"), spec(8, 8, 3, 3, dtype="float32"), "of half types"),
    ]
    sweep(check, rows)


def test_windows_of_one_element_are_products():
    def of(*shape, dtype="float16"):
        return kf.spec(shape, dtype, like="torch")

    def normed(y, v):
        return F.batch_norm(y, v[0], v[1], v[2], v[3])

    def plan(f, *specs, device="H100"):
        return kf.plan(f, *specs, device=device, executors="available")

    pixels, w, v, r = of(8, 14, 14, 64), of(128, 64, 1, 1), of(4, 128, dtype="float32"), of(8, 14, 14, 128)
    layer = lambda x, w, v, r: F.relu(normed(F.conv2d(image(x), w), v) + image(r))  # noqa: E731
    (group,) = plan(layer, pixels, w, v, r).groups
    assert (group.executor, group.kind) == ("tensor_cores", "matmul")
    # A bias and relu are an epilogue of the library elsewhere.
    (group,) = plan(lambda x, w, b: relu(image(x), w, b), pixels, w, of(128), device="A100 80GB").groups
    assert group.executor == "cublaslt"
    block = lambda x, w, v, w2: relu(F.relu(normed(F.conv2d(image(x), w), v)), w2)  # noqa: E731
    assert executors_of(plan(block, pixels, w, v, of(64, 128, 1, 1))) == ["tensor_cores"] * 2
    # Maps of a product are in its kernel, whatever order they are read in.
    heads = lambda x, w, b: kf.tanh(x @ w + b).reshape(4, 128, 8, 64).transpose(1, 2)  # noqa: E731
    assert executors_of(plan(heads, of(4, 128, 256), of(256, 512), of(512))) == ["tensor_cores"]
    wide = of(8, 14, 14, 64, dtype="float32"), of(128, 64, 1, 1, dtype="float32")
    square = of(8, 64, 64, 64)
    stay = [
        (lambda x, w: relu(image(x), w, stride=2), square, w), (lambda x, w: relu(image(x), w, padding=1), square, w),
        (relu, square, w), (lambda x, w: relu(image(x), w), *wide),
    ]  # fmt: skip
    for f, *specs in stay:
        assert plan(f, *specs).groups[0].kind == "conv2d"
    of_a_cpu = plan(lambda x, w: relu(image(x), w), pixels, w, device="EPYC-9654")
    assert of_a_cpu.groups[0].kind == "conv2d"


# ---- results on a GPU -----------------------------------------------------------------------------------------------


def draw(*shape, dtype="float16", scale=1.0, last=True):
    x = (torch.randn(*shape, device="cuda") * scale).to(DTYPES[dtype])
    return x.to(memory_format=LAST) if last and len(shape) == 4 else x


def check(f, *arguments, dtype="float16", kernels=1, out=None):
    fused = kf.FusedFunction(f, {"executors": ["cudnn", "cuda"], "by_time": False})
    plan = fused.plan(*arguments)
    executors = [g.executor for g in plan.groups]
    assert executors.count("cudnn") == 1, executors
    assert len(executors) == kernels, executors
    keywords = {} if out is None else {"out": out}
    got, again = fused(*arguments, **keywords), fused(*arguments)
    assert torch.equal(got.nan_to_num(), again.nan_to_num())
    wide = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in arguments]
    want = f(*wide)
    assert got.shape == want.shape
    assert torch.equal(got.isnan(), want.isnan())
    finite = want.isfinite()
    error = (got.double() - want)[finite].norm() / want[finite].norm()
    assert error <= 2 * ROUNDING[dtype], error
    assert ((got.double() - want)[finite].abs() <= 8 * ROUNDING[dtype] * want[finite].abs() + 2e-2).all()
    return got


def batch_norm_of(channels):
    return [torch.randn(channels, device="cuda"), torch.rand(channels, device="cuda") + 0.5,
            torch.rand(channels, device="cuda") + 0.5, torch.randn(channels, device="cuda")]  # fmt: skip


CASES = [  # images, channels, height, width, results' channels, window, stride, padding, dilation
    (2, 16, 9, 11, 24, 3, 1, 1, 1), (1, 8, 5, 5, 8, 1, 1, 0, 1), (3, 32, 14, 14, 64, 3, 2, 1, 1),
    (2, 64, 28, 28, 32, 1, 1, 0, 1), (2, 24, 17, 13, 40, 5, 1, 2, 1), (2, 16, 15, 15, 16, 3, 1, 2, 2),
    (4, 256, 7, 7, 512, 3, 1, 1, 1), (2, 64, 56, 56, 64, 1, 2, 0, 1), (1, 128, 1, 9, 8, 1, 1, 0, 1),
]  # fmt: skip


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_results(case, dtype):
    n, c, h, w, k, window, *rest = case
    how = dict(zip(("stride", "padding", "dilation"), rest, strict=True))

    def arguments(last):
        weight = draw(k, c, window, window, dtype=dtype, scale=(c * window * window) ** -0.5, last=last)
        return draw(n, c, h, w, dtype=dtype, last=last), weight

    def batch_normed(x, w, residual, mean, variance, weight, bias):
        return F.relu(F.batch_norm(F.conv2d(x, w, **how), mean, variance, weight, bias) + residual)

    (x, weight), b = arguments(last=True), draw(k, dtype=dtype)
    residual = torch.randn_like(F.conv2d(x, weight, **how))
    check(lambda x, w, b: relu(x, w, b, **how), x, weight, b, dtype=dtype)
    check(lambda x, w, b: F.silu(F.conv2d(x, w, b, **how)), x, weight, b, dtype=dtype)
    got = check(batch_normed, x, weight, residual, *batch_norm_of(k), dtype=dtype)
    assert got.is_contiguous(memory_format=LAST)
    x, weight = arguments(last=False)  # channels outermost
    for laid in (weight, weight.to(memory_format=LAST)):
        check(lambda x, w, r: F.relu(F.conv2d(x, w, **how) + r), x, laid, residual.contiguous(), dtype=dtype)


def padded(x, w):
    return relu(x, w, padding=1)


def require_near(got, want, bound=2e-3):
    assert (got.double() - want).norm() / want.norm() < bound


@pytest.mark.cuda
@needs_gpu
def test_nan_views_and_out():
    x, w, bias = draw(2, 16, 9, 9), draw(16, 16, 3, 3, scale=0.1), draw(16)
    bias[3], bias[4], bias[5] = float("nan"), float("inf"), -float("inf")
    check(relu, x, w, bias)
    w = draw(24, 16, 3, 3, scale=0.1)
    for layout in (LAST, torch.contiguous_format):
        out = torch.empty(2, 24, 9, 9, device="cuda", dtype=torch.float16, memory_format=layout)
        assert check(padded, x, w, out=out) is out
    x = draw(2, 32, 12, 12)
    views = (
        x[:, 8:24], x[:, :16, 1:, 2:-1], x[:, :16].transpose(2, 3), x[:1, :16].expand(3, -1, -1, -1).contiguous(),
    )  # fmt: skip
    for view in views:
        check(padded, view, w)


@pytest.mark.cuda
@needs_gpu
def test_misaligned_arrays():
    def inside(*shape, skipped):
        n = torch.Size(shape).numel()
        return image(torch.randn(n + skipped, device="cuda").half()[skipped:].view(shape))

    x, w, out = inside(2, 9, 9, 16, skipped=1), inside(16, 3, 3, 16, skipped=3) * 0.1, inside(2, 9, 9, 16, skipped=1)
    check(lambda x, w, b: relu(x, w, b, padding=1), x, w, torch.randn(17, device="cuda").half()[1:], out=out)
    for f, of_numbers in INSIDE.values():
        for dtype in DTYPES:
            for last in (True, False):
                x, w = draw(2, 16, 9, 9, dtype=dtype, last=last), draw(24, 16, 3, 3, dtype=dtype, scale=0.1, last=last)
                numbers = torch.rand(25, device="cuda") + 0.5  # of negative ones relu may leave nothing to compare
                check(f, x, w, numbers if of_numbers == "float32" else numbers.to(DTYPES[dtype]), dtype=dtype)


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("is_first", [True, False])
def test_calls_in_cuda_graphs(is_first):
    x, w = draw(3, 16, 13, 11), draw(40, 16, 3, 3, scale=0.1)
    fused = kf.FusedFunction(padded, {"executors": ["cudnn", "cuda"], "by_time": False})
    assert executors_of(fused.plan(x, w)) == ["cudnn"]
    graph, out = torch.cuda.CUDAGraph(), torch.empty_like(F.conv2d(x, w, padding=1))
    if not is_first:
        fused(x, w, out=out)
    with torch.cuda.graph(graph):
        fused(x, w, out=out)
    x.copy_(draw(3, 16, 13, 11))
    graph.replay()
    require_near(out, padded(x.double(), w.double()))
    assert torch.equal(out, fused(x, w))


@pytest.mark.cuda
@needs_gpu
def test_chains_modules_and_threads():
    x, w, v = draw(2, 16, 9, 9), draw(32, 16, 3, 3, scale=0.1), draw(16, 32, 3, 3, scale=0.1)
    options = {"executors": ["cudnn", "cuda"], "by_time": False}
    f = kf.FusedFunction(lambda x, w, v: F.relu(F.conv2d(padded(x, w), v, padding=1) + x), options)
    assert executors_of(f.plan(x, w, v)) == ["cudnn", "cudnn"]
    require_near(f(x, w, v), f.__wrapped__(x.double(), w.double(), v.double()))
    module = torch.nn.Sequential(torch.nn.Conv2d(16, 24, 3), torch.nn.BatchNorm2d(24), torch.nn.ReLU())
    module = module.cuda().half().eval().to(memory_format=LAST)
    fused = kf.fuse(module)
    with torch.no_grad():
        for _ in range(2):  # weights and statistics are read by every call
            assert (fused(x).double() - module(x).double()).abs().max() < 2e-2
            module[0].weight.mul_(-0.5)
            module[1].running_mean.add_(0.3)
            module[1].running_var.mul_(2)
    fused = kf.FusedFunction(padded, options)

    def run(seed):
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.randn(2, 16, 9 + seed % 3, 9, device="cuda").half().to(memory_format=LAST)
            require_near(fused(x, w), padded(x.double(), w.double()))
            torch.cuda.current_stream().synchronize()

    torch.cuda.synchronize()
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        list(pool.map(run, range(24)))


@needs_hopper
@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [(2, 5, 7, 16, 24), (1, 1, 1, 8, 8), (8, 14, 14, 64, 128), (3, 56, 56, 256, 64)])
def test_products_of_windows_of_one_element(size, dtype):
    n, h, w, c, k = size
    x, r = (draw(n, channels, h, w).to(dtype) for channels in (c, k))
    module = torch.nn.Sequential(torch.nn.Conv2d(c, k, 1), torch.nn.BatchNorm2d(k)).cuda().to(dtype).eval()
    module[1].float()
    module[1].running_mean.uniform_(-0.5, 0.5)
    module[1].running_var.uniform_(0.5, 2)
    fused = kf.fuse(lambda x, r: F.relu(module(x) + r))
    with torch.no_grad():
        for _ in range(2):
            got, b = fused(x, r), module[1]
            wide = F.conv2d(x.double(), module[0].weight.double(), module[0].bias.double())
            parameters = (p.double() for p in (b.running_mean, b.running_var, b.weight, b.bias))
            want = F.relu(F.batch_norm(wide, *parameters) + r.double())
            assert got.shape == want.shape
            assert (got.double() - want).norm() <= 2 * torch.finfo(dtype).eps * want.norm() + 1e-6
            assert n * h * w == 1 or got.is_contiguous(memory_format=LAST)
            module[0].weight.mul_(-0.5)
            module[1].running_mean.add_(1)
