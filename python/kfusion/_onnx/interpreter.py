"""A model's graph as operations on traced values, node by node."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._graph.source import TraceError
from .._graph.tracer import Tracer
from .._graph.values import Traced
from .._spec import Spec
from . import folding, refusals, schemas, tensors
from .evaluation import Evaluated, bits, library_call, number_of, outer_names
from .library import onnx
from .model import domain_of
from .nodes import Node
from .table import ROWS, aliased
from .values import Held, NoRow, carrier, dtype_of, is_graph_dtype, is_known, is_unknown, shape_of, size_of, stored

_MOST_FOLDED = 4096  # elements of a result that is computed while a model is traced
_DEEPEST = 50  # functions within functions


class Interpreter:
    """One trace of a model. `static` are inputs of which the values are known, by name. `device` is that of torch's
    tensors which it is of; None: it is of NumPy's arrays.
    """

    def __init__(self, model: Any, tracer: Tracer, static: Mapping[str, np.ndarray], device: Any = None) -> None:
        self.model = model
        self.device = device
        self.tracer = tracer
        self._static = static
        self._sources: dict[int, frozenset[str]] = {}  # by id of a value: the small inputs that decide on it alone
        self._lifted: dict[int, tuple[Any, Any]] = {}  # by id of a known array: itself, and the input that it is
        self._alive: list[Any] = []  # values whose ids are keys above
        self._names: dict[int, str] = {}  # by id of a known array
        self._depth = 0

    def input(self, name: str, value: Traced, dtype: np.dtype[Any]) -> Any:
        """The value of a model's input, of the dtype that it says."""
        given = value if is_graph_dtype(dtype) else Held(value, dtype)
        small = value.ndim <= 1 and size_of(value) <= (64 if dtype.kind in "iub" else 16)
        if small:
            self._remember(given, frozenset((name,)))
        return given

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The values of the model's outputs, by name."""
        given = {**self._static, **inputs}
        env = {**self.model.initializers(self, given), **given}
        for name, value in env.items():
            self._name(value, name)
        self.graph(self.model.graph.node, env, self.model.opsets, {})
        return {o.name: self._found(env, o.name, "the model's output") for o in self.model.graph.output}

    def initializer(self, name: str, given: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
        """The value of a weight: an input of the graph that belongs to the function; its array, as `given` gives it,
        may be absent.
        """
        spec = Spec(shape, carrier(dtype, f"the weight {name}"))
        if self.device is not None:
            spec = Spec(shape, spec.dtype, "torch", str(self.device))
        value = self.tracer.input(self.tracer._free_name(name), spec, given, captured=True)
        return value if is_graph_dtype(dtype) else Held(value, dtype)

    def given(self, array: np.ndarray) -> Any:
        """An array that is known as kernels are given it."""
        array = stored(array)
        return array if self.device is None else tensors.from_numpy(array, self.device)

    # ---- nodes ----

    def graph(self, nodes: Sequence[Any], env: dict[str, Any], opsets: dict[str, int], given: dict[str, Any]) -> None:
        """Computes nodes in order; their outputs go into env."""
        for i, proto in enumerate(nodes):
            proto, versions = aliased(proto, opsets)
            node = Node(proto, versions, given, lambda value: self._sources.get(id(value)))
            self.tracer.line_of = functools.partial(getattr, node, "who")
            made = self._checked(node, env, nodes, i)
            if len(made) < len(proto.output):
                made = [*made, *[None] * (len(proto.output) - len(made))]
            sources = self._sources_of([env.get(n) for n in [*proto.input, *outer_names(proto)] if n])
            for name, value in zip(proto.output, made, strict=False):
                if name and value is None:
                    raise ValueError(f"kfusion.onnx: {node.who}: it gives no {name!r}")
                if name:
                    env[name] = value
                    self._name(value, name)
                    if sources is not None and is_unknown(value) and size_of(value) <= 64:
                        self._remember(value, sources)

    def _checked(self, node: Node, env: dict[str, Any], nodes: Sequence[Any], i: int) -> list[Any]:
        """A node's outputs; whatever goes wrong is an error that names the node."""
        inputs = [self._input(env, name, node, nodes, i) if name else None for name in node.proto.input]
        try:
            return self.node(node, inputs, env)
        except refusals.Refused:
            raise
        except RecursionError:
            raise ValueError(f"kfusion.onnx: {node.who}: functions are nested too deeply") from None
        except (NotImplementedError, TraceError, Exception) as error:
            if str(error).startswith("kfusion.onnx: "):
                raise
            text = f"{type(error).__name__}: {error}" if not isinstance(error, (ValueError, TypeError)) else str(error)
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"kfusion.onnx: {node.who}: {text}") from None  # a cause is taken for another error

    def _input(self, env: dict[str, Any], name: str, node: Node, nodes: Sequence[Any], i: int) -> Any:
        if name not in env:
            is_later = any(name in other.output for other in nodes[i:])
            why = "nodes are not in order, or form a circle" if is_later else "nothing gives it"
            raise ValueError(f"kfusion.onnx: {node.who} reads {name!r}: {why}")
        return env[name]

    def _found(self, env: dict[str, Any], name: str, what: str) -> Any:
        if env.get(name) is None:
            raise ValueError(f"kfusion.onnx: nothing gives {what} {name!r}")
        return env[name]

    def node(self, node: Node, inputs: list[Any], env: dict[str, Any]) -> list[Any]:
        """The outputs of a node, by whoever has it: NumPy, a row of the table, a function's body, the library."""
        refusals.check(node, not any(map(is_unknown, inputs)))
        if (function := self.model.function(node)) is not None:
            return self._function(node, function, inputs)
        if (node.domain, node.op) not in ROWS or ROWS[node.domain, node.op].is_onnxs:
            schemas.check(node, inputs)
        if node.op == "If" and not node.domain:
            return self._if(node, inputs, env)
        outer = outer_names(node.proto)
        values = [v for v in [*inputs, *(env.get(n) for n in outer)] if v is not None]
        if not any(map(is_unknown, values)) and not self._is_large(node, inputs):
            return self._folded(node, env, inputs)
        row = ROWS.get((node.domain, node.op))
        is_held = any(isinstance(v, Held) for v in values) and node.op not in ("Identity", "Shape", "Size")
        if row is not None and node.version >= row.since and not is_held:
            try:
                return _listed(row.build(self, node, *inputs))
            except NoRow:
                pass
        if (body := self._body(node, inputs)) is not None:
            return self._function(node, body, inputs)
        if not any(map(is_unknown, values)):
            return self._folded(node, env, inputs)
        refusals.check_version(node)
        return library_call(self.tracer, node, env, self.model.functions)

    def _is_large(self, node: Node, inputs: list[Any]) -> bool:
        return (node.domain, node.op) in ROWS and folding.size(node, inputs) > _MOST_FOLDED

    def _folded(self, node: Node, env: dict[str, Any], inputs: list[Any]) -> list[Any]:
        """The outputs of a node of known inputs."""
        if (made := folding.folded(node, inputs)) is not None:
            return [made]
        run = Evaluated(node, self.model.functions)
        found = iter(run.run({n: env[n] for n in run.names if env.get(n) is not None}))
        return [next(found) if name else None for name in node.proto.output]

    # ---- functions and branches ----

    def _function(self, node: Node, function: Any, inputs: list[Any]) -> list[Any]:
        """The outputs of a function's body."""
        if self._depth >= _DEEPEST:
            raise ValueError(f"kfusion.onnx: {node.who}: functions are nested too deeply")
        env = dict.fromkeys(function.input) | dict(zip(function.input, inputs, strict=False))
        opsets = dict(node.opsets) | {domain_of(o.domain): o.version for o in function.opset_import}
        given = self._defaults(node) | {a.name: a for a in function.attribute_proto} | node.attributes
        self._depth += 1
        try:
            self.graph(function.node, env, opsets, given)
        finally:
            self._depth -= 1
        names = zip(node.proto.output, function.output, strict=False)
        return [self._found(env, inner, f"{node.who}'s output") if outer else None for outer, inner in names]

    def _defaults(self, node: Node) -> dict[str, Any]:
        """The attributes that onnx's schema of an operator has values for; a model's own function says its own."""
        if self.model.function(node) is not None:
            return {}
        schema = schemas.schema_of(node)
        return {n: a.default_value for n, a in schema.attributes.items() if a.default_value.type}

    def _body(self, node: Node, inputs: list[Any]) -> Any:
        """The body that onnx's own schema has for the operator; None where it has none."""
        if (node.domain, node.op) in refusals.NO_BODIES or any(isinstance(v, Held) for v in inputs):
            return None
        schema = schemas.schema_of(node)
        if schema.has_context_dependent_function:
            return self._body_of_types(schema, node, inputs)
        versions = [v for v in schema.function_opset_versions if v <= node.version] if schema.has_function else []
        return (
            schema.get_function_with_opset_version(max(versions))
            and _parsed(schema.get_function_with_opset_version(max(versions)))
            if versions
            else None
        )

    def _body_of_types(self, schema: Any, node: Node, inputs: list[Any]) -> Any:
        helper = onnx().helper
        types = []
        for value in inputs:
            kind = onnx().TypeProto()
            if value is not None:
                kind = helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(dtype_of(value)), shape_of(value))
            types.append(kind.SerializeToString())
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= node.version]
        if not versions:
            return None
        try:
            proto = node.with_attributes().SerializeToString()
            found = schema.get_context_dependent_function_with_opset_version(max(versions), proto, types)
        except Exception:  # it has no body for these types
            return None
        return _parsed(found) if found else None

    def _if(self, node: Node, inputs: list[Any], env: dict[str, Any]) -> list[Any]:
        """A branch whose condition is known is the only one that there is; else both are the library's."""
        (condition,) = inputs
        try:
            chosen = bool(node.known(condition).ravel()[0])
        except ValueError:
            return library_call(self.tracer, node, env, self.model.functions)
        graph = node.attr("then_branch" if chosen else "else_branch")
        inner = {**env, **self.model.constants(graph.initializer)}
        self.graph(graph.node, inner, node.opsets, {})
        return [self._found(inner, o.name, "the branch's output") for o in graph.output]

    # ---- values ----

    def lift(self, value: Any) -> Any:
        """A traced value of what rows take: an array that is known becomes an input, which kernels read."""
        if isinstance(value, Held):
            raise NoRow
        if not is_known(value):
            return value
        if id(value) not in self._lifted:
            if not is_graph_dtype(value.dtype):
                raise NoRow
            array = np.ascontiguousarray(value).reshape(value.shape)
            name = self._names.get(id(value), "constant")
            made = self.initializer(name, self.given(array), value.dtype, value.shape)
            self._lifted[id(value)] = (value, made)
        return self._lifted[id(value)][1]

    def operand(self, value: Any) -> Any:
        """Does what `lift` does; an array without axes is a number, which kernels hold."""
        if is_known(value):
            number = number_of(value)
            return self.lift(value) if number is value else number
        return self.lift(value)

    def _name(self, value: Any, name: str) -> None:
        """Remembers what the model calls a known array."""
        if is_known(value):
            self._names.setdefault(id(value), name)
            self._alive.append(value)

    def _remember(self, value: Any, sources: frozenset[str]) -> None:
        self._sources[id(value)] = sources
        self._alive.append(value)

    def _sources_of(self, values: Sequence[Any]) -> frozenset[str] | None:
        """The small inputs that values are computed of; None where others are among them."""
        unknown = [self._sources.get(id(v)) for v in values if is_unknown(v)]
        return None if None in unknown else frozenset().union(*unknown)  # type: ignore[arg-type]

    def result(self, value: Any) -> tuple[Any, np.dtype[Any]]:
        """A result of the model as the graph gives it, and the dtype that it stands for."""
        return (bits(self.tracer, value), value.dtype) if isinstance(value, Held) else (value, dtype_of(value))


def _listed(made: Any) -> list[Any]:
    return list(made) if isinstance(made, (tuple, list)) else [made]


def _parsed(found: Any) -> Any:
    """A FunctionProto, which onnx gives as bytes or as one of its C++ objects."""
    if isinstance(found, (bytes, str)):
        return onnx().FunctionProto.FromString(found)
    return found
