"""A program as a primitive of JAX: its shapes, its transformations, and the custom calls that it becomes."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex
from jax.interpreters import ad, batching, mlir
from jax.interpreters import partial_eval as pe

from .. import _core
from .._devices import running
from . import partitioned, splitting, varying
from .program import Program, load
from .sharding import factors

TARGET = "kfusion_call"
_MINORS = (3, 2, 1, 4, 5, 6, 7, 8)  # of XLA's interface: that which the handler was written to first

kfusion_p = jex.Primitive("kfusion")
kfusion_p.multiple_results = True
# What it is for tangents of the inputs `wrt`: (inputs, tangents) -> tangents of the float outputs; linear in tangents.
linear_p = jex.Primitive("kfusion_linear")
linear_p.multiple_results = True


def bind(program: Program, arrays: Sequence[Any], options: str = "{}") -> list[Any]:
    """The outputs of a program, in whatever transformation of JAX the arrays are traced by. `options`: of plans, as
    JSON."""
    made: list[Any] = kfusion_p.bind(*varying.alike(arrays), program=program, options=options)
    return made


# ---- shapes ----


def _avals(avals: Sequence[Any], outputs: Sequence[dict[str, Any]], specs: Sequence[Any] = ()) -> list[Any]:
    return [
        varying.like(avals, tuple(n["shape"]), jax.numpy.dtype(n["dtype"]), spec)
        for n, spec in itertools.zip_longest(outputs, specs)
    ]


@kfusion_p.def_abstract_eval
def _abstract(*avals: Any, program: Program, options: str) -> list[Any]:
    return _avals(avals, program.outputs, partitioned.specs(program, avals))


@linear_p.def_abstract_eval
def _abstract_linear(*avals: Any, program: Program, wrt: tuple[int, ...]) -> list[Any]:
    return _avals(avals, [o for i, o in enumerate(program.outputs) if program.is_float(i)])


# ---- outside of jax.jit ----


@functools.lru_cache(maxsize=512)
def _jitted(primitive: Any, parameters: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    return jax.jit(lambda *arrays: primitive.bind(*arrays, **dict(parameters)))  # type: ignore[no-any-return]


@kfusion_p.def_impl
def _run(*arrays: Any, **parameters: Any) -> Any:
    return _jitted(kfusion_p, tuple(parameters.items()))(*arrays)


@linear_p.def_impl
def _run_linear(*arrays: Any, **parameters: Any) -> Any:
    return _jitted(linear_p, tuple(parameters.items()))(*arrays)


# ---- gradients ----


def _zero(aval: Any) -> Any:
    return ad.Zero(aval.to_tangent_aval())


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, program: Program, options: str) -> Any:
    outputs = bind(program, primals, options)
    wrt = tuple(i for i, t in enumerate(tangents) if type(t) is not ad.Zero)
    if not wrt:
        return outputs, [_zero(jax.typeof(o)) for o in outputs]
    given = varying.alike([*primals, *(tangents[i] for i in wrt)])
    made = iter(linear_p.bind(*given, program=program, wrt=wrt))
    return outputs, [next(made) if program.is_float(i) else _zero(jax.typeof(o)) for i, o in enumerate(outputs)]


def _jvp_of_linear(primals: Sequence[Any], tangents: Sequence[Any], *, program: Program, wrt: tuple[int, ...]) -> Any:
    return _jvp(primals, tangents, program=program.tangent(wrt), options="{}")


def _transpose(cotangents: Sequence[Any], *given: Any, program: Program, wrt: tuple[int, ...]) -> list[Any]:
    count = len(program.inputs)
    floats = [i for i in range(len(program.outputs)) if program.is_float(i)]
    passed = [(i, c) for i, c in zip(floats, cotangents, strict=True) if type(c) is not ad.Zero]
    if not passed:
        return [None] * count + [ad.Zero(g.aval) for g in given[count:]]
    backward = program.gradient(tuple(i for i, _ in passed), wrt)
    made = bind(backward, [*given[:count], *(c for _, c in passed)])
    return [None] * count + [partitioned.cut_as(m, g.aval) for m, g in zip(made, given[count:], strict=True)]


ad.primitive_jvps[kfusion_p] = _jvp
ad.primitive_jvps[linear_p] = _jvp_of_linear
ad.primitive_transposes[linear_p] = _transpose


# ---- vmap ----


def _moved(arrays: Sequence[Any], axes: Sequence[Any]) -> tuple[list[Any], int]:
    """The arrays with the mapped axis in front, and its extent."""
    size = next(a.shape[d] for a, d in zip(arrays, axes, strict=True) if d is not None)
    return [a if d is None else jax.numpy.moveaxis(a, d, 0) for a, d in zip(arrays, axes, strict=True)], size


def _batch(arrays: Sequence[Any], axes: Sequence[Any], *, program: Program, options: str) -> Any:
    moved, size = _moved(arrays, axes)
    flags = tuple(d is not None for d in axes)
    try:
        mapped, has_axis = program.batched(flags, size)
    except NotImplementedError:  # one after another
        return _one_by_one(moved, flags, program, options), [0] * len(program.outputs)
    return bind(mapped, moved, options), [0 if has else None for has in has_axis]


def _one_by_one(arrays: Sequence[Any], flags: Sequence[bool], program: Program, options: str) -> Any:
    def each(mapped: list[Any]) -> list[Any]:
        own = iter(mapped)
        return bind(program, [next(own) if f else a for a, f in zip(arrays, flags, strict=True)], options)

    return jax.lax.map(each, [a for a, f in zip(arrays, flags, strict=True) if f])


def _batch_linear(arrays: Sequence[Any], axes: Sequence[Any], *, program: Program, wrt: tuple[int, ...]) -> Any:
    """Where only tangents are mapped, it is no function to be transposed any more, and computes no value twice."""
    count = len(program.inputs)
    if all(d is None for d in axes[:count]):
        return _batch(arrays, axes, program=program.tangent(wrt), options="{}")
    moved, size = _moved(arrays, axes)
    is_mapped = [d is not None for d in axes]
    for position, i in enumerate(wrt, count):
        is_mapped[i] = is_mapped[position] = is_mapped[i] or is_mapped[position]
    given = [
        a if not m or d is not None else jax.numpy.broadcast_to(a, (size, *a.shape))
        for a, d, m in zip(moved, axes, is_mapped, strict=True)
    ]
    mapped, has_axis = program.batched(tuple(is_mapped[:count]), size)
    outputs = linear_p.bind(*varying.alike(given), program=mapped, wrt=wrt)
    floats = [h for i, h in enumerate(has_axis) if program.is_float(i)]
    return outputs, [0 if has else None for has in floats]


batching.primitive_batchers[kfusion_p] = _batch
batching.primitive_batchers[linear_p] = _batch_linear


# ---- custom calls ----


def _options(options: str) -> dict[str, Any]:
    return json.loads(options)  # type: ignore[no-any-return]


def _compiled(program: Program, options: str, place: str) -> dict[str, Any]:
    """The attributes of the custom call of a program there, which is ready to run then."""
    there = program.on(place).in_c_order()
    key = there.key(options)
    _core.xla_compile(key, _core.Graph.from_dict(there.graph), running.device(place).to_dict(), _options(options))
    text = json.dumps({"graph": there.graph, "options": _options(options)}, separators=(",", ":"))
    return {"key": np.int64(key), "graph": text}


def _load(key: int, text: str) -> None:
    """Loads an executable of XLA's that another process has made."""
    graph, options = load(text)
    place = next((n["device"] for n in graph.to_dict()["nodes"] if n["op"] == "input"), "cpu")
    _core.xla_compile(key, graph, running.device(place).to_dict(), options)


