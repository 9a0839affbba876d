"""`kfusion.grad`, `value_and_grad` and `vjp`: gradients of traced functions, as nodes of their graphs.

A gradient is a function of traced values: it traces the user's function and adds the adjoints of its nodes to the same
graph. Planner, executors and reports see nothing but a graph.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ._arrays import dtype_name
from ._environment import guards
from ._environment.elements import Elements
from ._environment.frozen import Frozen
from ._environment.state import Snapshot
from ._fuse import FusedFunction, fuse
from ._graph.seeds import Seeds
from ._graph.structure import holds_arrays, may_hold_results, picked, walk
from ._graph.tracer import Tracer
from ._graph.values import Traced, tracer_of
from ._ops.operation import bind
from ._spec import FLOATS, described, is_array
from ._tracing.through_jax import Differentiates
from ._tracing.trace import name_of, signature_of

Argnums = int | Sequence[int]


def grad(function: Callable[..., Any], argnums: Argnums = 0, *, has_aux: bool = False) -> FusedFunction:
    """The function that gives the gradient of another one, whose result is a number.

        grad(f)(x)[i] = d f(x) / d x[i]

    It is fused: forward and backward pass become few kernels, which its `plan` shows. Within traced functions it adds
    nodes to their graphs, so `kf.fuse` and `kf.plan` take functions that call it, and gradients have gradients.

    Args:
        function: of arrays, as for `kfusion.fuse`. It returns an array of one float without axes.
        argnums: which of its arguments, by position, negative ones from the end; a tuple for several. An argument may
            be an array of floats, or tuples, lists and dicts of such arrays.
        has_aux: whether the function returns (result, aux), of which aux is given back as it is.

    Returns:
        A `FusedFunction` of the same arguments. It returns what the argument is, with gradients in place of arrays; for
        several a tuple; (gradients, aux) with `has_aux`. Where the result does not depend on an array, its gradient is
        0. Raises before anything runs:
            TypeError: an argument that is no array of floats, a result that is none, an operation that has no adjoint.
            ValueError: a result with axes, argnums out of range.

    Raises:
        TypeError: function is not callable, argnums are no integers.
        ValueError: argnums are none.
    """
    return fuse(_Gradient("grad", function, argnums, has_aux))


def value_and_grad(function: Callable[..., Any], argnums: Argnums = 0, *, has_aux: bool = False) -> FusedFunction:
    """Differentiates as `grad` does; what it makes returns (f(x), gradients), and ((f(x), aux), gradients) with
    `has_aux`.

    Args:
        function: as for `grad`.
        argnums: as for `grad`.
        has_aux: as for `grad`.

    Returns:
        A `FusedFunction`, as of `grad`.

    Raises:
        TypeError: function is not callable, argnums are no integers.
    """
    return fuse(_Gradient("value_and_grad", function, argnums, has_aux))


def vjp(function: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """What a function gives, and the function that takes gradients of its results to gradients of its arguments.

        y, pull = vjp(f, x);  pull(v)[0][i] = sum_j v[j] * d y[j] / d x[i]

    Given arrays, both are fused functions, and `pull` computes again what it needs of the function.

    Args:
        function: of arrays; it returns an array of floats, or tuples, lists and dicts of such arrays.
        primals: its arguments: arrays of floats, or tuples, lists and dicts of such arrays.
        has_aux: whether the function returns (results, aux).

    Returns:
        (results, pull), and (results, pull, aux) with `has_aux`. `pull` takes what the results are, with arrays of
        their shapes and dtypes, and returns a tuple with what each primal is.

    Raises:
        TypeError: a primal or a result is no array of floats, or an operation has no adjoint.
        ValueError: there are no primals; from `pull`, arrays that are not like the results.
    """
    who = f"kfusion.vjp({name_of(function)})"
    if not primals:
        raise ValueError(f"{who}: there must be at least one primal")
    tracer = tracer_of_leaves(primals)
    if tracer is None:
        seeds = Seeds()
        found = guards.guards(function)
        arrays = [value for value in guards.values(*found) if is_array(value)]
        frozen, before = Frozen(found, keeps=True), Elements(arrays)
        made = fuse(_Forward(function, has_aux, seeds))(*primals)
        pullback = fuse(_Pullback(function, has_aux, seeds))
        results, *aux = made if has_aux else (made,)
        drawn = seeds.taken()

        def pull_arrays(cotangents: Any) -> Any:
            with frozen.again(f"{who}, pull"), before.again(f"{who}, pull"), seeds.again(drawn):
                return pullback(primals, cotangents)

        pull_arrays.__name__ = pull_arrays.__qualname__ = "pull"
        return results, pull_arrays, *aux
    given = [_Given(tracer, who, f"primal {i}", x) for i, x in enumerate(primals)]
    with tracer.differentiated([x for g in given for x in g.nodes]):
        result = function(*[g.value for g in given])
    results, *aux = _unpacked(who, has_aux, result)

    def pull(cotangents: Any) -> tuple[Any, ...]:
        return _pulled(who, tracer, given, results, cotangents)

    return results, pull, *aux


def stop_gradient(x: Any) -> Any:
    """x itself, of which gradients are 0: to them it is a constant.

    Args:
        x: a traced value, kfusion's or JAX's, or an array.

    Returns:
        An array or traced value with x's values.

    Source: JAX's `lax.stop_gradient`; torch's `detach` on traced values is the same.
    """
    if isinstance(x, Traced):
        return x._tracer.constant(x)
    jax = sys.modules.get("jax")
    return jax.lax.stop_gradient(x) if jax is not None and isinstance(x, jax.core.Tracer) else x


class _Gradient(Differentiates):
    """What `grad` and `value_and_grad` fuse: a function of traced values."""

    def __init__(self, kind: str, function: Callable[..., Any], argnums: Argnums, has_aux: bool) -> None:
        signature_of(function)  # raises where it is no function
        self.__wrapped__ = function
        self.__name__ = f"{kind}({name_of(function)})"
        self._who = f"kfusion.{self.__name__}"
        self._has_value = kind != "grad"
        self._has_aux = has_aux
        self._single = not isinstance(argnums, (tuple, list))
        self._argnums: list[Any] = [argnums] if self._single else list(argnums)  # type: ignore[arg-type]
        if not self._argnums:
            raise ValueError(f"{self._who}: argnums must name an argument at least")
        for n in self._argnums:
            if isinstance(n, bool) or not isinstance(n, int):
                raise TypeError(f"{self._who}: argnums must be an integer or several, got {argnums!r}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = bind(self._who, signature_of(self.__wrapped__), args, kwargs)
        arguments = list(bound.args)
        tracer = tracer_of_leaves((args, kwargs))
        if tracer is None:
            raise _no_floats(self._who, (args, kwargs))
        given = {n: _Given(tracer, self._who, f"argument {n}", arguments[n]) for n in self._positions(len(arguments))}
        for n, g in given.items():
            arguments[n] = g.value
        with tracer.differentiated([x for g in given.values() for x in g.nodes]):
            result = self.__wrapped__(*arguments, **bound.kwargs)
        value, *aux = _unpacked(self._who, self._has_aux, result)
        self._require_number(value)
        seed = tracer.add("cast", tracer.lift(1.0, value._library), value._dtype)
        made = _gradients(tracer, list(given.values()), [value], [seed])
        gradients = made[0] if self._single else tuple(made)
        if self._has_value:
            return ((value, *aux) if aux else value), gradients
        return (gradients, *aux) if aux else gradients

    def _positions(self, count: int) -> list[int]:
        for n in self._argnums:
            if not -count <= n < count:
                raise ValueError(f"{self._who}: argnums must name arguments by position, of {count} given, got {n}")
        positions = [n % count for n in self._argnums]
        if len(set(positions)) < len(positions):
            raise ValueError(f"{self._who}: argnums must name each argument once, got {self._argnums}")
        return positions

    def _require_number(self, value: Any) -> None:
        if not isinstance(value, Traced) or value._dtype not in FLOATS:
            got = (
                f"an array of {value._dtype}" if isinstance(value, Traced) else described(value, "y").partition(";")[0]
            )
            if (dtype := _complex_dtype(value)) is not None:
                got = f"an array of {dtype}: return its absolute value, or its real part"
            raise TypeError(f"{self._who}: the function must return a float made of its arrays, got {got}")
        if value.ndim:
            raise ValueError(
                f"{self._who}: the function must return an array without axes, got shape {tuple(value.shape)}; sum it, "
                "or use kf.vjp"
            )


class _Forward(Differentiates):
    """A function of primals, as `vjp` calls it."""

    def __init__(self, function: Callable[..., Any], has_aux: bool, seeds: Seeds) -> None:
        self.__wrapped__ = function
        self.__name__ = f"vjp({name_of(function)})"
        self._has_aux = has_aux
        self._seeds = seeds

    def __call__(self, *primals: Any) -> Any:
        tracer = tracer_of_leaves(primals)
        if tracer is None:
            raise _no_floats(f"kfusion.{self.__name__}", primals)
        tracer.draw = self._seeds.of(tracer.draw)
        who = f"kfusion.{self.__name__}"
        given = [_Given(tracer, who, f"primal {i}", x) for i, x in enumerate(primals)]
        results, *aux = _unpacked(who, self._has_aux, self.__wrapped__(*[g.value for g in given]))
        listed = _leaves(who, "the result", results)
        written = tracer.written()
        if written and not tracer.are_apart(written, listed, [x for g in given for x in g.nodes]):
            what = "it writes to arrays that its gradients need, or gradients would have to pass through"
            raise RuntimeError(f"{who}: {what}: use kfusion.value_and_grad, or write to copies")
        return (results, *aux) if aux else results


_PULLBACK = inspect.signature(lambda primals, cotangents: None)


class _Pullback(Differentiates):
    """From primals and gradients of results to gradients of primals."""

    def __init__(self, function: Callable[..., Any], has_aux: bool, seeds: Seeds) -> None:
        self.__wrapped__ = function
        self.__signature__ = _PULLBACK
        self.__name__ = f"vjp({name_of(function)})"
        self._has_aux = has_aux
        self._seeds = seeds

    def __call__(self, primals: Any, cotangents: Any) -> Any:
        if (tracer := tracer_of_leaves(primals)) is not None:
            tracer.draw = self._seeds.of(tracer.draw)
        with Snapshot(
            [self.__wrapped__, *guards.guarded(primals)], always=True
        ):  # the forward pass has set what it sets
            _, pull, *_ = vjp(self.__wrapped__, *primals, has_aux=self._has_aux)
        gradients = pull(cotangents)
        if tracer is not None:
            tracer.forget_writes()  # the forward pass has done them
        return gradients


class _Given:
    """An argument with a node of its own for each of its arrays: what the function reads of them otherwise, such as by
    a closure, is not what is differentiated.
    """

    def __init__(self, tracer: Tracer, who: str, name: str, argument: Any) -> None:
        self.arrays: list[Traced] = []
        self.value = _walk(argument, lambda path, leaf: self._own(tracer, who, _path(name, path), leaf))
        self.nodes = [tracer.copy(x) for x in self.arrays]  # as they are now, whatever the function writes to them
        if not self.arrays:
            raise TypeError(f"{who}: {name} must be an array of floats, got {described(argument, 'x')}")

    def _own(self, tracer: Tracer, who: str, path: str, leaf: Any) -> Any:
        if leaf is None:
            return None
        self.arrays.append(tracer.itself(_float_array(who, path, leaf)))
        return self.arrays[-1]

    def filled(self, gradients: Iterator[Traced]) -> Any:
        """The argument with gradients in place of its arrays."""
        return _walk(self.value, lambda _, leaf: None if leaf is None else next(gradients))


def _gradients(
    tracer: Tracer, given: Sequence[_Given], results: Sequence[Traced], cotangents: Sequence[Traced]
) -> list[Any]:
    made = iter(tracer.vjp(results, cotangents, [x for g in given for x in g.nodes]))
    return [g.filled(made) for g in given]


def _pulled(who: str, tracer: Tracer, given: Sequence[_Given], results: Any, cotangents: Any) -> tuple[Any, ...]:
    listed, gradients = _leaves(who, "the result", results), _leaves(who, "the cotangent", cotangents)
    if len(listed) != len(gradients):
        raise ValueError(f"{who}: there must be a cotangent for each of {len(listed)} results, got {len(gradients)}")
    for y, g in zip(listed, gradients, strict=True):
        if y.shape != g.shape or y._dtype != g._dtype:
            raise ValueError(
                f"{who}: a cotangent must be like its result, {y._dtype} {y.shape}, got {g._dtype} {g.shape}"
            )
    return tuple(_gradients(tracer, given, listed, gradients))


def _leaves(who: str, name: str, structure: Any) -> list[Traced]:
    found: list[Traced] = []
    _walk(structure, lambda path, leaf: found.append(_float_array(who, _path(name, path), leaf)))
    return found


def _float_array(who: str, name: str, leaf: Any) -> Traced:
    if (dtype := _complex_dtype(leaf)) is not None:
        raise TypeError(f"{who}: {name} must be an array of floats, got one of {dtype}: {_COMPLEX}")
    if not isinstance(leaf, Traced):
        raise TypeError(f"{who}: {name} must be an array of floats, got {described(leaf, 'x')}")
    if leaf._dtype not in FLOATS:
        raise TypeError(f"{who}: {name} must be an array of floats, got one of {leaf._dtype}")
    return leaf


_COMPLEX = "write the function of its real and imaginary part"


def _complex_dtype(leaf: Any) -> str | None:
    """The dtype of an array of complex numbers, traced or not."""
    dtype = dtype_name(leaf) if hasattr(type(leaf), "__kfusion_complex__") or is_array(leaf) else ""
    return dtype if dtype.startswith("complex") else None


def _no_floats(who: str, arguments: Any) -> TypeError:
    """The error for arguments none of which is traced."""
    if (dtype := next(filter(None, map(_complex_dtype, picked(arguments, lambda _: True, _enters))), None)) is not None:
        return TypeError(f"{who}: there must be an array of floats among the arguments, got one of {dtype}: {_COMPLEX}")
    return TypeError(f"{who}: there must be an array among the arguments")


def _unpacked(who: str, has_aux: bool, result: Any) -> tuple[Any, ...]:
    if not has_aux:
        return (result,)
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(f"{who}: with has_aux the function must return (result, aux), got {type(result).__name__}")
    return result


def _walk(structure: Any, visit: Callable[[str, Any], Any]) -> Any:
    return walk(structure, visit, enters=_enters)


def _enters(value: Any) -> bool:
    return may_hold_results(value) and holds_arrays(value)


def _path(name: str, path: str) -> str:
    return f"{name}, {path}" if path else name


def tracer_of_leaves(structure: Any) -> Tracer | None:
    """The tracer of the first traced value in tuples, lists, dicts and dataclasses."""
    return tracer_of(*picked(structure, lambda _: True, _enters))
