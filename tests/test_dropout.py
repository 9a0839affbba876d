"""Dropout: bits by seed and position, the same on every executor and in both passes, drawn anew in each call."""

from __future__ import annotations

import importlib.util
import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import kfusion as kf
import reference_ops
from kinds import DTYPES, np_dtype
from sweeps import refusals, sweep
from tracing import counting

# The generator's published answers for counters and keys of zeros, of ones, and of the digits of pi: of the last, as
# our op takes 62 bits of the first two words, only the definition that the op is held to.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def bits(*arrays: Any) -> np.ndarray:
    return np.asarray(reference_ops.MAPS["philox"](*arrays))


def mask(shape: tuple[int, ...], p: float, seed: int, stream: int = 0) -> np.ndarray:
    """What dropout keeps, by the definition."""
    n = int(np.prod(shape))
    return (bits(np.arange(n), stream, seed % 2**53) < round((1 - p) * 2**32)).reshape(shape)


def dropped(x: np.ndarray, p: float, seed: int, stream: int = 0) -> np.ndarray:
    return x.astype(float) * np.where(mask(x.shape, p, seed, stream), 1 / (1 - p), 0.0)


# ---- the generator ----


def test_known_answers() -> None:
    def signed(low: int, high: int) -> int:
        return int(np.uint64(high << 32 | low).astype(np.int64))

    for counter, key, words in KNOWN:
        block = counter[1] << 32 | counter[0]
        stream, seed = signed(*counter[2:]), signed(*key)
        assert tuple(reference_ops._philox(4 * block + i, stream, seed) for i in range(4)) == words
        if block in (0, 2**64 - 1):
            assert tuple(kf.philox(4 * signed(*counter[:2]) + np.arange(4), stream, seed)) == words


def test_bits_are_the_definition(rng: np.random.Generator) -> None:
    for n in (1, 3, 8, 31, 33, 100, 4099):
        x, y, z = rng.integers(-(2**63), 2**63 - 1, (3, n))
        for given in ((x, y, z), (x, 3, z), (x, y, -7), (x.astype(np.int32), y, z)):
            np.testing.assert_array_equal(kf.philox(*given), bits(*given))
    assert kf.philox(x.astype(np.int32), x.astype(np.int32), 1).dtype == np.int64


def test_words_are_uniform_and_independent() -> None:
    n = 1 << 20
    u = kf.philox(np.arange(n), 0, 12345) / 2**32
    assert abs(u.mean() - 0.5) < 4 * np.sqrt(1 / 12 / n)
    counts = np.bincount((u * 256).astype(int), minlength=256)
    chi2 = ((counts - n / 256) ** 2 / (n / 256)).sum()
    assert abs(chi2 - 255) < 5 * np.sqrt(2 * 255)
    others = [kf.philox(np.arange(n), *key) / 2**32 for key in ((1, 12345), (0, 12346))]  # another stream, another seed
    for v in (*(np.roll(u, k) for k in (1, 2, 3, 4, 1024)), *others):
        assert abs(np.corrcoef(u, v)[0, 1]) < 5 / np.sqrt(n)


# ---- kf.dropout ----


@pytest.mark.parametrize("dtype", DTYPES)
def test_values(dtype: str, isa: str, rng: np.random.Generator) -> None:
    for shape in [(), (1,), (7,), (5, 33), (3, 1, 17), (129, 65), (0, 4)]:
        x = rng.standard_normal(shape).astype(np_dtype(dtype))
        for p, seed in ((0.5, 3), (0.1, 2**60 + 5), (0.9, -1)):
            got = kf.dropout(x, p, seed=seed)
            assert got.dtype == x.dtype
            tolerance = {"float16": 1e-3, "bfloat16": 1e-2, "float32": 1e-6, "float64": 1e-15}[dtype]
            smallest = 2.0**-24 if dtype == "float16" else 0.0  # of what is subnormal
            np.testing.assert_allclose(np.asarray(got, float), dropped(x, p, seed), rtol=tolerance, atol=smallest)


def test_layouts(rng: np.random.Generator) -> None:
    x = rng.standard_normal((12, 10, 6))
    for view in (x.T, x[::2, ::-1], x.transpose(1, 0, 2), np.broadcast_to(x[:1], x.shape), x[:, 3]):
        np.testing.assert_allclose(kf.dropout(view, 0.4, seed=9), dropped(view, 0.4, 9), rtol=1e-15)


