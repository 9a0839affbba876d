"""Attention on a GPU's tensor cores: which kernel it is, what it leaves out, and its results against float64."""

from __future__ import annotations

import functools
import itertools
import re

import numpy as np
import pytest

import kfusion as kf
from kfusion import _core
from kfusion._tracing import library_attention
from kinds import HAVE_GPU
from sweeps import sweep
from test_codegen_compiles import nvcc

torch = pytest.importorskip("torch")
F = torch.nn.functional
HOPPER = HAVE_GPU and torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
on_hopper = pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9.0")
H100 = kf.device("H100")
OURS = "tensor_core_attention"
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


# ---- forms ----------------------------------------------------------------------------------------------------------


def scores(q, k):
    return q @ k.swapaxes(-1, -2) * (1 / q.shape[-1] ** 0.5)


def positions(s):
    return kf.iota(s.shape[-2:], 0, like="torch"), kf.iota(s.shape[-2:], 1, like="torch")


def weights(s, like):
    return kf.softmax(s.float()).to(like.dtype)


def where(m, s):
    return kf.where(m, s, float("-inf"))


def causal(s):
    i, j = positions(s)
    return where(i + (s.shape[-1] - s.shape[-2]) >= j, s)


def top_left_causal(s):
    i, j = positions(s)
    return where(j <= i, s)


def window(s):
    i, j = positions(s)
    return where((i >= j) & (i - j < 40), s)


def both_sides(s):
    i, j = positions(s)
    return where(kf.absolute(i - j) <= 70, s)


def not_behind(s):
    i, j = positions(s)
    return where(~(j > i), s)


def added_mask(s):
    i, j = positions(s)
    return s + kf.where(i >= j, 0.0, float("-inf"))


def prefix_or_causal(s):
    i, j = positions(s)
    return where((j < 17) | (i >= j), s)


def alibi(s, slopes):
    i, j = positions(s)
    return where(j <= i, s.float() + slopes[:, None, None] * (j - i).float())


def distances(s):
    i, j = positions(s)
    return s - kf.absolute(i - j).to(s.dtype) * 0.01


MASKS = {  # and which keys query i of `q` sees of `k`, None where it is not known
    "causal": (causal, lambda i, j, q, k: j <= i + k - q),
    "top left": (top_left_causal, lambda i, j, q, k: j <= i),
    "window": (window, lambda i, j, q, k: (j <= i) & (i - j < 40)),
    "both sides": (both_sides, lambda i, j, q, k: abs(i - j) <= 70),
    "not behind": (not_behind, lambda i, j, q, k: j <= i),
    "added": (added_mask, lambda i, j, q, k: j <= i),
}
FORMS = {
    "plain": lambda q, k, v, m, b, a: kf.softmax(scores(q, k)) @ v,
    "float32 scores": lambda q, k, v, m, b, a: weights(scores(q, k), q) @ v,
    "a mask": lambda q, k, v, m, b, a: kf.softmax(where(m, scores(q, k))) @ v,
    "a bias of each head": lambda q, k, v, m, b, a: kf.softmax(scores(q, k) + b) @ v,
    "a bias of keys": lambda q, k, v, m, b, a: kf.softmax(scores(q, k) + b[0, 0]) @ v,
    "a soft cap": lambda q, k, v, m, b, a: kf.softmax(20 * kf.tanh(scores(q, k) / 20)) @ v,
    "a chain": lambda q, k, v, m, b, a: kf.softmax(kf.where(m, kf.tanh(scores(q, k) + b) * 3, -1e9)) @ v,
    "alibi": lambda q, k, v, m, b, a: weights(alibi(scores(q, k), a), q) @ v,
    "distances": lambda q, k, v, m, b, a: kf.softmax(distances(scores(q, k))) @ v,
    "prefix": lambda q, k, v, m, b, a: kf.softmax(prefix_or_causal(scores(q, k))) @ v,
    "a cap and a window": lambda q, k, v, m, b, a: kf.softmax(window(30 * kf.tanh(scores(q, k) / 30))) @ v,
    "followed by maps": lambda q, k, v, m, b, a: kf.tanh(kf.softmax(scores(q, k)) @ v) * 2 + 1,
    "two results": lambda q, k, v, m, b, a: (kf.softmax(scores(q, k)) @ v, (kf.softmax(scores(q, k)) @ v).float()),
    "turned": lambda q, k, v, m, b, a: (kf.softmax(scores(q, k)) @ v).swapaxes(1, 2),
} | {name: lambda q, k, v, m, b, a, f=f: weights(f(scores(q, k)), q) @ v for name, (f, _) in MASKS.items()}


