"""Functions for each of many sets of arrays, and the optimizers that are made of them."""

import copy
import itertools
from concurrent.futures import ThreadPoolExecutor

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import kfusion as kf
from kfusion import _core
from kfusion._devices import devices
from kfusion._tracing.trace import trace
from sweeps import refusals, sweep
from test_codegen_compiles import nvcc
from tracing import Traces

torch = pytest.importorskip("torch")
optim = pytest.importorskip("kfusion.optim")

SHAPES = [(), (1,), (0,), (7,), (3, 5), (4095,), (4096,), (4097,), (2, 3, 5, 7), (129, 257), (1, 1), (0, 4), (70_001,)]


@kf.for_each
def axpy(p, g, m, lr):
    m *= 0.5
    m += g
    p -= lr * m


def arrays(shapes, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.standard_normal(s), dtype) for s in shapes]


def plain(ps, gs, ms, lr):
    for p, g, m in zip(ps, gs, ms, strict=True):
        m *= p.dtype.type(0.5)
        m += g
        p -= p.dtype.type(lr) * m


def require_equal(mine, want):
    for a, b in zip(mine, want, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


class TestForEach:
    def test_numpy(self):
        @hypothesis.settings(max_examples=15, deadline=None)
        @hypothesis.given(
            st.lists(st.lists(st.integers(0, 40), max_size=3), max_size=12), st.lists(st.floats(-2, 2), max_size=3)
        )
        @hypothesis.example(SHAPES, [0.1, 0.25])
        def check(dtype, shapes, numbers):
            mine = [arrays(shapes, dtype, i) for i in range(3)]
            want = copy.deepcopy(mine)
            for lr in numbers:
                assert axpy(*mine, lr) is None
                plain(*want, lr)
            require_equal(mine, want)

        check(np.float32)
        check(np.float64)

    def test_memory_around_is_left(self):
        """Views one behind the other, whose ends are no multiples of a tile."""
        rooms = [np.full(40_000, 7.0, np.float32) for _ in range(3)]
        cuts = [(3, 10), (11, 12), (13, 4109), (4111, 30_000)]
        sets = [[r[a:b] for a, b in cuts] for r in rooms]
        axpy(*sets, 0.5)
        outside = np.ones(40_000, bool)
        for a, b in cuts:
            outside[a:b] = False
        assert all((r[outside] == 7).all() for r in rooms)
        assert all((p == 7 - 0.5 * 10.5).all() for p in sets[0])

    def test_arrays_that_lie_otherwise(self):
        def lists(seed):
            wide = arrays([(6, 8)], np.float32, seed)[0]
            return [wide[:, :3], wide[:, 4:7].T.copy().T, arrays([(5, 4)], np.float32, seed)[0].T, wide[1:2, 3:4]]

        mine, want = ([lists(i) for i in range(3)] for _ in range(2))
        mine[1][0] = np.ascontiguousarray(mine[1][0])
        axpy(*mine, 0.5)
        plain(*want, 0.5)
        require_equal(mine, want)

    def test_functions_that_are_not_elementwise(self):
        @kf.for_each
        def decay(p, rate):
            p *= 1 - rate if p.ndim >= 2 else 2.0  # looks at shapes

        @kf.for_each
        def centre(p):
            p -= p.mean()

        ps = [np.ones((2, 3), np.float32), np.ones(6, np.float32)]
        decay(ps, 0.5)
        require_equal([ps], [[np.full((2, 3), 0.5), np.full(6, 2.0)]])
        ps = arrays([(3, 4), (7,), (50,)])
        want = [p - p.mean() for p in ps]
        centre(ps)
        for p, w in zip(ps, want, strict=True):
            np.testing.assert_allclose(p, w, atol=1e-6)

    def test_results(self):
        @kf.for_each
        def grown(x):
            x += 1
            return x

        twice = kf.for_each(lambda x: x * 2)([np.ones(3), np.ones((2, 2))])
        require_equal([twice], [[np.full(3, 2), np.full((2, 2), 2)]])
        xs = [np.zeros(3), np.zeros(4)]
        got = grown(xs)
        assert [g is x for g, x in zip(got, xs, strict=True)] == [True, True]
        require_equal([xs], [[np.ones(3), np.ones(4)]])

    def test_plans(self):
        """All elements once, whatever their shapes, beside what a plan of one array of so many has."""
        shapes = [(3, 5), (4096,), (), (1, 1), (0, 4), (7, 2, 2), (3, 5)]
        total = sum(map(np.prod, shapes))
        specs = [kf.spec(s, "float32") for s in shapes]
        mine = [arrays(shapes, np.float32, i) for i in range(3)]
        for given in ([specs] * 3, mine):
            plan = axpy.plan(*given, 0.1, device="H200")
            assert (plan.calls, plan.launches, len(plan.parts)) == (len(shapes), 1, 1)
            assert plan.parts[0].together
            want = kf.fuse(axpy.__wrapped__).plan(*[kf.spec((int(total),), "float32")] * 3, 0.1, device="H200")
            assert plan.bytes == want.fused.issued.total == 5 * 4 * total
            assert plan.time_us == want.fused.time_us
        assert "7 calls, 1 launches" in str(plan)
        assert plan.to_dict()["parts"][0]["plan"]["fused"]["launches"] == 1
        np.testing.assert_array_equal(mine[0][1], arrays(shapes, np.float32, 0)[1])  # nothing ran

    def test_plans_of_calls_that_differ(self):
        shapes = [(3, 5), (40,), (2, 2)]
        mixed = [np.zeros(s, t) for s in shapes for t in (np.float32, np.float64)]
        plan = kf.for_each(_add).plan(mixed, by=2.0)
        assert [(p.calls, p.together, p.launches) for p in plan.parts] == [(3, True, 1), (3, True, 1)]
        assert plan.bytes == 2 * sum(x.nbytes for x in mixed)

        def centre(p):
            p -= p.mean()

        plan = kf.for_each(centre).plan([np.ones((3, 4)), np.ones(7), np.ones(7)])
        assert [(p.calls, p.together) for p in plan.parts] == [(1, False), (2, False)]
        one = kf.fuse(centre).plan(np.ones(7))
        assert plan.parts[1].launches == 2 * one.fused.launches
        assert plan.parts[1].time_us == 2 * one.fused.time_us
        twice = kf.for_each(lambda x: x * 2).plan([np.ones(3), np.ones((2, 2))])
        assert not any(p.together for p in twice.parts)
        odd = kf.for_each(lambda p, g: p.sub_(g)).plan([torch.ones(3, 4)] * 2, [torch.ones(3, 4), torch.ones(4, 3).T])
        assert [(p.calls, p.together) for p in odd.parts] == [(1, True), (1, False)]
        with pytest.raises(ValueError, match="must have as many items as"):
            axpy.plan([kf.spec((3,))], [], [], 0.1)

    def test_numbers(self):
        """By item and by name; other ones are not traced again."""
        ps, traced = [np.ones(3), np.ones(5), np.ones(2)], Traces()
        kf.for_each(_add)(ps, by=[1.0, 2.0, 1.0])
        assert [p[0] for p in ps] == [2, 3, 2]

        @kf.for_each
        def step(p, lr, n):
            traced()
            p -= lr / (1 - 0.9**n)

        step(ps, 0.1, 1)
        first = len(traced)
        for n in range(2, 20):
            step(ps, 0.1 * n, n)
        assert len(traced) == first

    def test_threads(self):
        sets = [[[np.full(n, k, np.float32) for n in (5, 4096, 70_000)] for k in (0, 1, 0)] for _ in range(4)]
        want = [np.zeros(1, np.float32), np.ones(1, np.float32), np.zeros(1, np.float32)]
        for _ in range(50):
            plain(*[[w] for w in want], 1.0)

        def work(own):
            for _ in range(50):
                axpy(*own, 1.0)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, sets))
        assert all((x == want[0]).all() for p, _, _ in sets for x in p)


