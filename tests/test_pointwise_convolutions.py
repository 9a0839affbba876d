"""Convolutions by windows of one element as products."""

from __future__ import annotations

import pytest

import kfusion as kf
from kinds import HAVE_GPU

torch = pytest.importorskip("torch")
F = torch.nn.functional
HOPPER = HAVE_GPU and torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
on_gpu = pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9.0")


def spec(*shape, dtype="float16"):
    return kf.spec(shape, dtype, like="torch")


def image(x):
    """An image of pixels: their channels are innermost."""
    return x.permute(0, 3, 1, 2)


def normalised(y, v):
    return F.batch_norm(y, v[0], v[1], v[2], v[3])


def layer(x, w, v, r):
    return F.relu(normalised(F.conv2d(image(x), w), v) + image(r))


LAYER = (spec(8, 14, 14, 64), spec(128, 64, 1, 1), spec(4, 128, dtype="float32"), spec(8, 14, 14, 128))


def test_a_convolution_its_batchnorm_residual_and_relu_are_one_product():
    (group,) = kf.plan(layer, *LAYER, device="H100", executors="available").groups
    assert group.executor == "tensor_cores"
    assert group.kind == "matmul"


def test_a_bias_and_relu_are_an_epilogue_of_the_library_elsewhere():
    (group,) = kf.plan(
        lambda x, w, b: F.relu(F.conv2d(image(x), w, b)),
        *LAYER[:2],
        spec(128),
        device="A100 80GB",
        executors="available",
    ).groups
    assert group.executor == "cublaslt"


@pytest.mark.parametrize(
    "f",
    [
        lambda x, w: F.relu(F.conv2d(x.permute(0, 3, 1, 2), w, stride=2)),
        lambda x, w: F.relu(F.conv2d(x.permute(0, 3, 1, 2), w, padding=1)),
        lambda x, w: F.relu(F.conv2d(x, w)),
    ],
    ids=["a stride", "a padding", "channels outermost"],
)
def test_others_stay_convolutions(f):
    plan = kf.plan(f, spec(8, 64, 64, 64), LAYER[1], device="H100", executors="available")
    assert plan.groups[0].kind == "conv2d"


def test_float32_and_cpus_keep_the_convolution():
    wide = [spec(8, 14, 14, 64, dtype="float32"), spec(128, 64, 1, 1, dtype="float32")]
    f = lambda x, w: F.relu(F.conv2d(image(x), w))  # noqa: E731
    assert kf.plan(f, *wide, device="H100", executors="available").groups[0].kind == "conv2d"
    assert kf.plan(f, *LAYER[:2], device="EPYC-9654", executors="available").groups[0].kind == "conv2d"


def test_elementwise_work_between_two_products_stays_in_the_first():
    def block(x, w, v, w2):
        return F.relu(F.conv2d(F.relu(normalised(F.conv2d(image(x), w), v)), w2))

    plan = kf.plan(block, *LAYER[:3], spec(64, 128, 1, 1), device="H100", executors="available")
    assert [g.executor for g in plan.groups] == ["tensor_cores", "tensor_cores"]


def test_maps_of_a_product_are_in_its_kernel_whatever_order_they_are_read_in():
    def heads(x, w, b):
        return kf.tanh(x @ w + b).reshape(4, 128, 8, 64).transpose(1, 2)

    plan = kf.plan(heads, spec(4, 128, 256), spec(256, 512), spec(512), device="H100", executors="available")
    assert [g.executor for g in plan.groups] == ["tensor_cores"]


@on_gpu
@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [(2, 5, 7, 16, 24), (1, 1, 1, 8, 8), (8, 14, 14, 64, 128), (3, 56, 56, 256, 64)])
def test_results_against_float64(size, dtype):
    n, h, w, c, k = size
    x = torch.randn(n, c, h, w, device="cuda").to(dtype).to(memory_format=torch.channels_last)
    r = torch.randn(n, k, h, w, device="cuda").to(dtype).to(memory_format=torch.channels_last)
    module = torch.nn.Sequential(torch.nn.Conv2d(c, k, 1), torch.nn.BatchNorm2d(k)).cuda().to(dtype).eval()
    module[1].float()
    module[1].running_mean.uniform_(-0.5, 0.5)
    module[1].running_var.uniform_(0.5, 2)

    def f(x, r):
        return F.relu(module(x) + r)

    fused = kf.fuse(f)

    def check():
        got = fused(x, r)
        wide = F.conv2d(x.double(), module[0].weight.double(), module[0].bias.double())
        b = module[1]
        wide = F.batch_norm(wide, b.running_mean.double(), b.running_var.double(), b.weight.double(), b.bias.double())
        want = F.relu(wide + r.double())
        assert got.shape == want.shape
        assert (got.double() - want).norm() <= 2 * torch.finfo(dtype).eps * want.norm() + 1e-6
        return got

    with torch.no_grad():
        got = check()
        assert n * h * w == 1 or got.is_contiguous(memory_format=torch.channels_last)
        module[0].weight.mul_(-0.5)
        module[1].running_mean.add_(1)
        check()