def specs(b=2, h=4, q=256, k=256, d=64, e=64, dtype="bfloat16"):
    s = lambda *shape, dtype=dtype: kf.spec(shape, dtype, like="torch", device="cuda")  # noqa: E731
    return (s(b, h, q, d), s(b, h, k, d), s(b, h, k, e), s(q, k, dtype="bool"), s(h, q, k), s(h, dtype="float32"))


def kernel(f, *arguments, **more):
    kernels = _core.cuda_kernels(kf.trace(f, *arguments), H100.to_dict(), **more)
    (ours,) = [k for k in kernels if isinstance(k, _core.AttentionKernel)]
    return ours


def planned(f, *arguments, executors=(OURS, "cuda", "tensor_cores", "array_library"), device="H100"):
    return kf.plan(f, *arguments, device=device, executors=list(executors))


# ---- without a GPU --------------------------------------------------------------------------------------------------


def test_every_form_is_one_kernel():
    def check(form):
        groups = planned(FORMS[form], *specs()).groups
        assert [g.executor for g in groups] == [OURS], groups
        assert re.match("blocks of (128|192) x 128", groups[0].how)

    sweep(check, [(form,) for form in FORMS])
    # Distances have the axes of queries and keys, and times the slopes those of the scores.
    q, k, v, _, _, a = specs()
    q, k, v = (kf.spec(x.shape[1:], "bfloat16", like="torch", device="cuda") for x in (q, k, v))
    (group,) = planned(lambda q, k, v, a: weights(alibi(scores(q, k), a), q) @ v, q, k, v, a).groups
    assert group.executor == OURS
    call = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
    (group,) = planned(call, *specs(q=4096, k=4096, d=128, e=128)[:3]).groups
    assert group.executor == OURS


def finite_mask(q, k, v, *_):
    """Rows that see nothing would be means of all values."""
    s = scores(q, k)
    i, j = positions(s)
    return kf.softmax(kf.where(i >= j, s, -1e9)) @ v


def test_bounds_are_those_of_the_mask():
    """Between them is every key that a query sees, and for these masks nothing else; other masks leave nothing out."""

    def check(mask, shape):
        (q, k), (_, sees) = shape, MASKS[mask]
        bounds = kernel(FORMS[mask], *specs(q=q, k=k, h=8, b=8)).bounds
        i, j = np.indices((q, k))
        between = np.ones((q, k), bool)
        for upper, row, start in bounds:
            between &= (j <= row * i + start) if upper else (j >= row * i + start)
        assert bounds
        np.testing.assert_array_equal(between, sees(i, j, q, k))

    sweep(check, itertools.product(MASKS, [(100, 100), (130, 300), (300, 130), (1, 64)]))
    others = ("plain", "a mask", "a bias of each head", "a soft cap", "prefix", "distances", "a chain")
    assert [kernel(f, *specs()).bounds for f in (*map(FORMS.get, others), finite_mask)] == [[]] * (len(others) + 1)


def test_refused():
    def check(f, arguments, why, device="H100"):
        p = planned(f, *arguments, device=device)
        assert all(g.executor != OURS for g in p.groups)
        assert not why or any(why in r.sentence for r in p.refusals), p.refusals

    plain = FORMS["plain"]
    sweep(check, [
        (plain, specs(dtype="float32"), f"{OURS} computes attention of float16 or bfloat16"),
        (plain, specs(d=264), f"{OURS} takes heads of 256 numbers at most"),
        (plain, specs(d=60), f"{OURS} reads queries, keys and values whose numbers lie side by side"),
        (lambda q, k, v, *_: (kf.softmax(scores(q, k)) * 2) @ v, specs(), ""),
        (lambda q, k, v, *_: kf.softmax(scores(q, k).float()) @ v.float(), specs(), "these are float32"),
        *((plain, specs(), "", device) for device in ("A100 80GB", "B200", "RTX 4090")),
    ])  # fmt: skip