def _add(p, by):
    p += by


ROOM = np.ones(6, np.float32)
# What is spoiled in lists of two arrays each, and what is said of it.
REFUSED = [
    (lambda p, g, m: g.pop(), ValueError, "g must have as many items as p"),
    (lambda p, g, m: g.__setitem__(1, np.ones(5, np.float32)), ValueError, "broadcast|shape"),
    (lambda p, g, m: [x.__setitem__(1, x[1].astype(np.int64)) for x in (p, m)], TypeError, "p|int64"),
    (lambda p, g, m: m[1].setflags(write=False), ValueError, "read-only"),
    (lambda p, g, m: [x.__setitem__(1, x[0].copy()) for x in (g, m)] + [p.__setitem__(1, p[0])], ValueError,
     "places 0 and 1 of the lists share memory"),
    (lambda p, g, m: p.__setitem__(slice(None), [ROOM[:3], ROOM[2:6]]), ValueError, "share memory"),
]  # fmt: skip


def test_refusals():
    def check(spoil, error, match):
        lists = [arrays([(3,), (4,)], np.float32, i) for i in range(3)]
        spoil(*lists)
        before = copy.deepcopy([lists[0], lists[2]])
        with pytest.raises(error, match=match):
            axpy(*lists, 0.1)
        require_equal([lists[0], lists[2]], before)

    sweep(check, REFUSED)
    ps, gs, ms = (arrays([(3,), (3,)], np.float32, i) for i in range(3))
    axpy(ps, [gs[0], gs[0]], ms, 0.1)  # one gradient for two is none
    p = torch.ones(3, requires_grad=True)
    refusals(
        [
            (lambda: axpy(*[np.ones(3)] * 3, 0.1), TypeError, "takes lists"),
            (lambda: kf.for_each(_add)([np.ones(3), torch.ones(3)], 1.0), TypeError, "one library"),
            (lambda: kf.for_each(_add)([p], 1.0), (RuntimeError, TypeError), "."),
        ]
    )
    assert (p == 1).all()


