"""Functions that are one kernel in the library and several in a graph: plans take what is predicted to be faster."""

from __future__ import annotations

import functools
import itertools
import json

import pytest

import kfusion as kf
from kfusion._compare import evaluate, libraries
from kfusion._tracing import library_attention
from kfusion._tracing.trace import trace
from sweeps import sweep

torch = pytest.importorskip("torch")
F = torch.nn.functional
HEADS = (2, 8, 1024, 64)


def spec(*shape, dtype="float32"):
    return kf.spec(shape, dtype, like="torch")


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


# ---- what plans take, and why ---------------------------------------------------------------------------------------


def test_attention_is_one_kernel_and_says_why():
    def f(q, k, v, m):
        return torch.relu(causal(q * m + 1, k, v) + m)

    plan = kf.plan(f, *(spec(*HEADS) for _ in range(4)), device="A100 80GB")
    assert [g.ops for g in plan.groups].count(("library_call",)) == 1
    assert len(plan.unfused_groups) == 9  # as written: with scores and probabilities in memory
    assert plan.library.launches == 5
    assert plan.fused.time_us < plan.library.time_us < plan.unfused.time_us
    sentences = [r.sentence for r in plan.refusals if r.reason == "library_is_faster"]
    assert any("torch.scaled_dot_product_attention of the library is predicted to take" in s for s in sentences)
    assert "as the library" in str(plan)
    assert kf.Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


def test_what_saves_most_is_tried_first():
    def f(b, *qs):
        return [torch.relu(F.scaled_dot_product_attention(q * b + 1, q, q, is_causal=True) + q) for q in qs]

    of_rows = [spec(1, 1 + i, 256, 64) for i in range(30)]  # more kinds than are tried, and first by name
    plan = kf.plan(f, spec(64), *of_rows, spec(9, 16, 256, 64), device="A100 80GB")
    assert max(g.compulsory.written for g in plan.groups if g.ops == ("library_call",)) == 9 * 16 * 256 * 64 * 4


def test_our_attention_of_torchs_tensors_may_be_torchs():
    q = spec(8, 12, 1024, 64, dtype="bfloat16")
    ours = kf.plan(lambda q, k, v: kf.attention(kf.square(q), k, v, causal=True), q, q, q, device="H200")
    theirs = kf.plan(lambda q, k, v: causal(kf.square(q), k, v), q, q, q, device="H200")
    assert [g.ops for g in ours.groups] == [g.ops for g in theirs.groups] == [("square",), ("library_call",)]
    three = spec(8, 1024, 64)  # torch's kernels take four axes
    assert "as the library" not in str(kf.plan(kf.attention, three, three, three, device="H200"))


def test_which_attention_is_taken():
    q = spec(4, 16, 4096, 128, dtype="bfloat16")
    whole = kf.plan(F.scaled_dot_product_attention, q, q, q, device="H200")
    assert kf.plan(causal, q, q, q, device="H200").library.flop_total == whole.library.flop_total // 2
    names = [("attention.scores", "attention.softmax")]  # of groups mean kernels
    plan = kf.plan(causal, *(spec(*HEADS) for _ in range(3)), device="H200", forbid=names)
    assert "library_call" not in {op for g in plan.groups for op in g.ops}

    def check(shape, dtype, device):
        q = spec(*shape, dtype=dtype)
        for f in (F.scaled_dot_product_attention, causal, lambda q, k, v: causal(q * 2, k, v) + 1):
            plan = kf.plan(f, q, q, q, device=device)
            assert plan.fused.time_us <= plan.library.time_us * (1 + 1e-9)

    shapes = [(1, 2, 1, 32), (1, 8, 64, 64), (4, 2, 512, 32), (4, 32, 2048, 64), (4, 32, 2048, 128)]
    sweep(check, itertools.product(shapes, ["float32", "bfloat16"], ["H200", "A100 80GB", "EPYC 9654"]))


def test_our_attention_takes_masks_that_torchs_does_not():
    def check(shape, dtype):
        q, k, v = random(1, 2, 5, 8), random(1, 2, 7, 8), random(1, 2, 7, 8)
        mask = (random(*shape) > -0.5 if shape else torch.tensor(True)).to(dtype)
        want = kf.attention(*(x.double().numpy() for x in (q, k, v)), mask=mask.numpy())
        for f in (kf.fuse(kf.attention), kf.fuse(kf.attention).unfused):
            got = f(q, k, v, mask=mask)
            assert got.shape == want.shape
            torch.testing.assert_close(got.double(), torch.from_numpy(want), rtol=1e-5, atol=1e-6)

    shapes = [(), (7,), (5, 7), (2, 1, 7), (1, 2, 1, 7), (3, 1, 5, 7), (1, 1, 1, 5, 7)]
    sweep(check, itertools.product(shapes, [torch.bool, torch.float32]))