def test_ends_of_p(rng: np.random.Generator) -> None:
    x = rng.standard_normal((4, 5))
    x[0, :3] = np.nan, np.inf, -np.inf
    np.testing.assert_array_equal(kf.dropout(x, 0, seed=1), x)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(kf.dropout(x, 1, seed=1), x * 0)
        np.testing.assert_array_equal(kf.dropout(x, 0.5, seed=1), x * np.where(mask(x.shape, 0.5, 1), 2, 0))
    assert (kf.dropout(np.ones(10000), 1e-12, seed=1) != 0).all()
    assert (kf.dropout(np.ones(10000), 1 - 1e-12, seed=1) == 0).all()


ONES = np.ones(4)
SEED = r"dropout: seed must be an int"
ERRORS: list[tuple[Any, type[Exception], str]] = [
    *((lambda p=p: kf.dropout(ONES, p, seed=1), ValueError, r"dropout: p must be from 0 to 1") for p in (-0.1, 1.5)),
    (lambda: kf.dropout(ONES, float("nan"), seed=1), ValueError, r"dropout: p must be from 0 to 1"),
    (lambda: kf.dropout(ONES, 0.5), ValueError, f"{SEED} for arrays that are not torch's"),
    *((lambda s=seed: kf.dropout(ONES, 0.5, seed=s), TypeError, SEED) for seed in (1.0, True, "a", ONES)),
    (lambda: kf.dropout(np.arange(4), 0.5, seed=1), TypeError, r"dropout: x must be floats"),
    *((lambda x=x: kf.philox(x, x, x), TypeError, "philox: arguments must be integers") for x in (ONES, ONES > 2)),
]


def test_errors() -> None:
    refusals(ERRORS)


def test_seeds_and_sizes_trace_once() -> None:
    fused = counting(lambda x, seed, p: kf.dropout(kf.sin(x), p, seed=seed) + kf.dropout(x, 0.5, seed=seed))
    x = np.linspace(0, 1, 1000)
    for seed in (1, 2, -5, 2**62, 2**53 - 1, 2**53, 1):
        want = dropped(np.sin(x), 0.25, seed) + dropped(x, 0.5, seed, 1)
        np.testing.assert_allclose(fused(x, seed, 0.25), want, rtol=1e-14)
    assert len(fused.count) == 1
    np.testing.assert_array_equal(fused.unfused(x, 4, 0.25), fused(x, 4, 0.25))
    fused(x, 1, 0.75)
    assert len(fused.count) == 3
    f = kf.fuse(lambda x, seed: kf.dropout(x, 0.5, seed=seed))
    for n, m in ((3, 4), (5, 6), (9, 2), (1, 7), (100, 33)):
        np.testing.assert_array_equal(f(np.ones((n, m)), n), dropped(np.ones((n, m)), 0.5, n))


def test_the_mask_is_never_stored() -> None:
    plan = kf.plan(lambda x: kf.dropout(kf.exp(x), 0.1, seed=1), kf.spec((512, 512), "float32"))
    assert len(plan.groups) == 1
    assert plan.groups[0].compulsory.total == 2 * 4 * 512 * 512
    x = np.ones((13, 7), np.float32)
    kf.compare(lambda x: kf.dropout(x, 0.5, seed=3), x, peers=["numpy"], repeats=1)  # raises where they differ


def test_reductions_and_rows(rng: np.random.Generator) -> None:
    x = rng.standard_normal((33, 257))
    f = kf.fuse(lambda x, s: kf.softmax(kf.dropout(x, 0.3, seed=s), -1))
    e = np.exp(dropped(x, 0.3, 5))
    np.testing.assert_allclose(f(x, 5), e / e.sum(-1, keepdims=True), rtol=1e-12)
    g = kf.fuse(lambda x, s: kf.dropout(x.T, 0.3, seed=s).sum(0))
    np.testing.assert_allclose(g(x, 5), dropped(x.T, 0.3, 5).sum(0), rtol=1e-12, atol=1e-12)  # sums may cancel


