"""Functions that call JAX's own functions: JAX traces them, and what it traced becomes nodes of ours."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from .._graph.source import RandomDraw, TraceError, message
from .._graph.structure import may_hold_results, walk
from .._graph.tracer import Tracer
from .._graph.values import Traced
from .._spec import FLOATS, Spec, dtype_name, is_array
from .._tracing.through_jax import Differentiates
from .._tracing.trace import name_of, signature_of
from . import lax_ops
from .primitive import kfusion_p, linear_p
from .program import Program

_INSIDE = ("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint", "custom_lin")
_OF_JAX = os.path.dirname(jax.__file__)


class NoNodes(TraceError):
    """Graphs have no nodes for what JAX has traced."""


class Interpreted:
    """A function of arrays as one of traced values, through JAX's trace of it. `no_gradient` says, after a trace, why
    there are none through our nodes; empty where there are.
    """

    def __init__(self, function: Callable[..., Any], *, is_differentiated: bool = False) -> None:
        self.__wrapped__ = function
        self._is_differentiated = is_differentiated
        self.__name__ = name_of(function)
        self.__signature__ = signature_of(function)
        self.no_gradient = ""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.no_gradient = ""
        given: list[Traced] = []

        def taken(_: str, leaf: Any) -> Any:
            if not isinstance(leaf, Traced):
                return leaf
            given.append(leaf)
            return _Hole(len(given) - 1)

        args, kwargs = walk(args, taken, enters=_holds), walk(kwargs, taken, enters=_holds)
        if not given:
            return self.__wrapped__(*args, **kwargs)
        tracer = given[0]._tracer
        leaves: list[Any] = []

        def flat(*arrays: Any) -> list[Any]:
            fill = functools.partial(_filled, arrays)
            result = self.__wrapped__(*walk(args, fill, enters=_holds), **walk(kwargs, fill, enters=_holds))
            found: list[Any] = []
            leaves[:] = [walk(result, lambda _, leaf: _put(found, leaf), enters=may_hold_results)]
            return found

        shapes = [jax.ShapeDtypeStruct(tuple(map(int, v.shape)), jax.numpy.dtype(v._dtype)) for v in given]
        closed = jax.make_jaxpr(flat)(*shapes)
        made = _Interpreter(self, tracer).closed(closed, given)
        if self._is_differentiated and self.no_gradient:
            raise NoNodes(f"kfusion.{self.__name__}: {self.no_gradient}, so that there is none here: use jax.grad")
        return walk(leaves[0], lambda _, leaf: made[leaf.number] if type(leaf) is _Hole else leaf, enters=_holds)


class _Hole:
    """Stands for an array of a structure, by number."""

    def __init__(self, number: int) -> None:
        self.number = number


def _holds(value: Any) -> bool:
    return may_hold_results(value)


def _filled(arrays: Sequence[Any], _: str, leaf: Any) -> Any:
    return arrays[leaf.number] if type(leaf) is _Hole else leaf


def _put(found: list[Any], leaf: Any) -> Any:
    if not is_array(leaf) and not isinstance(leaf, jax.core.Tracer):
        return leaf
    found.append(leaf)
    return _Hole(len(found) - 1)


class _Interpreter:
    """The interpreter of one trace."""

    def __init__(self, whose: Interpreted, tracer: Tracer) -> None:
        self._whose = whose
        self._tracer = tracer

    def closed(self, closed: Any, given: Sequence[Traced]) -> list[Traced]:
        """The results of a jaxpr with its constants."""
        return self.run(closed.jaxpr, [*map(self._constant, closed.consts), *given])

    def run(self, jaxpr: Any, given: Sequence[Traced]) -> list[Traced]:
        """The results of a jaxpr, whose constants come first."""
        values = dict(zip([*jaxpr.constvars, *jaxpr.invars], given, strict=True))

        def read(atom: Any) -> Traced:
            return self._constant(atom.val) if hasattr(atom, "val") else values[atom]

        for equation in jaxpr.eqns:
            made = self._equation(equation, [read(a) for a in equation.invars])
            values.update(zip(equation.outvars, made, strict=True))
        return [read(a) for a in jaxpr.outvars]

    def _equation(self, equation: Any, given: list[Traced]) -> list[Traced]:
        name, parameters = equation.primitive.name, equation.params
        if equation.primitive in (kfusion_p, linear_p):
            program = parameters["program"]
            self._whose.no_gradient = self._whose.no_gradient or program.no_gradient
            return inlined(
                self._tracer, program if equation.primitive is kfusion_p else program.tangent(parameters["wrt"]), given
            )
        if name == "iota":
            return [lax_ops._iota(self._tracer, **parameters)]
        if name in ("custom_jvp_call", "custom_vjp_call"):
            return self._with_own_gradient(parameters["call_jaxpr"], given)
        if name in _INSIDE:
            return self._inside(parameters, given)
        rule = lax_ops.RULES.get(name)
        if rule is None:
            raise self._refused(name)
        try:
            made = rule(*given, **parameters)
        except lax_ops.NoRule as error:
            raise self._refused(str(error)) from None
        made = made if isinstance(made, list) else [made]
        for value, variable in zip(made, equation.outvars, strict=True):
            if (value.shape, value._dtype) != (tuple(variable.aval.shape), str(variable.aval.dtype)):
                raise self._refused(f"{name} of {given[0]._dtype} {given[0].shape}")
        return made

    def _refused(self, what: str) -> Exception:
        text = f"{self._whose.__name__} calls a function of JAX that becomes {what}, for which kfusion has no kernel"
        return NoNodes(message(text, "call it outside of the fused function"))

    def _inside(self, parameters: dict[str, Any], given: list[Traced]) -> list[Traced]:
        inner = parameters.get("jaxpr", parameters.get("call_jaxpr"))
        return self.closed(inner, given) if hasattr(inner, "consts") else self.run(inner, given)

    def _with_own_gradient(self, inner: Any, given: list[Traced]) -> list[Traced]:
        """JAX's own rules give what the gradients of the nodes are; others are not known here."""
        about = getattr(inner.jaxpr, "debug_info", None)
        source = getattr(about, "func_filename", None) or ""
        name = str(getattr(about, "func_src_info", "a function")).partition(" ")[0]
        if not source.startswith(_OF_JAX):
            self._whose.no_gradient = f"{name} has a gradient of its own"
        elif name in lax_ops.WITH_GRADIENTS and len({v._dtype for v in given}) == 1 and given[0]._dtype in FLOATS:
            return [lax_ops.WITH_GRADIENTS[name](*given)]
        return self.closed(inner, given)

    def _constant(self, value: Any) -> Traced:
        """A number as a constant, an array as an input."""
        if isinstance(value, jax.core.Tracer):
            if self._tracer._runs:  # a call outside of JAX's transformations
                what = f"{self._whose.__name__} names an array that JAX traces, and none of its arguments is one"
                raise NoNodes(message(what, "pass it as an argument"))
            spec = Spec(tuple(value.shape), dtype_name(value.dtype, "kfusion.trace: an array that the function names"))
            return self._tracer.input(self._tracer._free_name("captured"), spec, value, captured=True)
        array = np.asarray(value)
        if array.ndim == 0:
            dtype = dtype_name(array.dtype, "kfusion.trace: a number")
            return self._tracer.add("cast", self._tracer.add("scalar", _python_number(array)), dtype)
        with jax.ensure_compile_time_eval():
            return self._tracer.lift(jax.numpy.asarray(value), "numpy")