def test_few_queries_share_the_keys_out():
    arguments = specs(b=1, q=1, k=8192, d=128, e=128)
    (group,) = planned(FORMS["plain"], *arguments, executors=[OURS]).groups
    assert re.fullmatch(r"blocks of 64 x 128, keys in 32 parts", group.how)
    launch = kernel(FORMS["plain"], *arguments).launch
    assert launch["workspace_bytes"] > 0
    assert launch["grid"][0] == 4 * 32


@pytest.mark.slow
def test_every_form_and_every_head_compiles(tmp_path):
    """And spills nothing."""

    def check(form, heads, most):
        report = nvcc(kernel(FORMS[form], *specs(d=heads[0], e=heads[1])).source, tmp_path, architecture="sm_90a")
        assert int(re.findall(r"(\d+) bytes spill stores", report)[0]) <= most

    heads = [(32, 32), (64, 64), (80, 80), (96, 96), (128, 64), (192, 128), (256, 256)]
    some = itertools.product(("plain", "causal", "a soft cap"), heads)
    sweep(check, [*((form, (128, 128), 64) for form in FORMS), *((form, head, 0) for form, head in some)])


# ---- on a GPU -------------------------------------------------------------------------------------------------------

# batches, heads, queries, keys, numbers of a key, of a value
SHAPES = [(2, 3, 50, 70, 16, 24), (1, 2, 63, 64, 64, 64), (1, 2, 65, 127, 128, 128), (2, 2, 129, 1000, 64, 64),
          (1, 3, 300, 1100, 96, 80), (1, 2, 700, 300, 192, 192), (1, 2, 333, 333, 256, 256), (2, 2, 1, 2300, 128, 128),
          (1, 1, 1, 2, 8, 8), (1, 2, 1000, 1000, 32, 32), (1, 2, 70, 5000, 128, 64)]  # fmt: skip


def forced(f):
    return kf.FusedFunction(f, {"executors": [OURS, "cuda"]})


def draw(*shape, dtype="bfloat16", scale=1.0):
    return (torch.randn(*shape, device="cuda") * scale).to(DTYPES[dtype])


def operands(b, h, q, k, d, e, dtype="bfloat16"):
    mask = torch.rand(q, k, device="cuda") < 0.7
    mask[:, 0] = True
    slopes = torch.exp2(-torch.arange(1, h + 1, device="cuda").float())
    return [draw(b, h, q, d, dtype=dtype), draw(b, h, k, d, dtype=dtype), draw(b, h, k, e, dtype=dtype), mask,
            draw(h, q, k, dtype=dtype), slopes]  # fmt: skip


def reference(form, arguments):
    """The form on float64, kernel by kernel on the CPU."""
    return kf.fuse(FORMS[form]).unfused(*((x.double() if x.is_floating_point() else x).cpu() for x in arguments))


def as_tuple(x):
    return x if isinstance(x, tuple) else (x,)


def check(form, arguments, dtype="bfloat16"):
    fused = forced(FORMS[form])
    groups = [g.executor for g in fused.plan(*arguments).groups]
    assert OURS in groups, groups
    got, again, want = fused(*arguments), fused(*arguments), reference(form, arguments)
    for one, other, wanted in zip(*map(as_tuple, (got, again, want)), strict=True):
        assert torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
        assert one.shape == wanted.shape
        assert torch.equal(one.isnan().cpu(), wanted.isnan())
        most = max(1.0, float(wanted.nan_to_num().abs().max()))
        worst = float((one.cpu().double() - wanted).nan_to_num().abs().max())
        assert worst <= 4 * ROUNDING[dtype] * most, (form, worst, most)
    return got