def parameters(dtype, seed=0, shapes=SHAPES):
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]
    made[4] = made[4].T.contiguous().T
    made[8] = made[8].to(memory_format=torch.channels_last)
    return [torch.nn.Parameter(p) for p in made]


def give_gradients(params, seed):
    generator = torch.Generator().manual_seed(seed)
    for i, p in enumerate(params):
        g = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        p.grad = (g + 0.1 * g.sign()).to(p.dtype)  # whose squares float16 has
        if i == 8:
            p.grad = p.grad.to(memory_format=torch.channels_last)


PAIRS = {
    "sgd": (optim.SGD, torch.optim.SGD, {"lr": 0.1}),
    "sgd_decay": (optim.SGD, torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.01, "maximize": True}),
    "momentum": (optim.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    "nesterov": (optim.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": (optim.Adam, torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
    "amsgrad": (optim.Adam, torch.optim.Adam, {"lr": 0.01, "amsgrad": True, "maximize": True}),
    "adamw": (optim.AdamW, torch.optim.AdamW, {"lr": 0.01, "betas": (0.8, 0.95), "weight_decay": 0.1}),
}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 0.05, torch.float16: 0.01}


def close(a, b, dtype):
    torch.testing.assert_close(a.double(), b.double(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], equal_nan=True)


