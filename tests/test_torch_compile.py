"""`torch.compile(model, backend="kfusion")`: models beside eager torch, shapes, breaks and what has no kernels."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch._dynamo.utils import counters  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import kfusion as kf  # noqa: E402
from kfusion._torch_compile.backend import backend  # noqa: E402
from kfusion._torch_compile.compiled import Compiled  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    """Nothing of another test; a graph that runs operator by operator is an error unless a test wants it."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)

    def refused(self, error, values):
        raise error

    monkeypatch.setattr(Compiled, "_refused", refused)


def compiled(model, **options):
    return torch.compile(model, backend=backend, **options)


def check(model, *calls, fullgraph=True, **options):
    """Results, gradients and buffers are eager torch's."""
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


def perceptron():
    nn = torch.nn
    return nn.Sequential(nn.Linear(12, 20), nn.GELU(), nn.LayerNorm(20), nn.Dropout(0.0), nn.Linear(20, 5))


def convnet():
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    )


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


def test_entry_point_is_declared():
    from importlib.metadata import entry_points

    found = [e for e in entry_points(group="torch_dynamo_backends") if e.name == "kfusion"]
    if not found:
        pytest.skip("the installed metadata is older than the backend")
    assert found[0].load() is backend
    assert "kfusion" in torch._dynamo.list_backends()


def test_perceptron_trains():
    check(perceptron(), torch.randn(6, 12))


def test_sizes_of_a_batch_change():
    check(perceptron(), *[torch.randn(n, 12) for n in (6, 9, 4, 7)], dynamic=True)


def test_convnet_trains_and_keeps_its_averages():
    check(convnet(), torch.randn(4, 3, 6, 6), torch.randn(4, 3, 6, 6))


def test_convnet_infers():
    check(convnet().eval().requires_grad_(False), torch.randn(4, 3, 6, 6))


def test_block_trains():
    check(Block(), torch.randn(2, 7, 16))


def test_lengths_of_a_block_change():
    with torch.no_grad():
        check(Block().eval(), *[torch.randn(2, n, 16) for n in (7, 5, 9)], dynamic=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_models_of_transformers(name):
    transformers = pytest.importorskip("transformers")
    off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    if name == "gpt2":
        config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=40, n_positions=16, **off)
        config.bos_token_id = config.eos_token_id = 0
        model = transformers.GPT2LMHeadModel(config)
    else:
        off = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=40, **sizes, **off))

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids):
            return self.model(ids).logits

    check(Logits(), torch.randint(0, 40, (2, 9)), fullgraph=False)
    assert sum(counters["graph_break"].values()) == 0


def test_graph_breaks_are_dynamos():
    def f(x):
        y = torch.relu(x) + 1
        torch._dynamo.graph_break()
        return y.softmax(-1)

    found = torch._dynamo.explain(f)(torch.randn(3, 4))
    assert found.graph_break_count == 1
    x = torch.randn(3, 4)
    before = counters["stats"]["unique_graphs"]
    torch.testing.assert_close(compiled(f)(x), f(x))
    assert counters["stats"]["unique_graphs"] - before == 2


def test_writes_to_an_argument():
    def f(x, y):
        x.mul_(2)
        y[0] = 1
        return x + y

    given = torch.randn(3, 4), torch.randn(3, 4)
    mine, theirs = [t.clone() for t in given], [t.clone() for t in given]
    torch.testing.assert_close(compiled(f)(*mine), f(*theirs))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_results_that_are_arguments_and_views():
    def f(x):
        y = x * 2
        return x, x[1:], y, y.t(), None, 3, y.view(-1)

    x = torch.randn(3, 4)
    got, expected = compiled(f, fullgraph=True)(x), f(x)
    assert got[0] is x
    assert got[1].data_ptr() == x[1:].data_ptr()
    assert got[3].data_ptr() == got[2].data_ptr() == got[6].data_ptr()
    assert got[4] is None
    assert got[5] == 3
    for a, b in zip(got, expected, strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()


def test_sizes_are_results():
    def f(x):
        return x.shape[0] * 2, x + x.shape[0]

    ours = compiled(f, dynamic=True, fullgraph=True)
    for n in (3, 5, 8):
        size, y = ours(torch.ones(n, 2))
        assert size == 2 * n
        torch.testing.assert_close(y, torch.full((n, 2), 1.0 + n))


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), ()])
def test_empty_tensors(shape):
    def f(x):
        return torch.relu(x) + 1, x.sum()

    x = torch.randn(shape)
    for a, b in zip(compiled(f)(x), f(x), strict=True):
        torch.testing.assert_close(a, b)


def test_numbers_as_arguments():
    def f(x, n, s):
        return x * n + s

    ours = compiled(f, dynamic=True)
    x = torch.randn(4)
    for n, s in ((2, 0.5), (3, 0.25), (7, -1.0)):
        torch.testing.assert_close(ours(x, n, s), f(x, n, s))


def test_dropout_keeps_the_mean_and_its_gradient_the_mask():
    model = torch.nn.Dropout(0.25)
    x = torch.ones(200, 100, requires_grad=True)
    y = compiled(model, fullgraph=True)(x)
    kept = (y != 0).double().mean().item()
    assert abs(kept - 0.75) < 6 * np.sqrt(0.75 * 0.25 / x.numel())
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())
    assert not torch.equal(compiled(model)(x), y)