@on_hopper
@pytest.mark.cuda
class TestResults:
    @pytest.fixture(autouse=True)
    def seeded(self, seed):
        torch.manual_seed(seed)

    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("form", FORMS)
    def test_forms(self, form, shape):
        dtype = list(DTYPES)[(SHAPES.index(shape) + list(FORMS).index(form)) % 2]
        check(form, operands(*shape, dtype=dtype), dtype)

    def test_layouts(self):
        """Heads behind positions, parts of one array, odd addresses, heads that share keys; and large scores."""

        def behind(x):
            return x.transpose(1, 2).contiguous().transpose(1, 2)

        def loose(x):
            return torch.empty(x.numel() + 1, device="cuda", dtype=x.dtype)[1:].view(x.shape).copy_(x)

        def replaced(change, which):
            arguments = operands(2, 3, 190, 300, 64, 64)
            return [change(x) if i in which else x for i, x in enumerate(arguments)]

        q, k, *more = operands(1, 2, 70, 300, 64, 64)
        x = draw(2, 200, 3, 4, 64)
        parts = [x[:, :, i].transpose(1, 2) for i in range(3)]
        shared = [operands(2, 6, queries, 1200, 64, 64) for queries in (1, 130)]
        sweep(check, [
            *(("causal", replaced(behind, which)) for which in ((0,), (1,), (2,), (0, 1, 2))),
            ("plain", [*parts, *operands(2, 4, 200, 200, 64, 64)[3:]]),
            ("a bias of each head", replaced(loose, (0, 1, 2))),
            *(("plain", [q, *(x[:, :1].expand(-1, 6, -1, -1) for x in (k, v)), *m]) for q, k, v, *m in shared),
            *((form, [q * 30, k * 30, *more]) for form in ("plain", "causal")),
        ])  # fmt: skip

    def test_rows_that_see_nothing(self):
        for rows in (slice(3, 4), slice(0, 50)):
            arguments = operands(1, 2, 60, 2300, 64, 64)
            mask = arguments[3]
            mask[:], mask[:, 2200] = False, True
            mask[10] = torch.arange(2300, device="cuda") < 5
            mask[rows] = False
            assert check("a mask", arguments)[:, :, rows].isnan().all()
        got = check("causal", operands(1, 2, 500, 127, 64, 64))  # the first queries see nothing
        assert got[:, :, : 500 - 127].isnan().all()

    def test_values_that_are_not_finite(self):
        for value, where in itertools.product((np.nan, np.inf, -np.inf), range(3)):
            arguments = operands(1, 2, 70, 300, 64, 64)
            arguments[where][0, 1, 33, 5] = value
            got, want = forced(FORMS["plain"])(*arguments), reference("plain", arguments)
            assert torch.equal(got.isnan().cpu(), want.isnan())
            assert torch.equal(got.isinf().cpu(), want.isinf())

    def test_rows_of_the_least_number(self):
        """Rows where every key has it weigh all of them alike."""
        for least in (-1e9, float(torch.finfo(torch.bfloat16).min)):
            arguments = operands(1, 2, 70, 300, 64, 64)
            arguments[4] = torch.zeros(2, 70, 300, device="cuda", dtype=torch.bfloat16)
            arguments[4][:, :20], arguments[4][:, 30:, 100:] = least, least
            got = forced(FORMS["a bias of each head"])(*arguments).cpu().double()
            want = reference("a bias of each head", arguments)
            assert (got[:, :, 20:] - want[:, :, 20:]).abs().max() < 0.05
            if least < -1e30:  # the scores beside it are lost
                mean = arguments[2].cpu().double().mean(-2, keepdim=True).expand(-1, -1, 20, -1)
                assert (got[:, :, :20] - mean).abs().max() < 0.05

    def test_numbers_of_a_call_and_fewer_axes(self):
        q, k, v, *_ = operands(2, 1, 130, 140, 64, 64)
        f = forced(lambda q, k, v, s: kf.softmax(q @ k.swapaxes(-1, -2) * s) @ v)
        for args in ((q, k, v), (q[:, 0], k[:, 0], v[:, 0]), (q[0, 0], k[0, 0], v[0, 0])):
            a, b, c = (x.double() for x in args)
            for s in (0.05, 0.2, -0.1, 1.0):
                want = torch.softmax(a @ b.transpose(-1, -2) * s, -1) @ c
                assert (f(*args, s).double() - want).abs().max() < 0.05

    def test_in_a_graph(self):
        arguments = operands(1, 2, 1, 2300, 128, 128)
        f = forced(FORMS["plain"])
        want = f(*arguments)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = f(*arguments)
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(got, want)