def test_gradients_of_arrays(rng: np.random.Generator) -> None:
    x = rng.standard_normal((9, 31))
    scale = np.where(mask(x.shape, 0.4, 8), 1 / 0.6, 0.0)

    def loss(x, seed):
        return kf.square(kf.dropout(x, 0.4, seed=seed)).sum()

    np.testing.assert_allclose(kf.grad(loss)(x, 8), 2 * x * scale**2, rtol=1e-14)
    value, gradient = kf.fuse(kf.value_and_grad(loss))(x, 8)
    np.testing.assert_allclose(value, ((x * scale) ** 2).sum(), rtol=1e-13)
    np.testing.assert_allclose(gradient, 2 * x * scale**2, rtol=1e-14)
    y, pull = kf.vjp(lambda x: kf.dropout(x, 0.4, seed=8), x)
    np.testing.assert_array_equal(y, x * scale)
    np.testing.assert_array_equal(pull(np.ones_like(x))[0], scale)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_within_products(dtype: str, rng: np.random.Generator) -> None:
    """Epilogues of products, scores of attention: the same mask as alone."""
    x, w = (rng.standard_normal(s).astype(np_dtype(dtype)) for s in ((37, 65), (65, 83)))
    one = np.ones((37, 83), np_dtype(dtype))
    kept = mask(one.shape, 0.3, 4)
    y = kf.fuse(lambda x, w: kf.dropout(kf.exp(x @ w * 0.01), 0.3, seed=4))(x, w)
    np.testing.assert_array_equal(np.asarray(y, float) != 0, kept)
    largest = kf.fuse(lambda x, w: kf.dropout(kf.exp(x @ w * 0.01), 0.3, seed=4).max(-1))(x, w)
    np.testing.assert_allclose(np.asarray(largest, float), np.asarray(y, float).max(-1), rtol=2e-2)
    q, k, v = (rng.standard_normal((2, 3, 70, 16)).astype(np_dtype(dtype)) for _ in range(3))

    def attended(q, k, v):
        return kf.softmax(kf.dropout(q @ k.swapaxes(-1, -2) * 0.1, 0.3, seed=4), -1) @ v

    scores = (np.asarray(q, float) @ np.asarray(k, float).swapaxes(-1, -2)) * 0.1
    e = np.exp(dropped(scores, 0.3, 4))
    want = e / e.sum(-1, keepdims=True) @ np.asarray(v, float)
    np.testing.assert_allclose(np.asarray(kf.fuse(attended)(q, k, v), float), want, rtol=2e-2, atol=2e-2)


# ---- torch ----

torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
F: Any = torch and torch.nn.functional


def same(found: Any, want: Any) -> None:
    torch.testing.assert_close(found, want)