def _python_number(array: np.ndarray) -> bool | int | float:
    if array.dtype.kind in "bi":
        return array.item()  # type: ignore[no-any-return]
    return float(array.astype(np.float64))


def inlined(tracer: Tracer, program: Program, given: Sequence[Traced]) -> list[Traced]:
    """A program's outputs, as nodes of a tracer's graph, in the same stages: within one, casts of what is computed in
    float32 do not round.
    """
    values: list[Traced] = []
    inputs = iter(given)
    stage: int | None = None
    with contextlib.ExitStack() as opened:
        for i, node in enumerate(program.graph["nodes"]):
            its = None if node.get("rounds") else node["stage"]
            if node["stage"] is not None and its != stage:
                opened.close()
                stage = its
                if its is not None:
                    opened.enter_context(tracer.stage(program.graph["stages"][its]["name"]))
            arguments = [values[a] for a in node["arguments"]]
            value = next(inputs) if node["op"] == "input" else _inlined(tracer, node, arguments)
            if node["op"] != "constant" and (list(value.shape), value._dtype) != (node["shape"], node["dtype"]):
                raise TypeError(
                    f"kfusion: {node['op']} inside of another function would be {value._dtype} {value.shape}"
                )
            values.append(tracer.constant(value) if i in program.stops else value)
    return [values[o] for o in program.output_nodes]


def _inlined(tracer: Tracer, node: dict[str, Any], given: Sequence[Traced]) -> Traced:
    op = node["op"]
    if op == "constant":
        scalar = tracer.add("scalar", _number_of(node))
        return scalar if node["weak"] or node["wide"] else tracer.add("cast", scalar, node["dtype"])
    if op == "iota":
        return tracer.add("iota", node["shape"], node["axis"], node["dtype"])
    if op == "cast":
        return tracer.add("cast", given[0], node["dtype"])
    if op == "transpose":
        return tracer.add("transpose", given[0], node["axes"])
    if op in ("reshape", "broadcast"):
        return tracer.add(op, given[0], node["shape"])
    if op == "slice":
        axes = zip(node["start"], node["step"], node["shape"], strict=True)
        ranges = [(a, a + s * (n - 1) + (1 if s > 0 else -1) if n else a, s) for a, s, n in axes]
        return tracer.add("slice", given[0], ranges)
    if op == "conv2d":
        return tracer.add("conv2d", *given, node["stride"], node["padding"], node["dilation"], node["groups"])
    if op in ("take", "take_along_axis"):
        return tracer.add(op, *given, node["axis"], node["nonnegative"])
    if op == "concatenate":
        return tracer.add("concatenate", list(given), node["axis"])
    if op == "matmul":
        return tracer.add("matmul", *given)
    if "axes" in node:
        return tracer.add("reduce", op, given[0], None if node["whole"] else node["axes"], node["keepdims"])
    return tracer.map(op, *given)


def _number_of(node: dict[str, Any]) -> bool | int | float:
    value: Any = node["value"]
    return float(value) if isinstance(value, str) else value


def through_jax(
    function: Callable[..., Any],
    attempt: Callable[[Callable[..., Any]], Any],
    first: Exception,
    *,
    is_differentiated: bool = False,
) -> tuple[Any, Interpreted]:
    """What `attempt` gives of a function that failed to be traced by itself, through JAX's trace of it. One that adds
    gradients of another has those of JAX's trace of that one.

    Raises:
        Exception: the first one, unless JAX has traced the function and a part of it has no nodes.
    """
    if isinstance(function, Differentiates):
        made = Interpreted(function.__wrapped__, is_differentiated=True)
        interpreted: Callable[..., Any] = function.with_function(made)
    else:
        made = interpreted = Interpreted(function, is_differentiated=is_differentiated)
    try:
        return attempt(interpreted), made
    except NoNodes as error:
        raise error from first
    except RandomDraw:
        raise
    except Exception:
        raise first from None
