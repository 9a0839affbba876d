"""`torch.compile(model, backend="kfusion")`: models beside eager torch, shapes, breaks, how results lie, images in
between, and what has no kernels."""

from __future__ import annotations

import copy
import itertools
from importlib.metadata import entry_points

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch._dynamo.utils import counters  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import kfusion as kf  # noqa: E402
from benchmarks.model_zoo import Size, built  # noqa: E402
from kfusion._torch_compile import batch_norms, layouts  # noqa: E402
from kfusion._torch_compile import compiled as compiled_graphs  # noqa: E402
from kfusion._torch_compile.backend import backend  # noqa: E402
from sweeps import sweep  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
Compiled, LAST, nn = compiled_graphs.Compiled, torch.channels_last, torch.nn


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    """Nothing of another test; a graph that runs operator by operator is an error unless a test wants it."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)

    def refused(self, error, values):
        raise error

    monkeypatch.setattr(Compiled, "_refused", refused)


@pytest.fixture
def in_plans(monkeypatch):
    monkeypatch.setattr(Compiled, "_eagerly", lambda self, values: pytest.fail("operator by operator"))


def compiled(model, **options):
    return torch.compile(model, backend=backend, **options)


def trains(model, *calls, fullgraph=True, **options):
    """Results, gradients and buffers are eager torch's."""
    torch._dynamo.reset()
    theirs = copy.deepcopy(model)
    ours = compiled(model, fullgraph=fullgraph, **options)
    for x in calls:
        y, expected = ours(x), theirs(x)
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
        if expected.requires_grad:
            for result in (y, expected):
                result.square().mean().backward()
    for p, q in zip(model.parameters(), theirs.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        if q.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-5)
    for b, c in zip(model.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(b, c, rtol=1e-4, atol=1e-6)


def gives(function, *calls, rtol=1e-5, atol=1e-5, **options):
    """Results are eager torch's, and lie as they do; the compiled function."""
    torch._dynamo.reset()
    ours = compiled(function, fullgraph=True, **options)
    for given in calls:
        with torch.no_grad():
            got, expected = ours(*given), function(*given)
        several = isinstance(expected, (tuple, list))
        for a, b in zip(got if several else [got], expected if several else [expected], strict=True):
            if isinstance(b, torch.Tensor):
                torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)
                assert a.stride() == b.stride()
            else:
                assert a == b
    return ours


# ---- models ---------------------------------------------------------------------------------------------------------


def perceptron():
    return nn.Sequential(nn.Linear(12, 20), nn.GELU(), nn.LayerNorm(20), nn.Dropout(0.0), nn.Linear(20, 5))


def convnet():
    first = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(36, 3))


class Block(torch.nn.Module):
    """A transformer's block, as a user would write it."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.first, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(7, 5))

    def forward(self, ids):
        return F.embedding(ids, self.weight).tanh() @ self.weight.t()


class Recomputed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = perceptron()

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


def test_models_train_and_infer():
    trains(perceptron(), *[torch.randn(n, 12) for n in (6, 9, 4, 7)], dynamic=True)
    with torch.no_grad():
        trains(Block().eval(), *[torch.randn(2, n, 16) for n in (7, 5, 9)], dynamic=True)
    rows = [
        (perceptron(), torch.randn(6, 12)), (convnet(), torch.randn(4, 3, 6, 6), torch.randn(4, 3, 6, 6)),
        (convnet().eval().requires_grad_(False), torch.randn(4, 3, 6, 6)), (Block(), torch.randn(2, 7, 16)),
        (Tied(), torch.randint(0, 7, (2, 3))), (Recomputed(), torch.randn(6, 12)),
    ]  # fmt: skip
    sweep(trains, rows)


class First(nn.Module):
    """A model's first result."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(input_ids=ids, return_dict=False)[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BERT", "GPT-2"])
def test_models_of_transformers(name):
    pytest.importorskip("transformers")
    model, inputs = built(name, Size(real=False))
    trains(First(model.requires_grad_()), inputs["input_ids"], fullgraph=False)
    assert sum(counters["graph_break"].values()) == 0


