"""How results of `torch.compile(model, backend="kfusion")` lie, and images in between."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

from kfusion._torch_compile import batch_norms, compiled, layouts  # noqa: E402
from kfusion._torch_compile.backend import backend  # noqa: E402
from kfusion._torch_compile.strides import laid  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
LAST = torch.channels_last


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    """Nothing of another test; a graph that runs operator by operator is an error."""
    torch._dynamo.reset()
    torch.manual_seed(0)

    def refused(self, error, values):
        raise error

    monkeypatch.setattr(compiled.Compiled, "_refused", refused)


def check(function, *calls, rtol=1e-5, atol=1e-5, **options):
    ours = torch.compile(function, backend=backend, fullgraph=True, **options)
    for given in calls:
        with torch.no_grad():
            got, expected = ours(*given), function(*given)
        several = isinstance(expected, (tuple, list))
        for a, b in zip(got if several else [got], expected if several else [expected], strict=True):
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)
            assert a.stride() == b.stride()
    return ours


RESULTS = {
    "expanded": lambda x: (x.sum(1, keepdim=True) * 2).expand(-1, 5),
    "columns": lambda x: (x * 2)[:, :3],
    "one column": lambda x: (x * 2)[:, :1],
    "a column": lambda x: (x * 2)[:, 1],
    "steps": lambda x: (x * 2)[::2, ::3],
    "transposed": lambda x: (x * 2).t(),
    "of a transposed argument": lambda x: (x.t() * 2, (x.t() + 1).softmax(0)),
    "diagonal": lambda x: (x * 2).diagonal(),
    "windows that overlap": lambda x: (x * 2).unfold(1, 2, 1),
    "expanded argument": lambda x: x[:1].expand(4, x.shape[1]) * 2,
    "new axis": lambda x: (x * 2)[None].transpose(0, 2),
    "parts": lambda x: (x * 2).split(2, 1),
    "pairs of complex numbers": lambda x: torch.view_as_real(torch.complex(x, x).t() * 2),
    "integers": lambda x: (x.long() * 2).t()[1:],
    "copied": lambda x: (x * 2).t().contiguous(),
    "images": lambda x: F.avg_pool2d(x[None, None, :4, :4].expand(2, 3, 4, 4).contiguous(memory_format=LAST), 2),
}


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_results_have_eager_torchs_strides(name, dynamic):
    sizes = ((4, 6), (5, 7), (9, 8)) if dynamic else ((4, 6),)
    check(RESULTS[name], *[(torch.randn(n),) for n in sizes], dynamic=dynamic)


def test_views_of_one_value_share_its_memory():
    def f(x):
        y = x * 2
        return y[:, :2], y[:, 1:], (x + 1)[0]

    a, b, _ = check(f, (torch.randn(5, 4),))(torch.randn(5, 4))
    a.fill_(7)
    assert (b[:, 0] == 7).all()


def test_laid():
    x = torch.arange(24.0).view(2, 3, 4)
    for strides in ((12, 4, 1), (1, 2, 6), (40, 10, 2), (12, 1, 3)):
        y = laid(x, strides)
        assert y.stride() == strides
        assert torch.equal(x, y)
    assert laid(x, (12, 4, 1)) is x
    assert laid(x, (4, 4, 1)) is x  # elements that would share memory
    one = torch.randn(1, 3)
    y = laid(one, (77, 1))
    assert y.stride() == (77, 1)
    assert y.data_ptr() == one.data_ptr()
    assert laid(one.expand(2, 3).contiguous(), (0, 1)).stride() == (0, 1)
    assert laid(torch.empty(0, 3), (1, 5)).stride() == (1, 5)


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


def turned_in(monkeypatch):
    """The shapes of what is turned, by call."""
    calls = []
    plain = compiled.turned

    def turned(tensors, places):
        calls.append([tuple(tensors[i].shape) for i in places])
        return plain(tensors, places)

    monkeypatch.setattr(compiled, "turned", turned)
    return calls


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("least", [0, 10**9])
def test_images_are_turned_where_it_saves_time(monkeypatch, bias, least):
    monkeypatch.setattr(layouts, "_LEAST", least)
    calls = turned_in(monkeypatch)
    net = Net(bias=bias).eval().requires_grad_(False)
    check(net, (torch.randn(2, 3, 32, 32),), rtol=1e-4, atol=1e-4)
    assert calls == ([[(2, 3, 32, 32)]] if least == 0 else [])


def test_images_that_lie_so_stay_so(monkeypatch):
    monkeypatch.setattr(layouts, "_LEAST", 0)
    calls = turned_in(monkeypatch)
    net = Net().eval().requires_grad_(False).to(memory_format=LAST)
    check(net, (torch.randn(2, 3, 32, 32).contiguous(memory_format=LAST),), rtol=1e-4, atol=1e-4)
    assert calls == []


def test_the_order_ends_where_weights_are_larger_than_images(monkeypatch):
    monkeypatch.setattr(layouts, "_LEAST", 0)
    seen = []
    monkeypatch.setattr(layouts, "_copied", lambda x: seen.append(x.shape) or x.contiguous().clone())
    nn = torch.nn
    convolutions = [nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 40, 3, 4), nn.Conv2d(40, 60, 3), nn.Conv2d(60, 60, 1)]
    net = nn.Sequential(*[m for c in convolutions for m in (c, nn.Tanh())])
    calls = turned_in(monkeypatch)
    check(net.eval().requires_grad_(False), (torch.randn(1, 3, 16, 16),), rtol=1e-4, atol=1e-4)
    assert len(calls) == 1
    assert set(seen) == {(1, 8, 16, 16)}


def test_weights_may_change_between_calls(monkeypatch):
    monkeypatch.setattr(layouts, "_LEAST", 0)
    net = Net().eval().requires_grad_(False)
    x = torch.randn(2, 3, 32, 32)
    ours = check(net, (x,), rtol=1e-4, atol=1e-4)
    net.two.weight.data.mul_(0.5)  # no version counts that
    net.first[1].running_var.data.add_(1)
    with torch.no_grad():
        for a, b in zip(ours(x), net(x), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_sizes_of_images_change(monkeypatch):
    monkeypatch.setattr(layouts, "_LEAST", 0)
    net = Net().eval().requires_grad_(False)
    calls = [(torch.randn(n, 3, h, w),) for n, h, w in ((2, 32, 32), (3, 48, 32), (4, 32, 64))]
    check(net, *calls, dynamic=True, rtol=1e-4, atol=1e-4)


def test_training_turns_nothing(monkeypatch):
    monkeypatch.setattr(layouts, "_LEAST", 0)
    calls = turned_in(monkeypatch)
    net = Net().train()
    theirs = copy.deepcopy(net)
    x = torch.randn(2, 3, 32, 32)
    y, expected = torch.compile(net, backend=backend)(x)[1], theirs(x)[1]
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    y.square().mean().backward()
    expected.square().mean().backward()
    for p, q in zip(net.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-4)
    assert calls == []


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 3), (2, 5, 3, 4), (2, 5, 0, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_batch_norms_of_known_statistics(affine, shape, dtype):
    mean, var = torch.randn(5, dtype=dtype), torch.rand(5, dtype=dtype) + 0.1
    weight, bias = (torch.randn(5, dtype=dtype), torch.randn(5, dtype=dtype)) if affine else (None, None)
    x = torch.randn(shape, dtype=dtype)
    if x.numel():
        x.view(-1)[:3] = torch.tensor([torch.nan, torch.inf, -torch.inf])

    def f(x, mean, var):
        return F.relu(F.batch_norm(x, mean, var, weight, bias, eps=1e-3))

    loose = 2e-2 if dtype is torch.bfloat16 else 1e-5
    check(f, (x, mean, var), rtol=loose, atol=loose)


def test_scales_of_batch_norms_are_computed_before_the_graph(monkeypatch):
    made = []
    plain = batch_norms.Channels.values
    monkeypatch.setattr(batch_norms.Channels, "values", lambda s, g: made.append(plain(s, g)) or made[-1])
    check(Net().eval().requires_grad_(False), (torch.randn(2, 3, 32, 32),), rtol=1e-4, atol=1e-4)
    assert [len(m) for m in made] == [4]


_OF_ANY_ORDER = {
    "roll": lambda x: torch.roll(x.sin(), (1, 2), (0, -1)),
    "roll of all": lambda x: torch.roll(x, 3),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True).relu(),
    "batch norm of known statistics": lambda x: F.batch_norm(x, torch.zeros(x.shape[1]), torch.ones(x.shape[1])),
}


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (3, 0, 2, 1), (1, 3, 0, 2)])
@pytest.mark.parametrize("name", _OF_ANY_ORDER)
def test_what_torchs_tensors_without_data_lay_otherwise_than_torch(name, order):
    back = sorted(range(4), key=order.__getitem__)
    x = torch.randn([(4, 3, 5, 6)[axis] for axis in order]).permute(back)
    check(_OF_ANY_ORDER[name], (x,))
    ours, theirs = (x.detach().clone().requires_grad_() for _ in range(2))
    torch.compile(_OF_ANY_ORDER[name], backend=backend)(ours).square().sum().backward()
    _OF_ANY_ORDER[name](theirs).square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def _memory(kind):
    base = torch.arange(20.0)
    parts = {
        "apart": (base[:8].clone(), base[10:18].clone()),
        "overlapping": (base[:8], base[4:12]),
        "in one block": (base[:8], base[8:16]),
        "in steps": (base[:16:2], base[:8]),
    }
    return parts[kind]


@pytest.mark.parametrize(
    "kinds", [("apart", "overlapping"), ("overlapping", "in one block", "apart"), ("apart", "in steps")]
)
def test_arguments_that_overlap_otherwise_on_a_later_call(kinds):
    """torch's own function for a graph takes them to lie as on the first one."""

    def write(x, y):
        x.add_(1)
        y.mul_(2)
        return x + y

    ours = torch.compile(write, backend=backend)
    for kind in kinds:
        given, expected = _memory(kind), _memory(kind)
        torch.testing.assert_close(ours(*given), write(*expected), rtol=0, atol=0)
        for a, b in zip(given, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