@pytest.mark.cuda
@pytest.mark.parametrize("wants_gradients", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_masks_that_torchs_kernels_misread(dtype, wants_gradients):
    """By the library's call alone, too: its kernels take rows for aligned, and as long as there are keys."""
    drawn = functools.partial(torch.randn, dtype=dtype, device="cuda")

    def check(mask):
        q, k, v = drawn(1, 32, 40, 16), drawn(1, 32, 32, 16), drawn(1, 32, 32, 16)
        given = [x.requires_grad_(wants_gradients) for x in (q, k, v, mask.detach())]
        wide = [x.detach().double().requires_grad_(wants_gradients) for x in given]
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            want = F.scaled_dot_product_attention(*wide)
        fused = kf.fuse(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m))
        step = library_attention.runnable(library_attention.NAME, F.scaled_dot_product_attention)
        for f in (fused, fused.unfused, step):
            got = f(*given)
            assert (got.double() - want).abs().max() < 64 * torch.finfo(dtype).eps
            if wants_gradients:
                seed = torch.ones_like(want)
                exact = torch.autograd.grad(want, wide, seed, retain_graph=True)
                for g, e in zip(torch.autograd.grad(got, given, seed.to(dtype)), exact, strict=True):
                    assert (g.double() - e).norm() <= 64 * torch.finfo(dtype).eps * (40 + e.norm())

    one = drawn(1, 32, 1, 1)  # number for all keys; then as wide as they, of rows not aligned, of columns
    for mask in (one, one.expand(1, 32, 40, 32), drawn(1, 32, 40, 35)[..., 2:34], drawn(32, 32, 40).mT):
        check(mask)


@pytest.mark.cuda
@pytest.mark.parametrize("mask", [None, "causal", "array"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)])
def test_results_of_a_call_of_the_library_lie_as_it_gives_them(order, dtype, mask):
    """In another order they would be copied: which one, the library's choice among its kernels decides."""
    shape = [(4, 8, 256, 64)[a] for a in order]
    q, k, v = (torch.randn(shape, dtype=dtype, device="cuda").permute(order) for _ in range(3))
    added = torch.randn(256, 256, dtype=dtype, device="cuda") if mask == "array" else None

    def f(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, added, is_causal=mask == "causal")

    fused, want = kf.fuse(f), f(q, k, v)
    got = fused(q, k, v)
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    if ("library_call",) in [g.ops for g in fused.plan(q, k, v).groups]:
        assert got.stride() == want.stride()


@pytest.mark.cuda
@pytest.mark.parametrize("offset", [0, 1, 8])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("shape", [(1, 8, 33, 32), (2, 4, 200, 64)])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)])
def test_gradients_of_attention_of_the_library(order, shape, is_causal, offset):
    """Wherever arrays begin, and after eager code, whose graphs of cuDNN torch keeps, made for gradients in C order."""
    b, h, s, d = shape
    lies_as = torch.empty([shape[a] for a in order], device="meta").permute(order).stride()

    def given(strides):
        memory = torch.empty(b * h * s * d + offset, dtype=torch.float16, device="cuda")[offset:]
        return memory.as_strided(shape, strides).copy_(torch.randn(shape))

    def f(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    arguments = [given(lies_as).requires_grad_() for _ in range(3)]
    aligned = [x.detach().clone().requires_grad_() for x in arguments]
    for gradient in (given((h * s * d, s * d, d, 1)), given((s * h * d, d, h * d, 1))):
        wide = [x.detach().double().requires_grad_() for x in arguments]
        want = torch.autograd.grad(f(*wide), wide, gradient.double())
        torch.autograd.grad(f(*aligned), aligned, gradient.clone())
        got = torch.autograd.grad(kf.fuse(f)(*arguments), arguments, gradient)
        assert all((g.double() - w).abs().max() < 0.02 for g, w in zip(got, want, strict=True))
