"""Attention on a GPU's tensor cores: which kernel it is, what it leaves out, and its results against float64."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest

import kfusion as kf
from kfusion import _core
from kfusion._tracing import library_attention
from kinds import HAVE_GPU
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


@pytest.mark.parametrize("form", FORMS)
def test_one_kernel(form):
    groups = planned(FORMS[form], *specs()).groups
    assert [g.executor for g in groups] == [OURS], groups
    assert groups[0].how.startswith("blocks of 128 x 128") or groups[0].how.startswith("blocks of 192 x 128")


def test_positions_of_the_scores_own_shape():
    """Distances have the axes of queries and keys, and times the slopes those of the scores."""
    q, k, v, _, _, a = specs()
    q, k, v = (kf.spec(x.shape[1:], "bfloat16", like="torch", device="cuda") for x in (q, k, v))
    (group,) = planned(lambda q, k, v, a: weights(alibi(scores(q, k), a), q) @ v, q, k, v, a).groups
    assert group.executor == OURS


def test_weights_of_another_type_than_the_values_are_refused_by_name():
    q, k, v, *_ = specs()
    plan = planned(lambda q, k, v: kf.softmax(scores(q, k).float()) @ v.float(), q, k, v)
    assert any("these are float32" in r.sentence for r in plan.refusals), plan.refusals


@pytest.mark.parametrize("shape", [(100, 100), (130, 300), (300, 130), (1, 64)])
@pytest.mark.parametrize("mask", MASKS)
def test_bounds_are_those_of_the_mask(mask, shape):
    """Between them is every key that a query sees, and for these masks nothing else."""
    _, sees = MASKS[mask]
    q, k = shape
    arguments = specs(q=q, k=k, h=8, b=8)
    bounds = kernel(FORMS[mask], *arguments).bounds
    i, j = np.indices((q, k))
    between = np.ones((q, k), bool)
    for upper, row, start in bounds:
        between &= (j <= row * i + start) if upper else (j >= row * i + start)
    assert bounds
    np.testing.assert_array_equal(between, sees(i, j, q, k))


@pytest.mark.parametrize(
    "form", ["plain", "a mask", "a bias of each head", "a soft cap", "prefix", "distances", "a chain"]
)
def test_other_masks_leave_nothing_out(form):
    assert kernel(FORMS[form], *specs()).bounds == []


def test_a_finite_mask_leaves_nothing_out():
    """Rows that see nothing would be means of all values."""

    def f(q, k, v):
        s = scores(q, k)
        i, j = positions(s)
        return kf.softmax(kf.where(i >= j, s, -1e9)) @ v

    assert kernel(f, *specs()[:3]).bounds == []


REFUSED = {
    "float32": (FORMS["plain"], specs(dtype="float32"), "computes attention of float16 or bfloat16"),
    "long heads": (FORMS["plain"], specs(d=264), "takes heads of 256 numbers at most"),
    "odd heads": (FORMS["plain"], specs(d=60), "reads queries, keys and values whose numbers lie side by side"),
    "weights that are changed": (lambda q, k, v, *_: (kf.softmax(scores(q, k)) * 2) @ v, specs(), ""),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    f, arguments, why = REFUSED[case]
    p = planned(f, *arguments, executors=(OURS, "cuda", "tensor_cores", "array_library"))
    assert all(g.executor != OURS for g in p.groups)
    assert not why or any(f"{OURS} {why}" in r.sentence for r in p.refusals), p.refusals


def test_only_on_hopper():
    for device in ("A100 80GB", "B200", "RTX 4090"):
        assert all(g.executor != OURS for g in planned(FORMS["plain"], *specs(), device=device).groups)


def test_few_queries_share_the_keys_out():
    (group,) = planned(FORMS["plain"], *specs(b=1, q=1, k=8192, d=128, e=128), executors=[OURS]).groups
    assert re.fullmatch(r"blocks of 64 x 128, keys in 32 parts", group.how)
    launch = kernel(FORMS["plain"], *specs(b=1, q=1, k=8192, d=128, e=128)).launch
    assert launch["workspace_bytes"] > 0
    assert launch["grid"][0] == 4 * 32


def test_the_librarys_call_is_ours():
    spec = specs(q=4096, k=4096, d=128, e=128)[:3]
    (group,) = planned(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *spec).groups
    assert group.executor == OURS


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_every_form_compiles(form, tmp_path):
    """And spills nothing."""
    report = nvcc(kernel(FORMS[form], *specs(d=128, e=128)).source, tmp_path, architecture="sm_90a")
    assert int(re.findall(r"(\d+) bytes spill stores", report)[0]) <= 64


@pytest.mark.slow
@pytest.mark.parametrize("heads", [(32, 32), (64, 64), (80, 80), (96, 96), (128, 64), (192, 128), (256, 256)])
def test_every_head_compiles(heads, tmp_path):
    for form in ("plain", "causal", "a soft cap"):
        arguments = specs(d=heads[0], e=heads[1])
        report = nvcc(kernel(FORMS[form], *arguments).source, tmp_path, architecture="sm_90a")
        assert int(re.findall(r"(\d+) bytes spill stores", report)[0]) == 0


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


def wide(x):
    return x.double() if x.is_floating_point() else x


def reference(form, arguments):
    """The form on float64: its casts stay wide."""
    q, k, v, m, b, a = [wide(x) for x in arguments]
    i = torch.arange(q.shape[-2], device=q.device)[:, None]
    j = torch.arange(k.shape[-2], device=q.device)[None]
    s = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    hidden = lambda seen, s: torch.where(seen, s, -torch.inf)  # noqa: E731
    n, o = s.shape[-2:]
    if form in MASKS:
        s = hidden(torch.as_tensor(MASKS[form][1](i, j, n, o)).expand(n, o), s)
    after = lambda y: y  # noqa: E731
    if form == "a mask":
        s = hidden(m, s)
    elif form == "a bias of each head":
        s = s + b
    elif form == "a bias of keys":
        s = s + b[0, 0]
    elif form == "a soft cap":
        s = 20 * torch.tanh(s / 20)
    elif form == "a chain":
        s = torch.where(m, torch.tanh(s + b) * 3, -1e9)
    elif form == "alibi":
        s = hidden(j <= i, s + a[:, None, None] * (j - i))
    elif form == "distances":
        s = s - (i - j).abs() * 0.01
    elif form == "prefix":
        s = hidden((j < 17) | (i >= j), s)
    elif form == "a cap and a window":
        s = hidden((i >= j) & (i - j < 40), 30 * torch.tanh(s / 30))
    elif form == "followed by maps":
        after = lambda y: torch.tanh(y) * 2 + 1  # noqa: E731
    elif form == "two results":
        after = lambda y: (y, y)  # noqa: E731
    elif form == "turned":
        after = lambda y: y.transpose(1, 2)  # noqa: E731
    return after(torch.softmax(s, -1) @ v)


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
        assert torch.equal(one.isnan(), wanted.isnan())
        seen = ~wanted.isnan()
        if not seen.any():
            continue
        worst = (one.double() - wanted)[seen].abs().max()
        most = max(1.0, float(wanted[seen].abs().max()))
        assert worst <= 4 * ROUNDING[dtype] * most, (form, float(worst), most)
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

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_both_dtypes(self, dtype):
        for form in ("causal", "a bias of each head", "a soft cap", "alibi"):
            check(form, operands(2, 2, 200, 1000, 128, 128, dtype=dtype), dtype)

    @pytest.mark.parametrize("which", [0, 1, 2, None])
    def test_heads_behind_positions(self, which):
        arguments = operands(2, 3, 190, 300, 64, 64)
        for i in range(3) if which is None else [which]:
            arguments[i] = arguments[i].transpose(1, 2).contiguous().transpose(1, 2)
        check("causal", arguments)

    def test_parts_of_one_array(self):
        x = draw(2, 200, 3, 4, 64)
        q, k, v = (x[:, :, i].transpose(1, 2) for i in range(3))
        check("plain", [q, k, v, *operands(2, 4, 200, 200, 64, 64)[3:]])

    def test_arrays_between_multiples_of_16_bytes(self):
        arguments = operands(2, 3, 190, 300, 64, 64)
        for i in range(3):
            shape = arguments[i].shape
            loose = torch.empty(arguments[i].numel() + 1, device="cuda", dtype=torch.bfloat16)[1:].view(shape)
            arguments[i] = loose.copy_(arguments[i])
        check("a bias of each head", arguments)

    @pytest.mark.parametrize("queries", [1, 130])
    def test_heads_that_share_keys(self, queries):
        arguments = operands(2, 6, queries, 1200, 64, 64)
        arguments[1], arguments[2] = (x[:, :1].expand(-1, 6, -1, -1) for x in arguments[1:3])
        check("plain", arguments)

    @pytest.mark.parametrize("rows", [slice(3, 4), slice(0, 50)])
    def test_rows_that_see_nothing(self, rows):
        arguments = operands(1, 2, 60, 2300, 64, 64)
        mask = arguments[3]
        mask[:], mask[:, 2200] = False, True
        mask[10] = torch.arange(2300, device="cuda") < 5
        mask[rows] = False
        assert check("a mask", arguments)[:, :, rows].isnan().all()

    def test_more_queries_than_keys_of_a_causal_mask(self):
        """The first ones see nothing."""
        got = check("causal", operands(1, 2, 500, 127, 64, 64))
        assert got[:, :, : 500 - 127].isnan().all()

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("where", range(3))
    def test_values_that_are_not_finite(self, value, where):
        arguments = operands(1, 2, 70, 300, 64, 64)
        arguments[where][0, 1, 33, 5] = value
        got, want = forced(FORMS["plain"])(*arguments), reference("plain", arguments)
        assert torch.equal(got.isnan(), want.isnan())
        assert torch.equal(got.isinf(), want.isinf())

    @pytest.mark.parametrize("least", [-1e9, float(torch.finfo(torch.bfloat16).min)])
    def test_rows_of_the_least_number(self, least):
        """Rows where every key has it weigh all of them alike."""
        arguments = operands(1, 2, 70, 300, 64, 64)
        bias = torch.zeros(2, 70, 300, device="cuda", dtype=torch.bfloat16)
        bias[:, :20], bias[:, 30:, 100:] = least, least
        arguments[4] = bias
        got = forced(FORMS["a bias of each head"])(*arguments)
        want = reference("a bias of each head", [*arguments[:4], arguments[4].float(), arguments[5]])
        assert (got[:, :, 20:].double() - want[:, :, 20:]).abs().max() < 0.05
        if least < -1e30:  # the scores beside it are lost
            mean = arguments[2].double().mean(-2, keepdim=True).expand(-1, -1, 20, -1)
            assert (got[:, :, :20].double() - mean).abs().max() < 0.05

    def test_large_scores(self):
        arguments = operands(1, 2, 70, 300, 64, 64)
        arguments[0], arguments[1] = arguments[0] * 30, arguments[1] * 30
        check("plain", arguments)
        check("causal", arguments)

    def test_numbers_of_a_call(self):
        q, k, v, *_ = operands(1, 2, 130, 140, 64, 64)
        f = forced(lambda q, k, v, s: kf.softmax(q @ k.swapaxes(-1, -2) * s) @ v)
        for s in (0.05, 0.2, -0.1):
            want = torch.softmax(q.double() @ k.double().transpose(-1, -2) * s, -1) @ v.double()
            assert (f(q, k, v, s).double() - want).abs().max() < 0.05

    def test_without_heads(self):
        q, k, v, *_ = operands(2, 1, 130, 140, 64, 64)
        f = forced(lambda q, k, v: kf.softmax(q @ k.swapaxes(-1, -2)) @ v)
        for args in ((q[:, 0], k[:, 0], v[:, 0]), (q[0, 0], k[0, 0], v[0, 0])):
            wide_args = [x.double() for x in args]
            want = torch.softmax(wide_args[0] @ wide_args[1].transpose(-1, -2), -1) @ wide_args[2]
            assert (f(*args).double() - want).abs().max() < 0.05

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


BROADCAST = {  # masks of 32 keys: of one number for all of them, of rows that are not aligned, of columns
    "keys": lambda drawn: drawn(1, 32, 1, 1),
    "keys, as wide as they": lambda drawn: drawn(1, 32, 1, 1).expand(1, 32, 40, 32),
    "unaligned rows": lambda drawn: drawn(1, 32, 40, 35)[..., 2:34],
    "columns": lambda drawn: drawn(32, 32, 40).mT,
}


@pytest.mark.cuda
@pytest.mark.skipif(not HAVE_GPU, reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("wants_gradients", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", BROADCAST)
def test_masks_that_torchs_kernels_misread(name, dtype, wants_gradients):
    """By the library's call alone, too: its kernels take rows for aligned, and as long as there are keys."""
    drawn = functools.partial(torch.randn, dtype=dtype, device="cuda")
    q, k, v = drawn(1, 32, 40, 16), drawn(1, 32, 32, 16), drawn(1, 32, 32, 16)
    given = [x.requires_grad_(wants_gradients) for x in (q, k, v, BROADCAST[name](drawn).detach())]
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


@pytest.mark.cuda
@pytest.mark.skipif(not HAVE_GPU, reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("mask", [None, "causal", "array"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)])
def test_results_of_the_librarys_call_lie_as_it_gives_them(order, dtype, mask):
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
@pytest.mark.skipif(not HAVE_GPU, reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("offset", [0, 1, 8])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("shape", [(1, 8, 33, 32), (2, 4, 200, 64)])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)])
def test_gradients_of_the_librarys_attention(order, shape, is_causal, offset):
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
        for g, w in zip(got, want, strict=True):
            assert (g.double() - w).abs().max() < 0.02
