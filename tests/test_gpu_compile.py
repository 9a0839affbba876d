"""torch.compile with this backend on a GPU: the modes, both passes, and CUDA graphs."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),  # torch's own, of its graphs too
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no GPU"),
]
MODES = ["default", "reduce-overhead"]


@pytest.fixture(autouse=True)
def forgotten() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    """What a transformer has: products, norms, attention, an embedding."""

    def __init__(self, width: int = 64, words: int = 97) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.norm = nn.LayerNorm(width)
        self.heads = nn.Linear(width, 3 * width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.out = nn.Linear(width, words)

    def forward(self, tokens: Any) -> Any:
        x = self.words(tokens)
        n, s, d = x.shape
        q, k, v = (t.view(n, s, 4, d // 4).transpose(1, 2) for t in self.heads(self.norm(x)).chunk(3, -1))
        x = x + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, s, d)
        return self.out(x + self.down(nn.functional.gelu(self.up(self.norm(x)))))


def block(dtype: Any = torch.float32) -> Any:
    torch.manual_seed(3)
    return Block().cuda().to(dtype)


def tokens(n: int = 3, s: int = 20, seed: int = 5) -> Any:
    return torch.randint(97, (n, s), generator=torch.Generator().manual_seed(seed)).cuda()


def near(got: Any, want: Any, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(got.float(), want.float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 6e-2)])
@pytest.mark.parametrize("aside", [False, True])
def test_inference(mode: str, dtype: Any, tolerance: float, aside: bool) -> None:
    """On a stream of its own, too."""
    model = block(dtype)
    compiled = torch.compile(model, backend="kfusion", mode=mode)
    stream = torch.cuda.Stream() if aside else torch.cuda.current_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        # A graph is recorded at the second call, and replayed from the third.
        got = [compiled(tokens(seed=seed)).clone() for seed in range(5)]
    torch.cuda.current_stream().wait_stream(stream)
    with torch.no_grad():
        for seed, result in enumerate(got):
            near(result, model(tokens(seed=seed)), tolerance)


@pytest.mark.parametrize("mode", MODES)
def test_training(mode: str) -> None:
    model = block()
    trained = copy.deepcopy(model)
    compiled = torch.compile(trained, backend="kfusion", mode=mode)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, trained)]
    for seed in range(6):
        given = tokens(seed=seed)
        losses = []
        for run, optimizer in zip((model, compiled), optimizers, strict=True):
            torch.compiler.cudagraph_mark_step_begin()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(run(given).flatten(0, 1), given.flatten())
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().clone())
        near(losses[1], losses[0])
    for got, want in zip(trained.parameters(), model.parameters(), strict=True):
        near(got, want, 1e-3)


def test_sizes_that_change_and_autocast() -> None:
    model = block()
    compiled = torch.compile(model, backend="kfusion", dynamic=True, fullgraph=True)
    with torch.no_grad():
        for n, s in ((1, 7), (2, 20), (5, 33), (3, 1)):
            near(compiled(tokens(n, s)), model(tokens(n, s)))
    with torch.autocast("cuda", torch.bfloat16):
        got, want = torch.compile(model, backend="kfusion")(tokens()), model(tokens())
    assert got.dtype == want.dtype
    near(got, want, 6e-2)


@pytest.mark.parametrize("mode", MODES)
def test_arguments_that_are_written(mode: str) -> None:
    def step(x: Any, running: Any) -> Any:
        running.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return (x - running).relu()

    compiled = torch.compile(step, backend="kfusion", mode=mode)
    ours, theirs = torch.zeros(40, device="cuda"), torch.zeros(40, device="cuda")
    for seed in range(5):
        x = torch.randn(30, 40, generator=torch.Generator().manual_seed(seed)).cuda()
        near(compiled(x, ours), step(x, theirs))
        near(ours, theirs)
