"""Convolutions and what follows them, in one kernel of cuDNN's: plans anywhere, results on a GPU against float64."""

from __future__ import annotations

import concurrent.futures

import pytest

import kfusion as kf
from kinds import HAVE_GPU

torch = pytest.importorskip("torch")
F = torch.nn.functional
ON_GPU = HAVE_GPU and torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a GPU of compute capability 8.0")
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
LAST = torch.channels_last


def spec(*shape, dtype="float16"):
    """An array that stands for one on a GPU, with its channels innermost."""
    x = torch.empty(shape, dtype=getattr(torch, dtype))
    return x.to(memory_format=LAST) if len(shape) == 4 else x


def planned(f, *specs, device="H100", executors=("cudnn", "array_library", "cuda")):
    return kf.FusedFunction(f, {"executors": list(executors)}).plan(*specs, device=device)


def normalised(x, w, mean, variance, weight, bias, residual):
    y = F.batch_norm(F.conv2d(x, w, padding=1), mean, variance, weight, bias)
    return F.relu(y + residual)


STATISTICS = [spec(64, dtype="float32")] * 4
NORMALISED = (spec(32, 64, 56, 56), spec(64, 64, 3, 3), *STATISTICS, spec(32, 64, 56, 56))


# Numbers and vectors that begin between multiples of 16 bytes.
INSIDE = {
    "two numbers": (lambda x, w, g: F.relu(F.conv2d(x, w, padding=1) * g[1] + g[3]), "float16"),
    "a bias": (lambda x, w, g: F.relu(F.conv2d(x, w, padding=1) + g[1:].view(1, -1, 1, 1)), "float16"),
    "a number of float32": (lambda x, w, g: F.relu(F.conv2d(x, w)).float() * g[3], "float32"),
}


