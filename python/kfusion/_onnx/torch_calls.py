"""Operators that kernels have not as calls of torch, where they mean the same: convolutions of volumes, long windows,
recurrent layers, resizing, sorting and sums along axes.

A rule is given the node and its inputs as they are known when the model is traced. It returns a function of torch's
tensors, one for each input, or None for what onnx.reference is to run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import resizing, tensors
from .nodes import Node
from .rows_networks import Windows
from .values import dtype_of, is_known, shape_of

Function = Callable[..., Any]
Rule = Callable[..., "Function | None"]
RULES: dict[str, Rule] = {}
_COMPUTED = ("float32", "float64")
_KNOWN = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", *_COMPUTED)  # to all functions
_MOST_SUMMED = 1 << 15  # products of bytes whose sum int32 holds


def function(node: Node, inputs: Sequence[Any], types: Sequence[Any]) -> Function | None:
    """The function of torch's that a node is; None where there is none, or no torch."""
    rule = None if node.domain else RULES.get(node.op)
    dtypes = [d for d, _ in types] + [dtype_of(v) for v in inputs if v is not None]
    if rule is None or tensors.torch() is None or not all(d.name in _KNOWN for d in dtypes):
        return None
    return rule(node, *inputs)


def _rule(*ops: str) -> Callable[[Rule], Rule]:
    def enter(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(ops, rule))
        return rule

    return enter


def _computes(*values: Any) -> bool:
    """Whether torch computes with values' dtype on every device."""
    return all(v is None or dtype_of(v).name in _COMPUTED for v in values)


def _outputs(node: Node) -> int:
    return len([n for n in node.proto.output if n])


def _f() -> Any:
    return tensors.torch().nn.functional


# ---- windows ----


def _widths(pads: Any) -> list[int]:
    """Padding along the last axes as torch takes it, the last axis first."""
    return [n for pair in reversed(pads) for n in pair]


@_rule("Conv")
def _conv(node: Node, x: Any, weight: Any, bias: Any = None) -> Function | None:
    axes = len(shape_of(x)) - 2
    if not _computes(x, weight, bias) or axes not in (1, 2, 3):
        return None
    w = Windows(node, x, shape_of(weight)[2:])
    convolve = getattr(_f(), f"conv{axes}d")
    groups = node.attr("group", 1)

    def run(x: Any, weight: Any, bias: Any = None) -> Any:
        x = _f().pad(x, _widths(w.pads)) if any(map(any, w.pads)) else x
        return convolve(x, weight, bias, w.steps, 0, w.dilations, groups)

    return run


