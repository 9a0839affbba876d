"""Backward passes of norms, and whole steps of blocks of models: time, and the memory that a step takes at most."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import kfusion as kf

from .losses import COMPILED, Draw, LossCase, Run, compiled

SUITE = "training"
_NORMS = {"cuda": ((8192, 4096), (16384, 8192), (4096, 32768)), "cpu": ((2048, 2048),)}
_BLOCKS = {
    "cuda": {"GPT-2 medium": (8, 1024, 1024), "Llama": (4, 2048, 2048), "ViT large": (32, 197, 1024)},
    "cpu": {"GPT-2": (1, 128, 768)},
}
# Sequences, tokens, width, words.
_LANGUAGE_MODELS = {"cuda": (8, 1024, 1024, 50257), "cpu": (2, 512, 256, 32000)}
_HEAD = 64  # elements


# ---- norms ----


def _rows(weights: int) -> Callable[..., list[Any]]:
    def draw(by: Draw, rows: int, width: int) -> list[Any]:
        return [by.normal(rows, width), by.normal(rows, width), *(by.normal(width) for _ in range(weights))]

    return draw


def _backward(norm: Callable[..., Any]) -> Callable[..., dict[str, Run]]:
    """The gradients of a norm's input and weights alone: its forward pass is run once."""

    def make(x: Any, g: Any, *weights: Any) -> dict[str, Run]:
        import torch
        from torch._functorch import config

        leaves = [t.clone().requires_grad_() for t in (x, *weights)]

        def of(function: Any) -> Run:
            y: list[Any] = []

            def run() -> Any:
                if not y:
                    with config.patch(donated_buffer=False):  # its graph is retained
                        y.append(function(*leaves))
                return torch.autograd.grad(y[0], leaves, g, retain_graph=True)

            return run

        return {"fused": of(kf.fuse(norm)), "torch": of(norm), "torch.compile": of(compiled(norm))}

    return make


def _layernorm(x: Any, w: Any, b: Any) -> Any:
    import torch

    return torch.nn.functional.layer_norm(x, x.shape[-1:], w, b)


def _rmsnorm(x: Any, w: Any) -> Any:
    import torch

    return torch.nn.functional.rms_norm(x, x.shape[-1:], w, 1e-6)


# ---- blocks ----


def _block(name: str, width: int) -> Any:
    from torch import nn
    from torch.nn import functional as F

    class Gpt(nn.Module):
        """Layer norms, attention and a GELU between two linear layers; causal but for images."""

        def __init__(self, causal: bool) -> None:
            super().__init__()
            self.causal = causal
            self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            batch, rows, _ = x.shape
            qkv = self.qkv(self.norms[0](x)).split(width, -1)
            q, k, v = (t.reshape(batch, rows, -1, _HEAD).transpose(1, 2) for t in qkv)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
            x = x + self.out(y.transpose(1, 2).reshape(batch, rows, width))
            return x + self.down(F.gelu(self.up(self.norms[1](x))))

    class Llama(nn.Module):
        """RMS norms, attention with heads of 128, and a SiLU gate."""

        def __init__(self) -> None:
            super().__init__()
            inner = width * 43 // 16
            self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
            self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
            self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
            self.down = nn.Linear(inner, width, bias=False)

        def forward(self, x: Any) -> Any:
            batch, rows, _ = x.shape
            y = self.norms[0](x)
            layers = self.q, self.k, self.v
            q, k, v = (layer(y).reshape(batch, rows, -1, 2 * _HEAD).transpose(1, 2) for layer in layers)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(batch, rows, width))
            y = self.norms[1](x)
            return x + self.down(F.silu(self.gate(y)) * self.up(y))

    return Llama() if name == "Llama" else Gpt(causal=not name.startswith("ViT"))


def _input(draw: Draw, *shape: int) -> list[Any]:
    return [draw.normal(*shape), draw.normal(*shape)]


def _step(name: str) -> Callable[..., dict[str, Run]]:
    """A forward and a backward pass: gradients of the input and of all parameters."""

    def make(x: Any, g: Any) -> dict[str, Run]:
        module = _placed(lambda: _block(name, x.shape[-1]), x)
        leaf = x.clone().requires_grad_()
        return _steps(module, leaf, g, [leaf, *module.parameters()])

    return make


def _placed(made: Callable[[], Any], like: Any) -> Any:
    import torch

    torch.manual_seed(1)
    return made().to(device=like.device, dtype=like.dtype)


def _steps(module: Any, given: Any, g: Any, wanted: list[Any]) -> dict[str, Run]:
    """Runs by version, which give a module's result and gradients for g of it."""

    def of(function: Any) -> Run:
        def run() -> Any:
            for t in wanted:
                t.grad = None
            y = function(given)
            y.backward(g)
            return y.detach(), *(t.grad for t in wanted)

        return run

    runs = {"fused": of(kf.fuse(module)), COMPILED: of(compiled(module, by="kfusion"))}
    return runs | {"torch": of(module), "torch.compile": of(compiled(module))}


def _language_model(width: int, words: int) -> Any:
    from torch import nn
    from torch.nn import functional as F

    class LanguageModel(nn.Module):
        """Two blocks between an embedding and a head, and the loss of each token's successor."""

        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
            self.blocks, self.norm = nn.Sequential(*(_block("GPT-2", width) for _ in range(2))), nn.LayerNorm(width)

        def forward(self, tokens: Any) -> Any:
            logits = self.head(self.norm(self.blocks(self.words(tokens))))
            return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())

    return LanguageModel()


def _tokens(draw: Draw, batch: int, rows: int, width: int, words: int) -> list[Any]:
    return [draw.classes(batch * rows, words).view(batch, rows), draw.normal(width, 1)]


def _step_of_language_model(words: int) -> Callable[..., dict[str, Run]]:
    def make(tokens: Any, like: Any) -> dict[str, Run]:
        module = _placed(lambda: _language_model(len(like), words), like)
        return _steps(module, tokens, None, list(module.parameters()))

    return make


def cases(dtype: str, device: str, smaller: int = 1) -> Iterator[LossCase]:
    """Nothing where torch is not installed. Rows are divided by `smaller`."""
    if importlib.util.find_spec("torch") is None:
        return
    for name, norm, weights in (("layer norm", _layernorm, 2), ("RMS norm", _rmsnorm, 1)):
        for rows, width in _NORMS[device]:
            of_norm = max(rows // smaller, 1), width
            yield LossCase(f"backward of {name}", _rows(weights), _backward(norm), 3, of_norm, dtype, device, SUITE)
    for name, (batch, rows, width) in _BLOCKS[device].items():
        shape = max(batch // smaller, 1), rows, width
        small = 2, rows, width
        yield LossCase(f"step of a {name} block", _input, _step(name), 0, shape, dtype, device, SUITE, small)
    batch, rows, width, words = _LANGUAGE_MODELS[device]
    words //= smaller
    of_model = max(batch // smaller, 1), rows, width, words
    make, name = _step_of_language_model(words), "step of a language model"
    yield LossCase(name, _tokens, make, 0, of_model, dtype, device, SUITE, (2, 32, width, words))