class TestPlans:
    def test_batch_norm_residual_and_relu_are_one_kernel(self):
        p = planned(normalised, *NORMALISED)
        assert [g.executor for g in p.groups] == ["cudnn"]
        assert p.groups[0].kind == "conv2d"

    @pytest.mark.parametrize("device", ["A100", "RTX 4090", "B200"])
    def test_on_every_gpu_since_ampere(self, device):
        p = planned(normalised, *NORMALISED, device=device)
        assert [g.executor for g in p.groups] == ["cudnn"]

    def test_not_before(self):
        p = planned(normalised, *NORMALISED, device="T4")
        assert [g.executor for g in p.groups] == ["array_library", "cuda"]

    @pytest.mark.parametrize(
        ("f", "x", "w", "why"),
        [
            (lambda x, w: F.relu(F.conv2d(x, w)), spec(2, 3, 9, 9), spec(8, 3, 3, 3), "channels are a multiple of 8"),
            (lambda x, w: F.relu(F.conv2d(x, w)), spec(2, 8, 9, 9), spec(9, 8, 3, 3), "channels are a multiple of 8"),
            (lambda x, w: F.relu(F.conv2d(x, w, groups=2)), spec(2, 16, 9, 9), spec(8, 8, 3, 3), "of one group"),
            (lambda x, w: F.hardtanh(F.conv2d(x, w)), spec(2, 8, 9, 9), spec(8, 8, 3, 3), "computes no clip"),
            (lambda x, w: F.relu(F.conv2d(x, w)), spec(2, 8, 9, 9, dtype="float32"), spec(8, 8, 3, 3, dtype="float32"),
             "of half types"),
        ],
    )  # fmt: skip
    def test_says_what_it_does_not_compute(self, f, x, w, why):
        p = planned(f, x, w)
        assert len(p.groups) == 2
        assert any(why in r.sentence for r in p.refusals), [r.sentence for r in p.refusals]

    def test_a_convolution_alone_is_the_librarys(self):
        p = planned(lambda x, w: F.conv2d(x, w), spec(2, 8, 9, 9), spec(8, 8, 3, 3))
        assert [g.executor for g in p.groups] == ["array_library"]

    @pytest.mark.parametrize("device", ["H100", "A100"])
    @pytest.mark.parametrize("form", INSIDE)
    @pytest.mark.parametrize("last", [True, False])
    def test_what_lies_inside_of_other_arrays(self, form, device, last):
        f, dtype = INSIDE[form]
        x, w = spec(8, 64, 32, 32), spec(64, 64, 3, 3)
        if not last:
            x, w = x.contiguous(), w.contiguous()
        assert [g.executor for g in planned(f, x, w, spec(65, dtype=dtype), device=device).groups] == ["cudnn"]

    def test_nothing_is_folded_into_weights(self):
        p = planned(normalised, *NORMALISED)
        flops = sum(f.count for f in p.fused.flops if f.unit != "matrix")
        assert flops >= 6 * 32 * 64 * 56 * 56  # subtract, two products, sum, residual, relu


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
class TestResults:
    def arguments(self, case, dtype, last=True):
        n, c, h, w, k, window, *rest = case
        x = draw(n, c, h, w, dtype=dtype, last=last)
        weight = draw(k, c, window, window, dtype=dtype, scale=(c * window * window) ** -0.5, last=last)
        return x, weight, dict(zip(("stride", "padding", "dilation"), rest, strict=True))

    def test_bias_and_relu(self, case, dtype):
        x, w, how = self.arguments(case, dtype)
        check(lambda x, w, b: F.relu(F.conv2d(x, w, b, **how)), x, w, draw(len(w), dtype=dtype), dtype=dtype)

    def test_batch_norm_residual_and_relu(self, case, dtype):
        x, w, how = self.arguments(case, dtype)
        residual = torch.randn_like(F.conv2d(x, w, **how))

        def f(x, w, residual, mean, variance, weight, bias):
            y = F.batch_norm(F.conv2d(x, w, **how), mean, variance, weight, bias)
            return F.relu(y + residual)

        got = check(f, x, w, residual, *batch_norm_of(len(w)), dtype=dtype)
        assert got.is_contiguous(memory_format=LAST)

    def test_silu(self, case, dtype):
        x, w, how = self.arguments(case, dtype)
        check(lambda x, w, b: F.silu(F.conv2d(x, w, b, **how)), x, w, draw(len(w), dtype=dtype), dtype=dtype)

    @pytest.mark.parametrize("weight_last", [False, True])
    def test_channels_outermost(self, case, dtype, weight_last):
        x, w, how = self.arguments(case, dtype, last=False)
        if weight_last:
            w = w.to(memory_format=LAST)
        residual = torch.randn_like(F.conv2d(x, w, **how)).contiguous()
        check(lambda x, w, r: F.relu(F.conv2d(x, w, **how) + r), x, w, residual, dtype=dtype)