@_rule("ConvTranspose")
def _conv_transpose(node: Node, x: Any, weight: Any, bias: Any = None) -> Function | None:
    sizes, extents = shape_of(x)[2:], shape_of(weight)[2:]
    n = len(sizes)
    steps, dilations = node.attr("strides", [1] * n), node.attr("dilations", [1] * n)
    more = node.attr("output_padding", [0] * n)
    fits = all(m < max(s, d) for m, s, d in zip(more, steps, dilations, strict=True))
    if n not in (1, 2, 3) or not fits or not _computes(x, weight, bias):
        return None
    transpose = getattr(_f(), f"conv_transpose{n}d")
    auto, pads = node.attr("auto_pad", "NOTSET"), node.attr("pads", [0] * 2 * n)
    if auto == "VALID":
        pads = [0] * 2 * n
    if "output_shape" in node.attributes:
        axes = zip(sizes, steps, extents, dilations, more, node.attr("output_shape")[-n:], strict=True)
        cut = [(size - 1) * s + (k - 1) * d + 1 + m - length for size, s, k, d, m, length in axes]
        halves = [c // 2 for c in cut], [c - c // 2 for c in cut]
        pads = [*halves[0], *halves[1]] if auto == "SAME_UPPER" else [*halves[1], *halves[0]]
    groups = node.attr("group", 1)
    widths = _widths([(-a, -b) for a, b in zip(pads[:n], pads[n:], strict=True)])

    def run(x: Any, weight: Any, bias: Any = None) -> Any:
        if pads[:n] == pads[n:] and min(pads) >= 0:
            return transpose(x, weight, bias, steps, pads[:n], more, groups, dilations)
        y = _f().pad(transpose(x, weight, None, steps, 0, more, groups, dilations), widths)
        return y if bias is None else y + bias.reshape(-1, *[1] * n)

    return run


@_rule("MaxPool")
def _max_pool(node: Node, x: Any) -> Function | None:
    extents = node.attr("kernel_shape")
    if not _computes(x) or len(extents) > 3 or _outputs(node) > 1:
        return None
    w = Windows(node, x, extents)
    pool = getattr(_f(), f"max_pool{len(extents)}d")
    widths = _widths([(a, b + e) for (a, b), e in zip(w.pads, w.extra, strict=True)])
    return lambda x: pool(_f().pad(x, widths, value=-math.inf), w.extents, w.steps, 0, w.dilations)


@_rule("AveragePool")
def _average_pool(node: Node, x: Any) -> Function | None:
    extents = node.attr("kernel_shape")
    if not _computes(x) or len(extents) > 3:
        return None
    w = Windows(node, x, extents)
    if any(d != 1 for d in w.dilations):
        return None
    pool = getattr(_f(), f"avg_pool{len(extents)}d")
    behind = _widths([(0, e) for e in w.extra])
    counted = 1.0 if node.attr("count_include_pad", 0) else 0.0

    def means(x: Any, value: float) -> Any:
        padded = _f().pad(x, _widths(w.pads), value=value)
        return pool(_f().pad(padded, behind), w.extents, w.steps)

    if not any(map(any, w.pads)) and not any(w.extra):
        return lambda x: pool(x, w.extents, w.steps)
    return lambda x: means(x, 0.0) / means(tensors.torch().ones_like(x[:1, :1]), counted)


# ---- recurrent layers ----


def _recurrent(node: Node, name: str, order: Sequence[int], x: Any, inputs: Sequence[Any]) -> Function | None:
    """A layer of torch's, whose gates stand in another order."""
    lengths, hidden = inputs[2] if len(inputs) > 2 else None, node.attr("hidden_size", 0)
    ways = {"forward": 1, "bidirectional": 2}.get(node.attr("direction", "forward"), 0)
    if not _computes(x) or not ways or not hidden or lengths is not None or node.attr("layout", 0):
        return None
    if any(name in node.attributes for name in ("clip", "activation_alpha", "activation_beta")):
        return None
    layer = getattr(tensors.torch(), name)
    rows = [r for gate in order for r in range(gate * hidden, (gate + 1) * hidden)]
    biased = len(inputs) > 1 and inputs[1] is not None

    def run(x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, *states: Any) -> Any:
        parameters = []
        for way in range(ways):
            own = [w[way], r[way], *(b[way].chunk(2) if biased else ())]
            parameters += [p[rows] for p in own]
        zeros = x.new_zeros(ways, x.shape[1], hidden)
        given = [zeros if s is None else s for s in (*states, None, None)][: 2 if name == "lstm" else 1]
        first = given if name == "lstm" else given[0]
        y, *last = layer(x, first, parameters, biased, 1, 0.0, False, ways == 2, False)
        y = y.reshape(*y.shape[:2], ways, hidden).transpose(1, 2)
        return [v for v, name in zip((y, *last), node.proto.output, strict=False) if name]

    return run


@_rule("LSTM")
def _lstm(node: Node, x: Any, w: Any, r: Any, *more: Any) -> Function | None:
    standard = ["Sigmoid", "Tanh", "Tanh"]
    peepholes = len(more) > 4 and more[4] is not None
    if node.attr("activations", standard)[:3] not in (standard, [s.encode() for s in standard]):
        return None
    if "activations" in node.attributes or peepholes or node.attr("input_forget", 0):
        return None
    return _recurrent(node, "lstm", (0, 2, 3, 1), x, [r, *more])


@_rule("GRU")
def _gru(node: Node, x: Any, w: Any, r: Any, *more: Any) -> Function | None:
    if "activations" in node.attributes or not node.attr("linear_before_reset", 0):
        return None
    return _recurrent(node, "gru", (1, 0, 2), x, [r, *more])


@_rule("RNN")
def _rnn(node: Node, x: Any, w: Any, r: Any, *more: Any) -> Function | None:
    if "activations" in node.attributes:
        return None
    return _recurrent(node, "rnn_tanh", (0,), x, [r, *more])


# ---- along axes ----


@_rule("CumSum")
def _cumsum(node: Node, x: Any, axis: Any) -> Function | None:
    if not is_known(axis) or not shape_of(x):
        return None
    at, t = int(np.asarray(axis).ravel()[0]), tensors.torch()
    is_backwards, is_exclusive = node.attr("reverse", 0), node.attr("exclusive", 0)

    def run(x: Any, axis: Any) -> Any:
        x = x.flip(at) if is_backwards else x
        if is_exclusive:
            x = t.cat([t.zeros_like(x.narrow(at, 0, 1)), x.narrow(at, 0, x.shape[at] - 1)], at)
        y = x.cumsum(at, dtype=x.dtype)
        return y.flip(at) if is_backwards else y

    return run if shape_of(x)[at] else None


@_rule("TopK")
def _top_k(node: Node, x: Any, k: Any) -> Function | None:
    if not is_known(k) or node.version < 11:
        return None
    count, axis, largest = int(np.asarray(k).ravel()[0]), node.attr("axis", -1), bool(node.attr("largest", 1))

    def run(x: Any, k: Any) -> Any:
        values, found = _without_ties(x, count, axis, largest) or x.sort(dim=axis, descending=largest, stable=True)
        made = values.narrow(axis, 0, count), found.narrow(axis, 0, count)
        return [v for v, name in zip(made, node.proto.output, strict=False) if name]

    return run


def _without_ties(x: Any, count: int, axis: int, largest: bool) -> Any:
    """Gives what sorting gives, in a hundredth of its time; None where some are equal: the first ones count."""
    n = count + 1
    if not 1 < n <= x.shape[axis] // 8:
        return None
    values, found = x.topk(n, axis, largest)
    before, behind = values.narrow(axis, 0, count), values.narrow(axis, 1, count)
    return (values, found) if ((before > behind) if largest else (before < behind)).all() else None


@_rule("Einsum")
def _einsum(node: Node, *inputs: Any) -> Function | None:
    if not _computes(*inputs):
        return None
    equation = str(node.attr("equation")).replace(" ", "")
    return lambda *given: tensors.torch().einsum(equation, *given)


# ---- gathers and scatters ----


def _wrapped(index: Any, extent: int) -> Any:
    return tensors.torch().where(index < 0, index + extent, index)


def _indices(index: Any) -> tuple[Any, ...]:
    return tuple(index.long().unbind(-1))


@_rule("GatherND")
def _gather_nd(node: Node, x: Any, index: Any) -> Function | None:
    if node.attr("batch_dims", 0) or not shape_of(index)[-1]:
        return None
    return lambda x, index: x[_indices(index)]


@_rule("ScatterND")
def _scatter_nd(node: Node, x: Any, index: Any, updates: Any) -> Function | None:
    reduction = node.attr("reduction", "none")
    adds = reduction == "add" and dtype_of(x).name != "bool"
    if not (adds or reduction == "none") or not shape_of(index)[-1]:
        return None
    return lambda x, index, updates: x.clone().index_put_(_indices(index), updates, accumulate=adds)


_SCATTERS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@_rule("ScatterElements")
def _scatter_elements(node: Node, x: Any, index: Any, updates: Any) -> Function | None:
    axis, reduction = node.attr("axis", 0), node.attr("reduction", "none")
    if reduction != "none" and (reduction not in _SCATTERS or dtype_of(x).name == "bool"):
        return None

    def run(x: Any, index: Any, updates: Any) -> Any:
        positions = _wrapped(index.long(), x.shape[axis])
        if reduction == "none":
            return x.scatter(axis, positions, updates)
        return x.scatter_reduce(axis, positions, updates, _SCATTERS[reduction])

    return run


# ---- images ----

_MODES = {"linear": "bilinear", "bilinear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}


@_rule("GridSample")
def _grid_sample(node: Node, x: Any, grid: Any) -> Function | None:
    mode, volume = _MODES.get(node.attr("mode", "linear")), len(shape_of(x)) == 5
    if mode is None or len(shape_of(x)) not in (4, 5) or (volume and mode == "bicubic") or not _computes(x, grid):
        return None
    padding = node.attr("padding_mode", "zeros")
    if dtype_of(x) != dtype_of(grid) or (mode == "bicubic" and padding != "zeros"):
        return None  # torch moves each of sixteen elements inside, onnx their place
    options = {"padding_mode": padding, "align_corners": bool(node.attr("align_corners", 0))}
    return lambda x, grid: _f().grid_sample(x, grid, mode=mode, **options)


@_rule("Resize")
def _resize(node: Node, x: Any, *more: Any) -> Function | None:
    return resizing.function(node, x, *more) if _computes(x) else None


# ---- small integers ----


@_rule("Cast")
def _cast(node: Node, x: Any) -> Function | None:
    """Casts integers, which need no rounding and have no NaN."""
    from .library import onnx

    to = tensors.torch_dtype(np.dtype(onnx().helper.tensor_dtype_to_np_dtype(node.attr("to"))))
    is_plain = dtype_of(x).kind in "iub" and dtype_of(x).isbuiltin == 1 and to is not None
    if not is_plain or not (to.is_floating_point and to.itemsize > 1):
        return None
    return lambda x: x.to(to)


@_rule("MatMulInteger")
def _matmul_integer(node: Node, x: Any, y: Any, *zeros: Any) -> Function | None:
    """Multiplies in float64, which holds the sums exactly."""
    if shape_of(x)[-1] > _MOST_SUMMED or any(z is not None and len(shape_of(z)) for z in zeros):
        return None
    t = tensors.torch()

    def run(x: Any, y: Any, x_zero: Any = None, y_zero: Any = None) -> Any:
        x, y = x.double(), y.double()
        x, y = x if x_zero is None else x - x_zero.double(), y if y_zero is None else y - y_zero.double()
        return t.matmul(x, y).to(t.int32)

    return run