def test_the_backend_and_its_options():
    found = [e for e in entry_points(group="torch_dynamo_backends") if e.name == "kfusion"]
    if found:  # else the installed metadata is older than the backend
        assert found[0].load() is backend
        assert "kfusion" in torch._dynamo.list_backends()
    x = torch.randn(3, 4)
    for mode in ("default", "reduce-overhead"):
        torch._dynamo.reset()
        torch.testing.assert_close(compiled(torch.sin, mode=mode)(x), x.sin())
    with pytest.raises(Exception, match="no names"):
        compiled(torch.cos, options={"nothing": 1})(x)
    model, x = perceptron(), torch.randn(6, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, expected = compiled(model)(x), model(x)
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=5e-2, atol=5e-2)


# ---- functions ------------------------------------------------------------------------------------------------------


def test_graph_breaks_are_dynamos():
    def f(x):
        y = torch.relu(x) + 1
        torch._dynamo.graph_break()
        return y.softmax(-1)

    x = torch.randn(3, 4)
    assert torch._dynamo.explain(f)(x).graph_break_count == 1
    before = counters["stats"]["unique_graphs"]
    torch.testing.assert_close(compiled(f)(x), f(x))
    assert counters["stats"]["unique_graphs"] - before == 2


def test_results_that_are_arguments_views_and_sizes():
    def f(x):
        y = x * 2
        return x, x[1:], y, y.t(), None, 3, y.view(-1), x.shape[0] * 2

    for dynamic in (False, True):
        x = torch.randn(3, 4)
        got = gives(f, *[(torch.randn(n, 4),) for n in (3, 5, 8)][: 1 + 2 * dynamic], dynamic=dynamic)(x)
        assert got[0] is x
        assert got[1].data_ptr() == x[1:].data_ptr()
        assert got[3].data_ptr() == got[2].data_ptr() == got[6].data_ptr()