def test_random_numbers_are_new_in_each_call():
    ours = compiled(lambda x: (torch.rand_like(x) + torch.rand(3), torch.rand(3) - torch.rand(3)), fullgraph=True)
    (a, b), (c, d) = ours(torch.ones(3)), ours(torch.ones(3))
    assert not torch.equal(a, c)
    assert not torch.equal(b, d)
    assert b.abs().max() > 0


def test_autocast():
    model, x = perceptron(), torch.randn(6, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, expected = compiled(model)(x), model(x)
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=5e-2, atol=5e-2)


def test_modes_and_options():
    x = torch.randn(3, 4)
    for mode in ("default", "reduce-overhead"):
        torch._dynamo.reset()
        torch.testing.assert_close(compiled(torch.sin, mode=mode)(x), x.sin())
    with pytest.raises(Exception, match="no names"):
        compiled(torch.cos, options={"nothing": 1})(x)


def test_nothing_but_numbers(monkeypatch):
    monkeypatch.undo()
    assert torch.equal(compiled(lambda: torch.arange(4) + 1)(), torch.arange(1, 5))


def test_what_has_no_kernels_is_run_by_torch(monkeypatch, caplog):
    monkeypatch.undo()
    x = torch.randn(3, dtype=torch.complex64)
    ours = compiled(lambda x: torch.nonzero(x.real > 0).sum() + 1)
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    try:
        assert ours(x) == torch.nonzero(x.real > 0).sum() + 1
    finally:
        torch._dynamo.config.capture_dynamic_output_shape_ops = False


def test_integers_and_complex_numbers():
    def f(a, b, z):
        return a // 3 + b, (z * z.conj()).abs(), a.to(torch.uint8)

    given = torch.arange(6), torch.arange(6, dtype=torch.int32), torch.randn(6, dtype=torch.complex64)
    for a, b in zip(compiled(f)(*given), f(*given), strict=True):
        torch.testing.assert_close(a, b)


def test_gradients_of_tied_weights_and_of_two_results():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(7, 5))

        def forward(self, ids):
            y = F.embedding(ids, self.weight).tanh()
            return y @ self.weight.t()

    check(Tied(), torch.randint(0, 7, (2, 3)))


def test_checkpoints_are_torchs_choice():
    from torch.utils.checkpoint import checkpoint

    class Recomputed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = perceptron()

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=False)

    check(Recomputed(), torch.randn(6, 12))


def _made_of_no_tensor(x):
    square = torch.arange(4).view(2, 2)
    return x + 1, torch.arange(4), torch.full((2,), 3.0), torch.eye(2), square, square[0], torch.tensor([1, 2])


def _of_sizes(x):
    return x + torch.arange(x.shape[0]), torch.arange(x.shape[0]), torch.zeros(x.shape[0], dtype=torch.complex64)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [_made_of_no_tensor, _of_sizes])
def test_what_is_made_of_no_tensor_is_made_by_each_call(function, dynamic):
    x = torch.ones(3)
    ours = compiled(function, dynamic=dynamic)
    for result in ours(x):
        result.zero_().add_(77)
    for y, expected in zip(ours(x), function(x), strict=True):
        torch.testing.assert_close(y, expected, rtol=0, atol=0)
    again = ours(x)
    if function is _made_of_no_tensor:  # views show what is written to what they are views of
        again[4].zero_()
        assert not again[5].any()


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


@pytest.mark.parametrize("name", BY_STRIDES)
def test_what_reads_memory_by_strides_finds_it_as_torch_lays_it(name):
    x = torch.arange(24.0).view(4, 6)
    function = BY_STRIDES[name]
    expected = function(x.clone())
    y = compiled(function)(x)
    torch.testing.assert_close(y, expected, rtol=0, atol=0)
    assert y.stride() == expected.stride()


def test_what_reads_memory_by_strides_of_dense_values_is_a_step_of_a_plan(monkeypatch):
    monkeypatch.setattr(Compiled, "_eagerly", lambda self, values: pytest.fail("operator by operator"))
    x = torch.arange(24.0).view(4, 6)
    y = compiled(BY_STRIDES["fill_diagonal_"])(x)
    torch.testing.assert_close(y, BY_STRIDES["fill_diagonal_"](x), rtol=0, atol=0)


_MASKS = {
    "none": lambda: None,
    "bools": lambda: torch.rand(9, 9) > 0.3,
    "of heads": lambda: torch.randn(2, 8, 9, 9),
    "of one head": lambda: torch.rand(2, 1, 9, 9) > 0.3,
    "of heads alone": lambda: torch.randn(8, 9, 9),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", _MASKS)
@pytest.mark.parametrize("heads", [1, 2, 8])
def test_heads_that_share_keys(monkeypatch, name, heads, causal):
    monkeypatch.setattr(Compiled, "_eagerly", lambda self, values: pytest.fail("operator by operator"))
    if causal and name != "none":
        return
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
    fused = kf.fuse(attend)
    torch.testing.assert_close(fused(*made), attend(*made), rtol=1e-4, atol=1e-5)
