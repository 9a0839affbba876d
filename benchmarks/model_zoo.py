"""Whole models with random weights, each in two sizes: tiny ones for tests, real ones to be measured.

Those of `transformers` are its own classes from a configuration, without a download; the others are written here as
their papers have them.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F


class Size(NamedTuple):
    """What a model's builder is asked for. batch: of the inputs, length: at most of texts, 0: as the builder likes."""

    real: bool
    batch: int = 0
    length: int = 0

    def of(self, tiny: Any, real: Any) -> Any:
        """One of two values."""
        return real if self.real else tiny


Built = tuple[nn.Module, dict[str, torch.Tensor]]


def built(name: str, size: Size, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Built:
    """A model in evaluation mode, without gradients, and the keywords of a call.

    Args:
        name: of `MODELS`.
        size: tiny or real.
        device: where its weights and inputs are.
        dtype: of its weights and of inputs that are no integers.

    Raises:
        ImportError: it is one of transformers', which is not installed.
    """
    torch.manual_seed(0)
    with torch.device(device):
        model, inputs = MODELS[name](size)
    model = model.eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() == 1:  # new biases are 0 and new scales 1, which would hide what is left out
            parameter.add_(torch.randn_like(parameter) * 0.1)
    inputs = {k: x.to(dtype) if x.is_floating_point() else x for k, x in inputs.items()}
    return model.to(device=device, dtype=dtype), inputs


# ---- transformers ---------------------------------------------------------------------------------------------------


def _transformers() -> Any:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    return importlib.import_module("transformers")


def _ids(vocabulary: int, size: Size, real: tuple[int, int], tiny: tuple[int, int] = (2, 12)) -> torch.Tensor:
    batch, length = size.of(tiny, real)
    return torch.randint(0, vocabulary - 1, (size.batch or batch, min(size.length or length, length)))


def _pixels(size: Size, real: int, extent: int = 224) -> torch.Tensor:
    batch, n = size.of((1, 32), (real, extent))
    return torch.randn(size.batch or batch, 3, n, n)


def _widths(size: Size, hidden: int, inner: int, layers: int, heads: int) -> dict[str, int]:
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    return dict(zip(names, size.of((32, 64, 2, 4), (hidden, inner, layers, heads)), strict=True))


def _bert(size: Size) -> Built:
    t, vocabulary = _transformers(), size.of(99, 30522)
    model = t.BertModel(t.BertConfig(vocab_size=vocabulary, **_widths(size, 768, 3072, 12, 12)))
    return model, {"input_ids": _ids(vocabulary, size, (8, 512))}


def _gpt2(size: Size) -> Built:
    t, vocabulary = _transformers(), size.of(99, 50257)
    hidden, layers, heads = size.of((32, 2, 4), (768, 12, 12))
    config = t.GPT2Config(vocab_size=vocabulary, n_embd=hidden, n_layer=layers, n_head=heads, use_cache=False)
    return t.GPT2LMHeadModel(config), {"input_ids": _ids(vocabulary, size, (8, 512))}


def _decoder(kind: str, **real: Any) -> Callable[[Size], Built]:
    """A decoder of Llama's family, with fewer heads for keys than for queries."""

    def build(size: Size) -> Built:
        t, vocabulary = _transformers(), size.of(99, real["vocabulary"])
        widths = _widths(size, *real["widths"])
        config = getattr(t, f"{kind}Config")(
            vocab_size=vocabulary, num_key_value_heads=size.of(2, real["key_heads"]), use_cache=False, **widths
        )
        return getattr(t, f"{kind}ForCausalLM")(config), {"input_ids": _ids(vocabulary, size, (1, 2048))}

    return build


def _t5(size: Size) -> Built:
    t, vocabulary = _transformers(), size.of(99, 32128)
    names = ("d_model", "d_kv", "d_ff", "num_layers", "num_heads")
    widths = dict(zip(names, size.of((32, 8, 64, 2, 4), (768, 64, 3072, 12, 12)), strict=True))
    ids = _ids(vocabulary, size, (8, 512))
    return t.T5Model(t.T5Config(vocab_size=vocabulary, use_cache=False, **widths)), {
        "input_ids": ids,
        "decoder_input_ids": ids[:, : ids.shape[1] // 4],
    }


def _vit(size: Size) -> Built:
    t = _transformers()
    config = t.ViTConfig(image_size=size.of(32, 224), patch_size=size.of(8, 16), **_widths(size, 768, 3072, 12, 12))
    return t.ViTModel(config), {"pixel_values": _pixels(size, 32)}


def _clip(size: Size) -> Built:
    t, vocabulary = _transformers(), size.of(99, 49408)
    text = {"vocab_size": vocabulary, "max_position_embeddings": size.of(32, 77), "eos_token_id": vocabulary - 1}
    vision = {"image_size": size.of(32, 224), "patch_size": size.of(8, 32)}
    config = t.CLIPConfig(
        text_config=text | _widths(size, 512, 2048, 12, 8),
        vision_config=vision | _widths(size, 768, 3072, 12, 12),
        projection_dim=size.of(16, 512),
    )
    return t.CLIPModel(config), {"input_ids": _ids(vocabulary, size, (32, 77)), "pixel_values": _pixels(size, 32)}


def _whisper(size: Size) -> Built:
    t = _transformers()
    hidden, layers, heads, inner = size.of((32, 2, 4, 64), (512, 6, 8, 2048))
    bins, positions = size.of((8, 16), (80, 1500))
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = t.WhisperConfig(
        vocab_size=99, d_model=hidden, encoder_layers=layers, encoder_attention_heads=heads, encoder_ffn_dim=inner,
        decoder_layers=1, num_mel_bins=bins, max_source_positions=positions, **tokens,
    )  # fmt: skip
    encoder = t.models.whisper.modeling_whisper.WhisperEncoder(config)
    return encoder, {"input_features": torch.randn(size.batch or size.of(1, 8), bins, 2 * positions)}


def _resnet(size: Size) -> Built:
    t = _transformers()
    if size.real:
        return t.ResNetModel(t.ResNetConfig()), {"pixel_values": _pixels(size, 32)}  # ResNet-50
    config = t.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    return t.ResNetModel(config), {"pixel_values": _pixels(size, 32)}


def _convnext(size: Size) -> Built:
    t = _transformers()
    tiny = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "patch_size": 4}
    return t.ConvNextModel(t.ConvNextConfig(**size.of(tiny, {}))), {"pixel_values": _pixels(size, 32)}


# ---- written here ---------------------------------------------------------------------------------------------------


class UNet(nn.Module):
    """Convolutions on the way down, the same on the way up beside what was on the way down (Ronneberger, 2015)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = self._two(3, channels)
        self.down = nn.Sequential(nn.MaxPool2d(2), self._two(channels, 2 * channels))
        self.bottom = nn.Sequential(nn.MaxPool2d(2), self._two(2 * channels, 4 * channels))
        self.up_1 = nn.ConvTranspose2d(4 * channels, 2 * channels, 2, stride=2)
        self.joined_1 = self._two(4 * channels, 2 * channels)
        self.up_2 = nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
        self.joined_2 = nn.Sequential(self._two(2 * channels, channels), nn.Conv2d(channels, 2, 1))

    @staticmethod
    def _two(inputs: int, outputs: int) -> nn.Module:
        def one(n: int) -> list[nn.Module]:
            return [nn.Conv2d(n, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]

        return nn.Sequential(*one(inputs), *one(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A value for each of two classes and each pixel."""
        first = self.first(x)
        down = self.down(first)
        x = self.joined_1(torch.cat([down, self.up_1(self.bottom(down))], 1))
        result: torch.Tensor = self.joined_2(torch.cat([first, self.up_2(x)], 1))
        return result


def _unet(size: Size) -> Built:
    return UNet(size.of(8, 64)), {"x": _pixels(size, 8, 256)}


class LanguageModel(nn.Module):
    """An LSTM over embeddings, and scores for the next word."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.recurrent = nn.LSTM(width, width, 2, batch_first=True)
        self.scores = nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """(batch, length, vocabulary)."""
        result: torch.Tensor = self.scores(self.recurrent(self.embedding(ids))[0])
        return result


def _lstm(size: Size) -> Built:
    vocabulary = size.of(99, 10000)
    return LanguageModel(vocabulary, size.of(16, 512)), {"ids": _ids(vocabulary, size, (32, 128))}


class GraphLayer(nn.Module):
    """The mean of the neighbours' features, and its own (GraphSAGE, Hamilton et al., 2017)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.neighbours, self.own = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)

    def forward(self, x: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """x: (nodes, inputs); an edge leads from each of sources to the one of targets."""
        sums = torch.zeros_like(x).index_add_(0, targets, x[sources])
        counts = torch.zeros(x.shape[0], dtype=x.dtype, device=x.device).index_add_(
            0, targets, torch.ones(targets.shape[0], dtype=x.dtype, device=x.device)
        )
        return F.relu(self.neighbours(sums / counts.clamp(min=1)[:, None]) + self.own(x))


def _gnn(size: Size) -> Built:
    nodes, edges, inputs, outputs = size.of((10, 30, 8, 16), (100_000, 1_000_000, 128, 256))
    ends = torch.randint(0, nodes, (2, edges))
    return GraphLayer(inputs, outputs), {"x": torch.randn(nodes, inputs), "sources": ends[0], "targets": ends[1]}


class DiffusionBlock(nn.Module):
    """A residual block with a shift and a scale of the time step, and attention over the pixels (DDPM's, ADM's)."""

    def __init__(self, channels: int, times: int, groups: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2, self.norm_3 = (nn.GroupNorm(groups, channels) for _ in range(3))
        self.convolution_1, self.convolution_2 = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.time = nn.Linear(times, 2 * channels)
        self.projections, self.output = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, height, width), time: (batch, times)."""
        hidden = self.convolution_1(F.silu(self.norm_1(x)))
        scale, shift = self.time(F.silu(time))[:, :, None, None].chunk(2, 1)
        hidden = self.norm_2(hidden) * (1 + scale) + shift
        x = x + self.convolution_2(F.silu(hidden))
        batch, channels, height, width = x.shape
        pixels = self.norm_3(x).flatten(2).transpose(1, 2)
        split = self.projections(pixels).reshape(batch, -1, 3, self.heads, channels // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, -1, channels)
        result: torch.Tensor = x + self.output(mixed).transpose(1, 2).reshape(batch, channels, height, width)
        return result


def _diffusion(size: Size) -> Built:
    channels, times, groups, heads, extent = size.of((16, 8, 4, 2, 8), (320, 1280, 32, 8, 32))
    batch = size.batch or size.of(1, 8)
    block = DiffusionBlock(channels, times, groups, heads)
    return block, {"x": torch.randn(batch, channels, extent, extent), "time": torch.randn(batch, times)}


MODELS: dict[str, Callable[[Size], Built]] = {
    "BERT": _bert,
    "GPT-2": _gpt2,
    "Llama": _decoder("Llama", vocabulary=32000, widths=(2048, 5632, 16, 32), key_heads=4),
    "Mistral": _decoder("Mistral", vocabulary=32000, widths=(2048, 7168, 12, 16), key_heads=4),
    "Qwen2": _decoder("Qwen2", vocabulary=151936, widths=(896, 4864, 24, 14), key_heads=2),
    "T5": _t5,
    "ViT": _vit,
    "CLIP": _clip,
    "Whisper encoder": _whisper,
    "ResNet": _resnet,
    "ConvNeXt": _convnext,
    "UNet": _unet,
    "LSTM": _lstm,
    "graph layer": _gnn,
    "diffusion block": _diffusion,
}