def test_arguments():
    gives(lambda x: (torch.relu(x) + 1, x.sum()), (torch.randn(0, 4),))
    gives(lambda x: (torch.relu(x) + 1, x.sum()), (torch.randn(3, 0),))
    gives(lambda x: (torch.relu(x) + 1, x.sum()), (torch.randn(()),))
    numbers = ((2, 0.5), (3, 0.25), (7, -1.0))
    gives(lambda x, n, s: x * n + s, *[(torch.randn(4), *pair) for pair in numbers], dynamic=True)
    others = torch.arange(6), torch.arange(6, dtype=torch.int32), torch.randn(6, dtype=torch.complex64)
    gives(lambda a, b, z: (a // 3 + b, (z * z.conj()).abs(), a.to(torch.uint8)), others)


def _memory(kind):
    base = torch.arange(20.0)
    parts = {
        "apart": (base[:8].clone(), base[10:18].clone()),
        "overlapping": (base[:8], base[4:12]),
        "in one block": (base[:8], base[8:16]),
        "in steps": (base[:16:2], base[:8]),
    }
    return parts[kind]


def test_writes_to_arguments():
    """torch's own function for a graph takes them to lie as on the first call: later they may overlap otherwise."""

    def write(x, y):
        x.mul_(2)
        y[0] = 1
        return x + y

    def check(*kinds):
        torch._dynamo.reset()
        ours = compiled(write)
        for kind in kinds:
            given, expected = _memory(kind), _memory(kind)
            torch.testing.assert_close(ours(*given), write(*expected), rtol=0, atol=0)
            torch.testing.assert_close(given, expected, rtol=0, atol=0)

    sweep(check, [("apart", "overlapping"), ("overlapping", "in one block", "apart"), ("apart", "in steps")])


def test_random_numbers():
    model, x = nn.Dropout(0.25), torch.ones(200, 100, requires_grad=True)
    y = compiled(model, fullgraph=True)(x)
    kept = (y != 0).double().mean().item()
    assert abs(kept - 0.75) < 6 * np.sqrt(0.75 * 0.25 / x.numel())
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())  # the gradient has the mask
    assert not torch.equal(compiled(model)(x), y)
    ours = compiled(lambda x: (torch.rand_like(x) + torch.rand(3), torch.rand(3) - torch.rand(3)), fullgraph=True)
    (a, b), (c, d) = ours(torch.ones(3)), ours(torch.ones(3))
    assert not torch.equal(a, c)
    assert not torch.equal(b, d)
    assert b.abs().max() > 0


def test_what_has_no_kernels_is_run_by_torch(monkeypatch):
    monkeypatch.undo()
    assert torch.equal(compiled(lambda: torch.arange(4) + 1)(), torch.arange(1, 5))
    x = torch.randn(3, dtype=torch.complex64)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        ours = compiled(lambda x: torch.nonzero(x.real > 0).sum() + 1)
        assert ours(x) == torch.nonzero(x.real > 0).sum() + 1


def _made_of_no_tensor(x):
    square = torch.arange(4).view(2, 2)
    return x + 1, torch.arange(4), torch.full((2,), 3.0), torch.eye(2), square, square[0], torch.tensor([1, 2])


def _of_sizes(x):
    return x + torch.arange(x.shape[0]), torch.arange(x.shape[0]), torch.zeros(x.shape[0], dtype=torch.complex64)


def test_what_is_made_of_no_tensor_is_made_by_each_call():
    def check(function, dynamic):
        torch._dynamo.reset()
        x, ours = torch.ones(3), compiled(function, dynamic=dynamic)
        for result in ours(x):
            result.zero_().add_(77)
        torch.testing.assert_close(ours(x), function(x), rtol=0, atol=0)
        again = ours(x)
        if function is _made_of_no_tensor:  # views show what is written to what they are views of
            again[4].zero_()
            assert not again[5].any()

    sweep(check, itertools.product((_made_of_no_tensor, _of_sizes), (False, True)))


_MASKS = {
    "none": lambda: None, "bools": lambda: torch.rand(9, 9) > 0.3, "of heads": lambda: torch.randn(2, 8, 9, 9),
    "of one head": lambda: torch.rand(2, 1, 9, 9) > 0.3, "of heads alone": lambda: torch.randn(8, 9, 9),
}  # fmt: skip


def test_heads_that_share_keys(some, in_plans):
    def check(name, heads, causal):
        torch._dynamo.reset()
        mask = _MASKS[name]()

        def attend(q, k, v):
            return F.scaled_dot_product_attention(q.tanh(), k, v, mask, is_causal=causal, enable_gqa=True)

        made = [torch.randn(2, n, 9, 12) for n in (8, heads, heads)]
        with torch.no_grad():
            torch.testing.assert_close(compiled(attend)(*made), attend(*made), rtol=1e-4, atol=1e-5)
        ours, theirs = ([x.clone().requires_grad_() for x in made] for _ in range(2))
        compiled(attend)(*ours).square().sum().backward()
        attend(*theirs).square().sum().backward()
        for x, y in zip(ours, theirs, strict=True):
            torch.testing.assert_close(x.grad, y.grad, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(kf.fuse(attend)(*made), attend(*made), rtol=1e-4, atol=1e-5)

    rows = [(name, heads, causal) for name in _MASKS for heads in (1, 2, 8) for causal in (False, name == "none")]
    sweep(check, some(dict.fromkeys(rows), 2))


# ---- how results lie ------------------------------------------------------------------------------------------------

RESULTS = {
    "expanded": lambda x: (x.sum(1, keepdim=True) * 2).expand(-1, 5), "columns": lambda x: (x * 2)[:, :3],
    "one column": lambda x: (x * 2)[:, :1], "a column": lambda x: (x * 2)[:, 1], "steps": lambda x: (x * 2)[::2, ::3],
    "transposed": lambda x: (x * 2).t(), "of a transposed argument": lambda x: (x.t() * 2, (x.t() + 1).softmax(0)),
    "diagonal": lambda x: (x * 2).diagonal(), "windows that overlap": lambda x: (x * 2).unfold(1, 2, 1),
    "expanded argument": lambda x: x[:1].expand(4, x.shape[1]) * 2,
    "new axis": lambda x: (x * 2)[None].transpose(0, 2), "parts": lambda x: (x * 2).split(2, 1),
    "pairs of complex numbers": lambda x: torch.view_as_real(torch.complex(x, x).t() * 2),
    "integers": lambda x: (x.long() * 2).t()[1:], "copied": lambda x: (x * 2).t().contiguous(),
    "images": lambda x: F.avg_pool2d(x[None, None, :4, :4].expand(2, 3, 4, 4).contiguous(memory_format=LAST), 2),
}  # fmt: skip


def _filled_diagonal_after_a_write(x):
    x = x * 1
    x.t()[0] = 5
    x.fill_diagonal_(9)
    return x


BY_STRIDES = {
    "fill_diagonal_": lambda x: x.t().masked_fill(x.t() > 3, 0.0).fill_diagonal_(1.0),
    "write": _filled_diagonal_after_a_write,
    "offset": lambda x: x[1:].as_strided((4,), (5,), 0) * 2,
    "offset of a result": lambda x: (x * 2)[1:].as_strided((4,), (5,), 0) * 2,
    "empty_strided": lambda x: torch.empty_strided((4, 6), (1, 4)).copy_(x * 2).as_strided((24,), (1,)) + 1,
    "transposed argument": lambda x: x.t().as_strided((5,), (2,)) + 1,
    "copy": lambda x: torch.as_strided_copy(x.t() * 2, (24,), (1,)) + 1,
    "scatter": lambda x: torch.as_strided_scatter(x.t() * 2, x[0], (6,), (2,), 1) + 1,
    "result": lambda x: (x.t() * 2).as_strided((24,), (1,)),
}


def test_results_have_eager_torchs_strides(some, monkeypatch):
    def check(name, dynamic):
        sizes = ((4, 6), (5, 7), (9, 8)) if dynamic else ((4, 6),)
        gives(RESULTS[name], *[(torch.randn(n),) for n in sizes], dynamic=dynamic)

    def of_memory(name):
        gives(BY_STRIDES[name], (torch.arange(24.0).view(4, 6),), rtol=0, atol=0)

    sweep(check, some(itertools.product(RESULTS, (False, True)), 6))
    sweep(of_memory, some([(name,) for name in BY_STRIDES], 3))
    monkeypatch.setattr(Compiled, "_eagerly", lambda self, values: pytest.fail("operator by operator"))
    of_memory("fill_diagonal_")  # of dense values it is a step of a plan
    parts = gives(lambda x: ((y := x * 2)[:, :2], y[:, 1:], (x + 1)[0]), (torch.randn(5, 4),))
    a, b, _ = parts(torch.randn(5, 4))  # views of one value share its memory
    a.fill_(7)
    assert (b[:, 0] == 7).all()


_OF_ANY_ORDER = {
    "roll": lambda x: torch.roll(x.sin(), (1, 2), (0, -1)),
    "roll of all": lambda x: torch.roll(x, 3),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True).relu(),
    "batch norm of known statistics": lambda x: F.batch_norm(x, torch.zeros(x.shape[1]), torch.ones(x.shape[1])),
}


def test_what_torchs_tensors_without_data_lay_otherwise_than_torch(some):
    def check(name, order):
        back, f = sorted(range(4), key=order.__getitem__), _OF_ANY_ORDER[name]
        x = torch.randn([(4, 3, 5, 6)[axis] for axis in order]).permute(back)
        gives(f, (x,))
        ours, theirs = (x.detach().clone().requires_grad_() for _ in range(2))
        compiled(f)(ours).square().sum().backward()
        f(theirs).square().sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)

    orders = [(0, 1, 2, 3), (0, 2, 3, 1), (3, 0, 2, 1), (1, 3, 0, 2)]
    sweep(check, some(itertools.product(_OF_ANY_ORDER, orders), 3))


