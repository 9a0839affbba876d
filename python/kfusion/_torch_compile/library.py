"""The named kernels as operators of torch, `torch.ops.kfusion.softmax` and so on: torch.compile with any backend, and
torch.export, keep them as they are.

Schemas come from the functions' signatures. Shapes of results without data are those of `_LIKE`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .._fuse import fuse
from .._grad import vjp
from .._named import KERNELS
from .._tracing import aten

_SPACE = "kfusion"
_BACKWARD = "_backward"
_TYPES = {
    "Array": "Tensor",
    "Array | None": "Tensor?",
    "Axes": "int[1]?",
    "int": "int",
    "int | None": "int?",
    "float": "float",
    "str": "str",
}
# What results are like, but for the row kernels', which are like x.
_BROADCAST = ("bias_relu_log", "mul_add_relu")
_LOSSES = {"mse": "x", "cross_entropy": "logits", "linear_cross_entropy": "x"}  # and whose dtype they have

_Library = torch.library.Library


@functools.cache
def register() -> tuple[str, ...]:
    """Registers the operators, once.

    Returns:
        Their names, "kfusion::softmax" and so on.
    """
    aten.OTHERS[_SPACE] = _traced
    for kernel in KERNELS:
        _register(kernel)
    return tuple(f"{_SPACE}::{kernel.__name__}" for kernel in KERNELS)


def schema(kernel: Callable[..., Any]) -> str:
    """The parameters and results of a kernel as torch writes them: "(Tensor x, int[1]? axis=-1) -> Tensor"."""
    given, is_keyword = [], False
    for p in _parameters(kernel):
        if _is_keyword(p) and not is_keyword:
            given.append("*")
            is_keyword = True
        default = "" if p.default is p.empty else f"={_written(p.default)}"
        given.append(f"{_TYPES[p.annotation]} {p.name}{default}")
    several = inspect.signature(kernel).return_annotation.startswith("tuple")
    return f"({', '.join(given)}) -> {'(Tensor, Tensor)' if several else 'Tensor'}"


def _written(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _register(kernel: Callable[..., Any]) -> None:
    name = f"{_SPACE}::{kernel.__name__}"
    fused = fuse(kernel)

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return fused(**_bound(kernel, args, kwargs))

    torch.library.custom_op(name, run, mutates_args=(), schema=schema(kernel))
    torch.library.register_fake(name, functools.partial(_fake, kernel))
    tensors = [p.name for p in _parameters(kernel) if p.annotation.startswith("Array")]
    results = 2 if schema(kernel).endswith(")") else 1
    _register_backward(kernel, tensors, results)
    torch.library.register_autograd(
        name,
        functools.partial(_backward, kernel, tensors),
        setup_context=functools.partial(_keep, kernel, tensors),
    )


def _parameters(kernel: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters in the schema's order: torch has no tensors by keyword alone."""
    return sorted(inspect.signature(kernel).parameters.values(), key=_is_keyword)


def _is_keyword(p: inspect.Parameter) -> bool:
    return p.kind is p.KEYWORD_ONLY and not p.annotation.startswith("Array")


def _bound(kernel: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of a call of an operator, by name."""
    parameters = _parameters(kernel)
    given = dict(zip([p.name for p in parameters], args, strict=False)) | dict(kwargs)
    return {p.name: _tupled(given.get(p.name, p.default)) for p in parameters}


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _fake(kernel: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Results without data."""
    given = _bound(kernel, args, kwargs)
    name = kernel.__name__
    if name in _LOSSES:
        x = given[_LOSSES[name]]
        each = given["targets"].shape if "targets" in given else x.shape
        return x.new_empty(each if given["reduction"] == "none" else ())
    if name in _BROADCAST:
        return functools.reduce(lambda x, y: torch.empty_like(x + y), given.values())
    first = next(iter(given.values()))
    if schema(kernel).endswith(")"):
        return torch.empty_like(first), torch.empty_like(first)
    return torch.empty_like(first)


def _register_backward(kernel: Callable[..., Any], tensors: Sequence[str], results: int) -> None:
    """The operator of a kernel's gradients: of those of its results, and of its own arguments. Which are wanted it is
    told, by index among its tensors.
    """
    name = f"{_SPACE}::{kernel.__name__}{_BACKWARD}"
    gradients = ", ".join(f"Tensor gradient{i}" for i in range(results))
    parameters = schema(kernel).partition(" -> ")[0][1:-1]
    separator = ", " if "*" in parameters else ", *, "
    written = f"({gradients}, {parameters}{separator}bool[] wanted) -> Tensor[]"

    def pulled(given: Any, cotangents: Any, wanted: tuple[str, ...]) -> Any:
        def function(*primals: Any) -> Any:
            return kernel(**given | dict(zip(wanted, primals, strict=True)))

        _, pull = vjp(function, *[given[n] for n in wanted])
        return pull(cotangents if results > 1 else cotangents[0])

    fused = fuse(pulled)

    def run(*args: Any, wanted: Sequence[bool], **kwargs: Any) -> Any:
        given = _bound(kernel, args[results:], kwargs)
        names = tuple(n for n, w in zip(tensors, wanted, strict=True) if w)
        with torch.no_grad():
            return list(fused(given, tuple(args[:results]), names))

    def fake(*args: Any, wanted: Sequence[bool], **kwargs: Any) -> Any:
        given = _bound(kernel, args[results:], kwargs)
        return [torch.empty_like(given[n]) for n, w in zip(tensors, wanted, strict=True) if w]

    torch.library.custom_op(name, run, mutates_args=(), schema=written)
    torch.library.register_fake(name, fake)


def _keep(
    kernel: Callable[..., Any],
    tensors: Sequence[str],
    ctx: Any,
    inputs: Sequence[Any],
    output: Any,
    keyword_only_inputs: Mapping[str, Any] | None = None,
) -> None:
    given = _bound(kernel, inputs, keyword_only_inputs or {})
    ctx.save_for_backward(*[given[n] for n in tensors])
    ctx.others = {n: v for n, v in given.items() if n not in tensors}
    ctx.shapes = [y.shape for y in (output if isinstance(output, tuple) else (output,))]


def _backward(kernel: Callable[..., Any], tensors: Sequence[str], ctx: Any, *gradients: Any) -> Any:
    given = dict(zip(tensors, ctx.saved_tensors, strict=True)) | ctx.others
    parameters = _parameters(kernel)
    names = [p.name for p in parameters if not _is_keyword(p)]
    needed = dict(zip(names, ctx.needs_input_grad, strict=False))
    wanted = [bool(needed.get(n)) and given[n].is_floating_point() for n in tensors]
    x = given[tensors[0]]
    gradients = tuple(x.new_zeros(shape) if g is None else g for g, shape in zip(gradients, ctx.shapes, strict=True))
    op = getattr(getattr(torch.ops, _SPACE), f"{kernel.__name__}{_BACKWARD}")
    keywords = {p.name: given[p.name] for p in parameters if _is_keyword(p)}
    made = iter(op(*gradients, *[given[n] for n in names], **keywords, wanted=wanted))
    by_name = {n: next(made) for n, w in zip(tensors, wanted, strict=True) if w}
    return tuple(by_name.get(n) for n in names)


def _traced(name: str) -> Callable[..., Any] | None:
    """What an operator of this library does with traced values; None: it is called as it is."""
    kernel = next((k for k in KERNELS if k.__name__ == name), None)
    return kernel and (lambda *args, **kwargs: kernel(**_bound(kernel, args, kwargs)))