@pytest.mark.skipif(torch is None, reason="needs torch")
class TestTorch:
    @pytest.fixture(autouse=True)
    def _seed(self) -> None:
        torch.manual_seed(0)

    def test_calls_draw_from_torchs_generator(self) -> None:
        fused, x = counting(lambda x: F.dropout(x, 0.3) + F.dropout(x, 0.3)), torch.ones(1000)
        first = [fused(x) for _ in range(3)]
        torch.manual_seed(0)
        again = [fused(x) for _ in range(3)]
        assert len(fused.count) == 1
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        assert not any(torch.equal(a, b) for a, b in itertools.combinations(first, 2))
        assert len(set(first[0].tolist())) == 3  # two masks in one call

    def test_state_moves_only_where_numbers_are_drawn(self) -> None:
        fused = kf.fuse(lambda x, training: F.dropout(x, 0.5, training))
        for x in (torch.ones(5), torch.ones(5, requires_grad=True)):
            before = torch.get_rng_state()
            assert fused(x, False).tolist() == [1] * 5
            assert torch.equal(torch.get_rng_state(), before)
            fused(x, True)
            assert not torch.equal(torch.get_rng_state(), before)

    def test_gradients_are_the_scale(self) -> None:
        def check(p: float, dtype: str) -> None:
            x = torch.ones(37, 41, dtype=getattr(torch, dtype), requires_grad=True)
            y = kf.fuse(lambda x: F.dropout(x, p))(x)
            (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y), retain_graph=True)
            assert torch.equal(gradient, y.detach())  # of ones: the scale, where it is kept
            assert torch.equal(torch.autograd.grad(y, x, torch.ones_like(y))[0], gradient)
            scale = torch.tensor(1 / (1 - p) if p < 1 else 0.0, dtype=torch.float64).to(y.dtype)
            assert set(y.detach().unique().tolist()) <= {0.0, float(scale)}
            kept = (y != 0).double().mean().item()
            assert abs(kept - (1 - p)) < 5 * np.sqrt(0.25 / y.numel())

        sweep(check, itertools.product([0.0, 0.2, 0.5, 1.0], DTYPES))

    def test_backward_later_and_out_of_order(self) -> None:
        fused, x = kf.fuse(lambda x: F.dropout(torch.sin(x), 0.5)), torch.ones(500, requires_grad=True)
        made = [fused(x) for _ in range(4)]
        for y in reversed(made):
            (g,) = torch.autograd.grad(y.sum(), x)
            same(g, y.detach() / torch.sin(torch.tensor(1.0)) * torch.cos(torch.tensor(1.0)))

    def test_a_pullback_has_the_mask_of_its_results(self) -> None:
        x, g = torch.rand(300) + 0.5, torch.randn(300)
        for _ in range(2):
            y, pull = kf.vjp(lambda x: F.dropout(x, 0.5), x)
            other, _ = kf.vjp(lambda x: F.dropout(x, 0.5), x)
            assert not torch.equal(y, other)
            for _ in range(2):
                same(pull(g)[0], y / x * g)
        (gradient,) = torch.unique(kf.grad(lambda x: F.dropout(x, 0.5).sum())(x) % 2)
        assert gradient == 0
        x = (torch.rand(300, dtype=torch.float64) + 0.5).requires_grad_()
        y, pull = kf.vjp(lambda x: F.dropout(x * x, 0.5), x)
        (first,) = pull(torch.ones_like(y))
        drop = y.detach() / x.detach() ** 2
        for found in (first.detach(), torch.autograd.grad(y.sum(), x)[0]):
            same(found, 2 * x.detach() * drop)
        same(torch.autograd.grad(first.sum(), x)[0], 2 * drop)

    def test_modules(self) -> None:
        nn = torch.nn
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Dropout(0.5, inplace=True), nn.Linear(16, 4))
        layer = nn.TransformerEncoderLayer(8, 2, 32, dropout=0.2, batch_first=True)
        for module, x in ((model, torch.randn(6, 8)), (layer, torch.randn(3, 7, 8))):
            fused = kf.fuse(module)
            y = fused(x)
            y.square().sum().backward()
            assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())
            assert not torch.equal(fused(x), y)
            module.eval()
            torch.testing.assert_close(fused(x), module(x), rtol=1e-4, atol=1e-5)

    def test_gradients_of_a_model_are_those_of_its_mask(self) -> None:
        """Eager torch with the mask that the fused call has drawn."""
        w, v, x = (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((8, 16), (16, 4), (6, 8)))

        def f(x, w, v):
            h = F.dropout(torch.tanh(x @ w), 0.5)
            return h @ v, h

        y, h = kf.fuse(f)(x, w, v)
        drop = (h != 0).double() * 2
        want = (torch.tanh(x @ w) * drop) @ v
        same(y, want)
        g = torch.randn_like(y)
        same(torch.autograd.grad(y, (x, w, v), g), torch.autograd.grad(want, (x, w, v), g))

    def test_threads(self) -> None:
        """Each call has the seed that its thread drew."""
        fused = kf.fuse(lambda x: F.dropout(x, 0.5))

        def passes(n: int) -> bool:
            x = torch.ones(64 + n % 4, requires_grad=True)
            made = [fused(x) for _ in range(3)]
            return all(torch.equal(torch.autograd.grad(y.sum(), x)[0], y.detach()) for y in made[::-1])

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(passes, range(200)))

    @pytest.mark.parametrize("use_reentrant", [False, True])
    def test_checkpoint(self, use_reentrant: bool) -> None:
        from torch.utils.checkpoint import checkpoint

        fused, x = kf.fuse(lambda x: F.dropout(x, 0.5)), torch.ones(300, requires_grad=True)
        y = checkpoint(lambda x: fused(x) * fused(x), x, use_reentrant=use_reentrant)
        torch.rand(3)
        y.sum().backward()
        assert torch.equal(x.grad, 2 * y.detach())

    def test_a_seed_given(self) -> None:
        x = torch.ones(64, requires_grad=True)
        state = torch.get_rng_state()
        y = kf.dropout(x, 0.5, seed=11)
        assert torch.equal(torch.get_rng_state(), state)
        np.testing.assert_array_equal(y.detach().numpy(), dropped(np.ones(64), 0.5, 11))
        a, b = kf.dropout(x, 0.5), kf.dropout(x, 0.5)
        assert not torch.equal(a, b)
        for z in (y, a):
            assert torch.equal(torch.autograd.grad(z.sum(), x)[0], z.detach())

    def test_whole_channels(self) -> None:
        def check(name: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
            function = getattr(F, name, None) or getattr(torch, name)
            y = kf.fuse(lambda x: function(x, 0.5, True))(torch.ones(shape))
            assert torch.equal(y.amax(axes), y.amin(axes))
            assert 0.2 < (y.amax(axes) == 2).double().mean().item() < 0.8
            assert set(y.unique().tolist()) == {0.0, 2.0}

        sweep(
            check,
            [
                ("dropout1d", (6, 20, 5), (2,)),
                ("dropout1d", (50, 5), (1,)),
                ("dropout2d", (6, 20, 3, 4), (2, 3)),
                ("dropout3d", (6, 20, 2, 3, 2), (2, 3, 4)),
                ("dropout3d", (70, 2, 3, 2), (1, 2, 3)),
                ("feature_dropout", (6, 20, 7), (2,)),
            ],
        )

    def test_alpha(self) -> None:
        for function in (F.alpha_dropout, F.feature_alpha_dropout):
            fused, ones = kf.fuse(lambda x, f=function: f(x, 0.3, True)), torch.ones(50, 40, dtype=torch.float64)
            got, want = (sorted(f(ones).unique().tolist()) for f in (fused, lambda x, f=function: f(x, 0.3, True)))
            np.testing.assert_allclose(got, want, rtol=1e-12)
            x = torch.randn(300, 400, dtype=torch.float64)
            y = fused(x)
            assert abs(y.mean().item()) < 0.02
            assert abs(y.std().item() - 1) < 0.02
            assert torch.equal(kf.fuse(lambda x, f=function: f(x, 0.3))(x), x)  # not in training by default
            assert torch.equal(kf.fuse(lambda x, f=function: f(x, 1.0, True))(x), x * 0)

    def test_attention(self) -> None:
        """The values are a unit matrix, so the result is the weights themselves."""

        def check(p: float, causal: bool, positions: int) -> None:
            q, k = torch.randn(2, 2, 3, positions, 8, dtype=torch.float64).requires_grad_().unbind()
            v = torch.eye(positions, dtype=torch.float64).expand(2, 3, -1, -1)
            hidden = torch.ones(positions, positions, dtype=torch.bool).triu(1) & causal
            want = torch.softmax((q @ k.transpose(-1, -2) / 8**0.5).masked_fill(hidden, -1e30), -1)
            attended = lambda q, k: F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=causal)  # noqa: E731
            y = kf.fuse(attended)(q, k)
            kept = y != 0
            if p == 1:
                assert not kept.any()
                return
            assert positions < 40 or abs(kept[want > 0].double().mean().item() - (1 - p)) < 0.05
            want = want * kept / (1 - p)
            g = torch.randn_like(want)
            same(y, want)
            same(torch.autograd.grad(y, (q, k), g), torch.autograd.grad(want, (q, k), g))

        sweep(check, [(0.4, False, 40), (0.4, True, 40), (1.0, False, 40), (0.5, False, 9)])

    def test_refusals(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ones, f = torch.ones(3), kf.fuse(lambda x, a: F.dropout(x * a, 0.5))

        drawing = r"draws random numbers, others in each call: pass kf.dropout a seed"
        rows = [
            (lambda: kf.fuse(lambda x: F.dropout(x, 1.5))(ones), ValueError, "p must be from 0 to 1"),
            (lambda: f(torch.arange(3), 1), TypeError, r"not traced|must be floats"),
            (lambda: kf.fuse(lambda x: torch.native_dropout(x, 0.5, True)[0])(ones), TypeError, "not traced"),
            (lambda: kf.compare(lambda x: F.dropout(x, 0.5), ones), TypeError, drawing),
        ]
        refusals(rows)
        f(ones, 2.0)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        refusals([(lambda: f(ones, 2.0), RuntimeError, "the replays of a CUDA graph would all draw the same")])

    def test_plans(self) -> None:
        """A plan is one of any seed, also as text and JSON."""
        fused = kf.fuse(lambda x: F.dropout(torch.exp(x), 0.5))
        plan = fused.plan(torch.ones(64, 64))
        assert len(plan.groups) == 1
        assert pickle.loads(pickle.dumps(plan)).to_dict() == plan.to_dict()
        assert "philox" in fused.source(torch.ones(64, 64)) or "RandomWords" in fused.source(torch.ones(64, 64))

    def test_without_gradients(self) -> None:
        """Also where a kernel cannot write to out."""
        fused, x = kf.fuse(lambda x: F.dropout(x, 0.5)), torch.ones(100, requires_grad=True)
        for context in (torch.no_grad(), torch.inference_mode()):
            with context:
                out = torch.empty(200)[::2]
                for y in (fused(x), fused(x, out=out), out):
                    assert not y.requires_grad
                    assert set(y.tolist()) == {0.0, 2.0}