def test_steps_that_backward_reads_are_no_kernels_beside_those_of_the_library():
    """The library's call gives the numbers of each row, too; what is as large as x its backward pass computes again."""

    def check(name, f):
        plan = kf.plan(kf.value_and_grad(f, (0, 1)), spec(512, 1024), spec(1024))
        steps = [g for g in plan.unfused_groups if any(stage.startswith(f"{name}.") for stage in g.stages)]
        assert len(steps) > 1
        assert plan.library.launches == plan.unfused.launches - len(steps) + 1
        assert plan.library.issued.total < plan.unfused.issued.total
        assert plan.library.time_us < plan.unfused.time_us

    rows = [
        ("rmsnorm", lambda x, w: (F.rms_norm(x, (1024,), w) ** 2).sum()),
        ("layernorm", lambda x, w: (F.layer_norm(x, (1024,), w) ** 2).sum()),
        ("cross_entropy", lambda x, w: F.cross_entropy(x * w, torch.zeros(512, dtype=torch.int64))),
    ]
    sweep(check, rows)
    # Attention's scores are large and slow: where backward reads them, the steps are counted as they are.
    plan = kf.plan(kf.value_and_grad(lambda q, k, v: (causal(q, k, v) ** 2).sum()), *(spec(2, 4, 128, 64),) * 3)
    assert plan.library == plan.unfused


def test_kernels_are_taken_where_they_are_predicted_to_be_faster():
    def f(x, w):
        return torch.relu(F.layer_norm(F.softmax(x, -1) + x, (4096,), w)) * 2

    plan = kf.plan(f, spec(4096, 4096), spec(4096), device="H200")
    assert len(plan.groups) == 1
    assert plan.library.launches > 1
    assert not [r for r in plan.refusals if r.reason == "library_is_faster"]


def test_a_bias_on_a_gpu_is_no_part_of_a_convolution():
    """torch adds it in a kernel of its own there; on the CPU its convolutions do."""

    def f(x, w, bias):
        return torch.relu(F.conv_transpose2d(x, w, bias, stride=2))

    for device, functions in (("cpu", 3), ("cuda", 2)):
        arrays = [kf.spec(s, "bfloat16", like="torch", device=device) for s in ((2, 8, 9, 9), (8, 4, 2, 2), (4,))]
        calls = [n for n in trace(f, *arrays).graph.to_dict()["nodes"] if n["op"] == "library_call"]
        assert [len(n["arguments"]) for n in calls] == [functions]


# ---- what they give -------------------------------------------------------------------------------------------------


FORMS = {
    "attention": lambda x, w: causal(x, x * 2, w),
    "linear": lambda x, w: F.linear(x.relu(), w[0, 0], w[0, 0, 0]).relu(),
    "addmm": lambda x, w: torch.addmm(w[0, 0], x[0, 0], w[0, 0], beta=2, alpha=0.5),
    "layer_norm": lambda x, w: F.layer_norm(x + w, x.shape[-1:], w[0, 0, 0], w[0, 0, 1]),
    "group_norm": lambda x, w: F.group_norm(x, 2, w[0, 0, 0, :2]) * w,
    "conv2d": lambda x, w: F.conv2d(x, w[:1, :, :3, :3], w[0, 0, 0, :1]).relu(),
    "twice": lambda x, w: causal(causal(x, x, w), w, x),
}


def test_all_ways_give_what_torch_gives(monkeypatch):
    library = libraries.Torch("cpu")
    monkeypatch.setattr(library, "natives", {})
    monkeypatch.setattr(library, "matmul", None)  # what the alternatives stand for is not computed in steps

    def check(_, f):
        x, w = random(2, 2, 8, 8), random(2, 2, 8, 8) + 1
        traced = trace(f, x, w)
        assert traced.alternatives
        (compared,) = evaluate.program(traced, library, alternatives=traced.alternatives)(
            *[i.array for i in traced.inputs]
        )
        for got in (kf.fuse(f)(x, w), kf.fuse(f).unfused(x, w), compared):
            torch.testing.assert_close(got, f(x, w))

    sweep(check, FORMS.items())
    q = random(1, 2, 16, 8).half()
    with torch.no_grad():
        torch.testing.assert_close(kf.fuse(causal)(q, q, q.requires_grad_()), causal(q, q, q), rtol=2e-3, atol=2e-3)


