"""The one table of what is refused, and why: operators, and types of values."""

from __future__ import annotations

from typing import Any

RANDOM = "it draws random numbers, which each call would have to draw anew"
_SEQUENCE = "it makes or takes a sequence, an optional or a map, which graphs cannot hold"
_TEXT = "it computes with text, which graphs cannot hold"
_DATA_SHAPE = "the shape of its result depends on values"
_IMAGES = "it decodes a file of an image, whose size is in its bytes"
_STEP = "a step of training belongs to the program that trains: kfusion.optim, or kfusion.for_each"

# Why operators are refused where their inputs are not known. The domain does not matter.
_BY_REASON = {
    RANDOM: "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
    _SEQUENCE: "CastMap ConcatFromSequence DictVectorizer Optional OptionalGetElement OptionalHasElement SequenceAt "
    "SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap SplitToSequence ZipMap",
    _TEXT: "RegexFullMatch StringConcat StringNormalizer StringSplit",
    _DATA_SHAPE: "NonMaxSuppression NonZero Unique",
    _STEP: "Adagrad Adam Gradient Momentum",
    _IMAGES: "ImageDecoder",
}
OPERATORS = {op: why for why, ops in _BY_REASON.items() for op in ops.split()}
# Cases of operators that have a row or are calls of the library.
CASES: dict[str, str] = {
    "Dropout in training mode": RANDOM,
}
# The opsets from which on onnx.reference is right; before them operators without a row are refused.
CHANGED = {
    **dict.fromkeys(
        ("Add", "And", "Div", "Equal", "Gemm", "Greater", "Less", "Mul", "Or", "PRelu", "Pow", "Sub", "Xor"), 7
    ),
    **{"BatchNormalization": 9, "Hardmax": 13, "OneHot": 11, "Resize": 11, "RoiAlign": 16, "Scan": 9},
}
# Types of values, whatever the operator.
TYPES: dict[str, str] = {
    "sequences, optionals, maps, sparse tensors": "graphs hold tensors only",
    "strings and complex numbers": "no kernel and no array of a graph holds them",
}

# Operators whose bodies in onnx are of sequences, or are written worse than what the library does.
NO_BODIES = frozenset(
    [("", "SequenceMap"), ("", "Range"), ("", "Bernoulli"), ("", "CenterCropPad"), ("", "AffineGrid")]
)


class Refused(ValueError):
    """A model has what is refused, by name."""


def check(node: Any, is_known: bool) -> None:
    """Refuses an operator of the table; `is_known`: its inputs are, so that it is computed when the model is traced.

    Raises:
        Refused: the operator has no place in a graph.
    """
    why = OPERATORS.get(node.op)
    if why is None:
        return
    if why in (_TEXT, _DATA_SHAPE) and is_known:
        return
    raise refused(node, why)


def check_version(node: Any) -> None:
    """Refuses a call of the library for an operator of an old opset that onnx.reference takes for a later one.

    Raises:
        Refused: it is such an operator.
    """
    if node.domain == "" and node.version < CHANGED.get(node.op, 0):
        raise refused(node, f"before opset {CHANGED[node.op]} it computes something else, which onnx.reference has not")


def refused(node: Any, why: str) -> Refused:
    """The error for an operator that has no place in a graph."""
    return Refused(f"kfusion.onnx: {node.who} is refused: {why}")


def refused_type(what: str, kind: str) -> Refused:
    """The error for a value that is no tensor, or one that graphs cannot hold."""
    return Refused(f"kfusion.onnx: {what} is refused: it is {kind}, which graphs cannot hold")