def _called(program: Program, options: str, place: str, arrays: Sequence[Any]) -> list[Any]:
    results = [jax.ShapeDtypeStruct(tuple(n["shape"]), jax.numpy.dtype(n["dtype"])) for n in program.outputs]
    return list(jax.ffi.ffi_call(TARGET, results)(*arrays, **_compiled(program, options, place)))


def _lowered(context: Any, *operands: Any, program: Program, options: str, place: str) -> Any:
    """Custom calls, with XLA's own functions between them where a part has no kernel of ours."""
    cut = partitioned.applies(context, program)

    def emitted(part: Program, arrays: Sequence[Any], chosen: str = "{}", cut: bool = cut) -> list[Any]:
        steps = splitting.steps(part.on(place).in_c_order(), running.device(place).to_dict(), _options(chosen))
        if steps is not None:  # a part's plan may be another one than it was in the whole
            return splitting.run(steps, arrays, functools.partial(emitted, cut=cut))
        if cut and part.inputs and factors(part).free:
            return partitioned.call(part, arrays, functools.partial(emitted, chosen=chosen, cut=False), (chosen, place))
        return _called(part, chosen, place, arrays)

    made = functools.partial(emitted, program, chosen=options)
    return mlir.lower_fun(lambda *arrays: made(arrays), multiple_results=True)(context, *operands)


def _lowered_linear(context: Any, *operands: Any, program: Program, wrt: tuple[int, ...]) -> Any:
    def emitted(*arrays: Any) -> list[Any]:
        return bind(program.tangent(wrt), arrays)

    return mlir.lower_fun(emitted, multiple_results=True)(context, *operands)


def _drop(used: Sequence[bool], equation: Any) -> Any:
    """Outputs that nothing reads."""
    if all(used) or equation.primitive is not kfusion_p:
        return [True] * len(equation.invars), equation
    if not any(used):
        return [False] * len(equation.invars), None
    program = equation.params["program"].selected(tuple(i for i, u in enumerate(used) if u))
    variables = [v for v, u in zip(equation.outvars, used, strict=True) if u]
    return [True] * len(equation.invars), equation.replace(
        outvars=variables, params=equation.params | {"program": program}
    )


pe.dce_rules[kfusion_p] = _drop


def _register() -> None:
    """Tells XLA of the handler, which it asks for the version that it was written for."""
    jax.devices()  # before there are any, XLA would not say which version it refuses
    minors: tuple[int, ...] = _MINORS
    for platform, place in (("cpu", "cpu"), ("CUDA", "cuda:0")):
        if place != "cpu" and _core.cuda_device_count() == 0:
            continue
        failed: list[Exception] = []
        for minor in minors:
            try:
                jax.ffi.register_ffi_target(TARGET, _core.xla_handler(minor), platform=platform)
                minors = (minor, *_MINORS)
                break
            except Exception as error:  # of XLA's, of no type of its own
                failed.append(error)
        else:
            raise failed[0]
        lowered = functools.partial(_lowered, place=place)
        mlir.register_lowering(kfusion_p, lowered, platform=platform.lower())
        mlir.register_lowering(linear_p, _lowered_linear, platform=platform.lower())
    partitioned.announce(kfusion_p)
    partitioned.announce(linear_p)
    _core.set_xla_loader(_load)


_register()