class TestOptimizers:
    def test_against_torch(self, some):
        def check(name, dtype):
            ours, theirs, options = PAIRS[name]
            mine = parameters(dtype)
            wide = dtype if dtype.itemsize > 2 else torch.float64  # half types are computed in float32 here
            want = [torch.nn.Parameter(p.detach().to(wide, copy=True)) for p in mine]
            a, b = ours(mine, **options), theirs(want, foreach=False, **options)
            for step in range(4):
                give_gradients(mine, step)
                for p, q in zip(mine, want, strict=True):
                    q.grad = p.grad.to(wide)
                if step == 2:
                    mine[3].grad = want[3].grad = None
                version = mine[0]._version
                a.step()
                b.step()
                assert mine[0]._version > version
            for x, y in zip(mine, want, strict=True):
                close(x, y, dtype)
                assert a.state[x].keys() == b.state[y].keys()
                for key, value in a.state[x].items():
                    close(value, b.state[y][key], dtype)

        sweep(check, some(itertools.product(PAIRS, TOLERANCE), 4))

    def test_lion(self):
        (p,) = params = [torch.nn.Parameter(torch.randn(50, dtype=torch.float64))]
        x, m = p.detach().clone(), torch.zeros(50, dtype=torch.float64)
        o = optim.Lion(params, lr=0.01, betas=(0.9, 0.99), weight_decay=0.1)
        for step in range(3):
            p.grad = torch.randn(50, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
            o.step()
            x = x * (1 - 0.01 * 0.1) - 0.01 * torch.sign(0.9 * m + 0.1 * p.grad)
            m = 0.99 * m + 0.01 * p.grad
        torch.testing.assert_close(p.detach(), x, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(o.state[p]["exp_avg"], m, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("name", ["momentum", "adam", "amsgrad", "adamw"])
    def test_state_dicts_go_both_ways(self, name):
        ours, theirs, options = PAIRS[name]
        mine, want = parameters(torch.float64), parameters(torch.float64)
        a, b = ours(mine, **options), theirs(want, **options)
        for step in range(6):
            give_gradients(mine, step)
            give_gradients(want, step)
            a.step()
            b.step()
            if step in (1, 3):
                saved = [copy.deepcopy(o.state_dict()) for o in (a, b)]
                a, b = ours(mine, **options), theirs(want, **options)
                a.load_state_dict(saved[1])
                b.load_state_dict(saved[0])
        for x, y in zip(mine, want, strict=True):
            close(x, y, torch.float64)

    def test_states_of_another_dtype(self):
        mine = parameters(torch.bfloat16)
        o = optim.AdamW(mine, lr=0.01, state_dtype=torch.float32)
        for step in range(2):
            give_gradients(mine, step)
            o.step()
        assert o.state[mine[5]]["exp_avg"].dtype == torch.float32
        saved = copy.deepcopy(o.state_dict())
        again = optim.AdamW(mine, lr=0.01, state_dtype=torch.float32)
        again.load_state_dict(saved)
        for p in mine:
            assert torch.equal(again.state[p]["exp_avg_sq"], o.state[p]["exp_avg_sq"])
            assert again.state[p]["exp_avg_sq"].dtype == torch.float32

    def test_groups_schedulers_and_closures(self):
        def run(kind):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
            groups = [{"params": [model[0].weight, model[2].weight]}, {"params": [model[0].bias], "weight_decay": 0.0}]
            o = kind(groups, lr=0.05, weight_decay=0.1)
            o.add_param_group({"params": [model[2].bias], "lr": 0.5})
            scheduler = torch.optim.lr_scheduler.ExponentialLR(o, 0.7)
            x = torch.randn(20, 6, dtype=torch.float64)

            def closure():
                o.zero_grad()
                loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
                loss.backward()
                return loss

            losses = []
            for _ in range(6):
                losses.append(o.step(closure).item())
                scheduler.step()
            return losses

        assert run(optim.AdamW) == pytest.approx(run(torch.optim.AdamW), rel=1e-10)

    def test_refusals(self):
        p, z = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))

        def check(error, match, call, parameter=p, gradient=None):
            parameter.grad = gradient
            with pytest.raises(error, match=match):
                call()

        check(RuntimeError, "sparse", optim.AdamW([p]).step, p, torch.ones(3).to_sparse())
        check(RuntimeError, "complex", optim.SGD([z], lr=0.1).step, z, torch.ones_like(z))
        check(RuntimeError, "capturable", optim.AdamW([p], capturable=True).step, p, torch.ones(3))
        check(ValueError, "Lion", lambda: optim.Lion([p], betas=(1.0, 0.5)))


_NUMBERS = (1e-3, 0.9, 0.999, 1e-8, 0.01, 3)
RULES = {
    "sgd": (optim._sgd, 0, (0.1, 0.01, True)),
    "momentum": (optim._momentum, 1, (0.1, 0.9, 0.1, 0.1, True, False)),
    "adam": (optim._adam, 2, (None, *_NUMBERS, False, False)),
    "adamw": (optim._adam, 2, (None, *_NUMBERS, True, False)),
    "amsgrad": (optim._adam, 3, (*_NUMBERS, False, True)),
    "lion": (optim._lion, 1, (0.1, 0.9, 0.99, 0.1, False)),
}


@pytest.mark.slow
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("dtypes", [("bfloat16", "bfloat16"), ("bfloat16", "float32"), ("float32", "float32")])
@pytest.mark.parametrize("name", RULES)
def test_the_optimizers_are_one_kernel(name, dtypes, aligned, tmp_path):
    """The generated text, which nvcc compiles."""
    rule, states, numbers = RULES[name]
    specs = [kf.spec((64,), d, like="torch") for d in (dtypes[0], dtypes[0], *[dtypes[1]] * states)]
    traced = trace(rule.__wrapped__, *specs, *numbers)
    targets = [w.input for w in traced.written]
    kernel = _core.each_kernel(traced.graph, devices.device("H200").to_dict(), targets, aligned)
    assert " 0 bytes spill loads" in nvcc(kernel.source, tmp_path)