@pytest.mark.cuda
@needs_gpu
class TestForms:
    def relu(self, x, w):
        return F.relu(F.conv2d(x, w, padding=1))

    def test_nan_and_infinities(self):
        x, w = draw(2, 16, 9, 9), draw(16, 16, 3, 3, scale=0.1)
        bias = draw(16)
        bias[3], bias[4], bias[5] = float("nan"), float("inf"), -float("inf")
        check(lambda x, w, b: F.relu(F.conv2d(x, w, b)), x, w, bias)

    def test_out_of_either_layout(self):
        x, w = draw(2, 16, 9, 9), draw(24, 16, 3, 3, scale=0.1)
        for layout in (LAST, torch.contiguous_format):
            out = torch.empty(2, 24, 9, 9, device="cuda", dtype=torch.float16, memory_format=layout)
            assert check(self.relu, x, w, out=out) is out

    def test_views(self):
        x = draw(2, 32, 12, 12)
        w = draw(24, 16, 3, 3, scale=0.1)
        check(self.relu, x[:, 8:24], w)
        check(self.relu, x[:, :16, 1:, 2:-1], w)
        check(self.relu, x[:, :16].transpose(2, 3), w)
        check(self.relu, x[:1, :16].expand(3, -1, -1, -1).contiguous(), w)

    def test_misaligned(self):
        n = 2 * 16 * 9 * 9
        x = torch.randn(n + 1, device="cuda").half()[1:].view(2, 9, 9, 16).permute(0, 3, 1, 2)
        w = torch.randn(16 * 16 * 9 + 3, device="cuda").half()[3:].view(16, 3, 3, 16).permute(0, 3, 1, 2) * 0.1
        out = torch.empty(n + 1, device="cuda", dtype=torch.float16)[1:].view(2, 9, 9, 16).permute(0, 3, 1, 2)
        bias = torch.randn(17, device="cuda").half()[1:]
        check(lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)), x, w, bias, out=out)

    @pytest.mark.parametrize("last", [True, False])
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("form", INSIDE)
    def test_what_lies_inside_of_other_arrays(self, form, dtype, last):
        f, of_numbers = INSIDE[form]
        x, w = draw(2, 16, 9, 9, dtype=dtype, last=last), draw(24, 16, 3, 3, dtype=dtype, scale=0.1, last=last)
        numbers = torch.rand(25, device="cuda") + 0.5  # of negative ones relu may leave nothing to compare
        check(f, x, w, numbers if of_numbers == "float32" else numbers.to(DTYPES[dtype]), dtype=dtype)

    def test_a_first_call_in_a_cuda_graph(self):
        x, w = draw(3, 16, 13, 11), draw(40, 16, 3, 3, scale=0.1)
        fused = kf.FusedFunction(self.relu, {"executors": ["cudnn", "cuda"], "by_time": False})
        assert [g.executor for g in fused.plan(x, w).groups] == ["cudnn"]
        graph, out = torch.cuda.CUDAGraph(), torch.empty_like(F.conv2d(x, w, padding=1))
        with torch.cuda.graph(graph):
            fused(x, w, out=out)
        x.copy_(draw(3, 16, 13, 11))
        graph.replay()
        want = self.relu(x.double(), w.double())
        assert (out.double() - want).norm() / want.norm() < 2e-3
        assert torch.equal(out, fused(x, w))

    def test_a_chain(self):
        x, w, v = draw(2, 16, 9, 9), draw(32, 16, 3, 3, scale=0.1), draw(16, 32, 3, 3, scale=0.1)
        f = kf.FusedFunction(
            lambda x, w, v: F.relu(F.conv2d(F.relu(F.conv2d(x, w, padding=1)), v, padding=1) + x),
            {"executors": ["cudnn", "cuda"], "by_time": False},
        )
        assert [g.executor for g in f.plan(x, w, v).groups] == ["cudnn", "cudnn"]
        want = F.relu(F.conv2d(F.relu(F.conv2d(x.double(), w.double(), padding=1)), v.double(), padding=1) + x.double())
        assert (f(x, w, v).double() - want).norm() / want.norm() < 2e-3

    def test_weights_and_statistics_are_read_by_every_call(self):
        module = torch.nn.Sequential(torch.nn.Conv2d(16, 24, 3), torch.nn.BatchNorm2d(24), torch.nn.ReLU())
        module = module.cuda().half().eval().to(memory_format=LAST)
        fused = kf.fuse(module)
        x = draw(2, 16, 9, 9)
        with torch.no_grad():
            for _ in range(2):
                assert (fused(x).double() - module(x).double()).abs().max() < 2e-2
                module[0].weight.mul_(-0.5)
                module[1].running_mean.add_(0.3)
                module[1].running_var.mul_(2)

    def test_threads(self):
        w = draw(24, 16, 3, 3, scale=0.1)
        fused = kf.FusedFunction(self.relu, {"executors": ["cudnn", "cuda"], "by_time": False})

        def run(seed):
            with torch.cuda.stream(torch.cuda.Stream()):
                x = torch.randn(2, 16, 9 + seed % 3, 9, device="cuda").half().to(memory_format=LAST)
                got, want = fused(x, w), self.relu(x.double(), w.double())
                torch.cuda.current_stream().synchronize()
                return float((got.double() - want).norm() / want.norm())

        torch.cuda.synchronize()
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            assert max(pool.map(run, range(24))) < 2e-3

    def test_in_a_cuda_graph(self):
        x, w = draw(2, 16, 9, 9), draw(24, 16, 3, 3, scale=0.1)
        fused, out = kf.fuse(self.relu), torch.empty_like(F.conv2d(x, w, padding=1))
        fused(x, w, out=out)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            fused(x, w, out=out)
        x.copy_(draw(2, 16, 9, 9))
        graph.replay()
        want = self.relu(x.double(), w.double())
        assert (out.double() - want).norm() / want.norm() < 2e-3