# ---- masks that torch's attention is called with --------------------------------------------------------------------


def mask_given(query, mask, keys=6):
    """The mask that torch's attention is called with."""
    given = []

    def attention(query, key, value, mask, dropout):
        assert dropout == 0
        given.append(mask)
        return query

    key = query.new_empty(*query.shape[:-2], keys, query.shape[-1])
    library_attention.runnable(library_attention.NAME, attention, library_attention.ORDER)(query, key, key, mask)
    return given[0]


def test_masks_with_rows_apart_are_made_dense():
    """torch's fast attention wants that; of what is the same for all heads or texts one part is copied."""
    query = torch.empty(4, 3, 5, 8)
    mask = torch.randn(1, 6, 5, 3).permute(0, 3, 2, 1).expand(4, 3, 5, 6)
    dense = mask_given(query, mask)
    assert torch.equal(dense, mask)
    assert dense.stride() == (0, 30, 6, 1)
    assert mask_given(query, dense) is dense
    assert torch.equal(mask_given(query, mask[..., :1].expand(mask.shape)), mask[..., :1].expand(mask.shape))


def test_masks_of_bools_are_numbers_on_a_gpu():
    """torch's are not always infinite there, and rows that see no key were not 0."""

    def check(dtype):
        query, mask = torch.empty(4, 3, 5, 8, device="meta", dtype=dtype), torch.rand(4, 1, 5, 6) < 0.5
        mask[:, :, 0] = False
        for one in (mask, mask.mT.contiguous().mT, mask[0, 0], mask[:1], mask[..., :1].expand(mask.shape)):
            given = mask_given(query, one.expand(*one.shape[:-3], 3, *one.shape[-2:]) if one.ndim > 2 else one)
            assert (given.dtype, given.stride(-1)) == (dtype, 1)
            assert given.ndim == 2 or given.stride(1) == 0
            torch.testing.assert_close(given, torch.zeros(given.shape, dtype=dtype).masked_fill(~one, -torch.inf))
        assert mask_given(query.new_empty(query.shape, device="cpu"), mask) is mask

    sweep(check, [(torch.bfloat16,), (torch.float16,), (torch.float32,)])


MASKS = {  # of numbers, and of how many keys
    "one number for all keys": lambda drawn: (drawn(1, 3, 1, 1), 32),
    "one number for all keys, as wide as they": lambda drawn: (drawn(1, 3, 5, 1).expand(4, 3, 5, 32), 32),
    "odd rows": lambda drawn: (drawn(4, 1, 5, 33), 33),
    "rows of part of an array": lambda drawn: (drawn(4, 3, 5, 34)[..., 1:33], 32),
    "rows at an odd address": lambda drawn: (drawn(4, 3, 5, 40)[..., 1:33], 32),
    "every second key": lambda drawn: (drawn(5, 64)[:, ::2], 32),
    "columns": lambda drawn: (drawn(3, 32, 5).mT, 32),
    "one key": lambda drawn: (drawn(4, 3, 5, 1), 1),
    "no keys": lambda drawn: (drawn(4, 3, 5, 0), 0),
    "dense": lambda drawn: (drawn(4, 3, 5, 32), 32),
}


def test_masks_are_aligned_on_a_gpu():
    """torch's kernels read rows of a number for each key, at addresses of 16 bytes, whatever strides say."""

    def check(name, make, dtype):
        mask, keys = make(functools.partial(torch.randn, dtype=dtype))
        given = mask_given(torch.empty(4, 3, 5, 8, device="meta", dtype=dtype), mask, keys)
        assert torch.equal(given, mask.expand(*mask.shape[:-1], keys))
        if keys > 0:
            assert (given.stride(-1), given.data_ptr() % 16) == (1, 0)
            assert all(stride % 8 == 0 for stride in given.stride()[:-1])
        assert (given is mask) == (name == "dense")

    sweep(check, [(*row, dtype) for row in MASKS.items() for dtype in (torch.float16, torch.float32)])
    query, weights = torch.empty(4, 3, 5, 8, device="meta"), torch.arange(33.0)
    mask = torch.randn(3, 5, 1, requires_grad=True)  # gradients are summed over keys that share a number
    (mask_given(query, mask, 33) * weights).sum().backward()
    assert torch.equal(mask.grad, torch.full((3, 5, 1), 528.0))
    wide = torch.randn(3, 1, 1).expand(3, 5, 33).requires_grad_()  # elements that share memory have one each
    (mask_given(query, wide, 33) * weights).sum().backward()
    assert torch.equal(wide.grad, weights.expand(3, 5, 33))