# ---- images ---------------------------------------------------------------------------------------------------------


class Net(torch.nn.Module):
    """A residual block, pools, an attention to channels and a join, as convolutional networks have them."""

    def __init__(self, width=8, bias=False):
        super().__init__()
        nn = torch.nn
        self.first = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1, bias=bias), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.one, self.norm = nn.Conv2d(width, width, 1, bias=bias), nn.BatchNorm2d(width)
        self.two = nn.Conv2d(width, width, 3, padding=1, bias=bias)
        self.deep = nn.Conv2d(2 * width, 2 * width, 3, padding=1, groups=2)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.head = nn.Linear(width, 5)
        for m in self.modules():
            if isinstance(m, nn.BatchNorm2d):
                for t in (m.weight, m.bias, m.running_mean):
                    torch.nn.init.normal_(t)
                torch.nn.init.uniform_(m.running_var, 0.1, 2)

    def forward(self, x):
        x = self.first(x)
        x = F.relu(x + self.norm(self.two(F.silu(self.one(x)))))
        y = self.up(self.deep(torch.cat([x, x * x.mean((2, 3), keepdim=True)], 1)))
        y = y + F.interpolate(x, scale_factor=2, mode="nearest")
        return y, self.head(F.adaptive_avg_pool2d(y, 1).flatten(1))


NEAR = {"rtol": 1e-4, "atol": 1e-4}


def inferring(**options):
    return Net(**options).eval().requires_grad_(False), torch.randn(2, 3, 32, 32)


@pytest.fixture
def turned(monkeypatch):
    """The shapes of what is turned, by call; it always pays."""
    calls, plain = [], compiled_graphs.turned

    def turn(tensors, places):
        calls.append([tuple(tensors[i].shape) for i in places])
        return plain(tensors, places)

    monkeypatch.setattr(compiled_graphs, "turned", turn)
    monkeypatch.setattr(layouts, "_LEAST", 0)
    return calls


def test_images_are_turned_where_it_saves_time(monkeypatch, turned):
    for bias in (False, True):
        net, x = inferring(bias=bias)
        gives(net, (x,), **NEAR)
        assert turned == [[(2, 3, 32, 32)]]
        turned.clear()
    net, x = inferring()  # what lies so stays so
    gives(net.to(memory_format=LAST), (x.contiguous(memory_format=LAST),), **NEAR)
    monkeypatch.setattr(layouts, "_LEAST", 10**9)
    gives(net, (x,), **NEAR)
    assert turned == []


def test_the_order_ends_where_weights_are_larger_than_images(monkeypatch, turned):
    seen = []
    monkeypatch.setattr(layouts, "_copied", lambda x: seen.append(x.shape) or x.contiguous().clone())
    convolutions = [nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 40, 3, 4), nn.Conv2d(40, 60, 3), nn.Conv2d(60, 60, 1)]
    net = nn.Sequential(*[m for c in convolutions for m in (c, nn.Tanh())])
    gives(net.eval().requires_grad_(False), (torch.randn(1, 3, 16, 16),), **NEAR)
    assert len(turned) == 1
    assert set(seen) == {(1, 8, 16, 16)}


def test_weights_may_change_between_calls(turned):
    net, x = inferring()
    ours = gives(net, (x,), **NEAR)
    net.two.weight.data.mul_(0.5)  # no version counts that
    net.first[1].running_var.data.add_(1)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), net(x), **NEAR)


@pytest.mark.slow
def test_sizes_of_images_change(turned):
    calls = [(torch.randn(n, 3, h, w),) for n, h, w in ((2, 32, 32), (3, 48, 32), (4, 32, 64))]
    gives(inferring()[0], *calls, dynamic=True, **NEAR)


def test_training_turns_nothing(turned):
    class Second(Net):
        def forward(self, x):
            return super().forward(x)[1]

    trains(Second().train(), torch.randn(2, 3, 32, 32), fullgraph=False)
    assert turned == []


def test_batch_norms_of_known_statistics(some, monkeypatch):
    def check(affine, shape, dtype):
        mean, var, weight, bias = torch.rand(4, 5, dtype=dtype) + 0.1
        weight, bias = (weight, bias) if affine else (None, None)
        x = torch.randn(shape, dtype=dtype)
        if x.numel():
            x.view(-1)[:3] = torch.tensor([torch.nan, torch.inf, -torch.inf])

        def f(x, mean, var):
            return F.relu(F.batch_norm(x, mean, var, weight, bias, eps=1e-3))

        loose = 2e-2 if dtype is torch.bfloat16 else 1e-5
        gives(f, (x, mean, var), rtol=loose, atol=loose)

    shapes, dtypes = [(4, 5), (4, 5, 3), (2, 5, 3, 4), (2, 5, 0, 4)], [torch.float32, torch.float64, torch.bfloat16]
    sweep(check, some(itertools.product((False, True), shapes, dtypes), 3))
    made, plain = [], batch_norms.Channels.values  # scales are computed before the graph
    monkeypatch.setattr(batch_norms.Channels, "values", lambda s, g: made.append(plain(s, g)) or made[-1])
    net, x = inferring()
    gives(net, (x,), **NEAR)
    assert [len(m) for m in made] == [4]
