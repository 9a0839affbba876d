"""An operator by onnx.reference, with NumPy: at once where its inputs are known, else as a call of the library."""

from __future__ import annotations

import contextlib
import copy
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .. import _arrays
from .._graph.tracer import Tracer
from .._graph.values import Traced
from . import tensors, torch_calls
from .control_flow import control_flow
from .library import onnx, reference
from .nodes import Node
from .values import Held, as_dtype, carrier, dtype_of, is_graph_dtype, is_unknown, seen, shape_of, size_of, stored

_MISTAKEN = frozenset([("", "STFT"), ("", "Loop"), ("", "Scan")])  # shape inference forgets, or guesses, a part
_MOST_TRIED = 1 << 16  # elements of inputs with which an operator is run to see what it gives


class Evaluated:
    """A node that onnx.reference can run, with the names of outer values that its subgraphs read."""

    def __init__(self, node: Node, functions: Sequence[Any] = ()) -> None:
        proto = node.with_attributes()
        self._who = node.who
        self.outer = [n for n in outer_names(proto) if n not in set(proto.input)]
        self.names = list(dict.fromkeys([*filter(None, proto.input), *self.outer]))
        self.outputs = [n for n in proto.output if n]
        helper = onnx().helper
        unknown = onnx().TensorProto.UNDEFINED
        graph = helper.make_graph(
            [proto],
            "node",
            [helper.make_tensor_value_info(n, unknown, None) for n in self.names],
            [helper.make_tensor_value_info(n, unknown, None) for n in self.outputs],
        )
        opsets = [helper.make_opsetid(d, v) for d, v in node.opsets.items()]
        model = helper.make_model(graph, opset_imports=opsets, functions=list(functions))
        with _quiet():
            self._evaluator = reference().ReferenceEvaluator(model, new_ops=list(control_flow()))

    def run(self, values: dict[str, np.ndarray]) -> list[Any]:
        """The outputs that have names, in order."""
        try:
            with _quiet():
                found = self._evaluator.run(None, values)
        except Exception as error:
            raise ValueError(f"kfusion.onnx: {self._who}: {type(error).__name__}: {error}") from None
        return [f if isinstance(f, (np.ndarray, list)) or f is None else np.asarray(f) for f in found]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def outer_names(proto: Any) -> list[str]:
    """The values of the graph around it that a node's subgraphs read."""
    names: dict[str, None] = {}
    for attribute in proto.attribute:
        for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            own = {i.name for i in graph.input} | {i.name for i in graph.initializer}
            for node in graph.node:
                read = [*filter(None, node.input), *outer_names(node)]
                names.update(dict.fromkeys(n for n in read if n not in own))
                own.update(node.output)
            names.update(dict.fromkeys(o.name for o in graph.output if o.name and o.name not in own))
    return list(names)


Type = tuple[np.dtype[Any], tuple[int, ...]]


def types_of(node: Node, values: dict[str, Any]) -> list[Type] | None:
    """The dtypes and shapes of a node's named outputs by onnx's shape inference; None where it does not know."""
    proto = node.with_attributes()
    helper = onnx().helper
    types, data = {}, {}
    for name, value in values.items():
        kind = helper.np_dtype_to_tensor_dtype(dtype_of(value))
        types[name] = helper.make_tensor_type_proto(kind, shape_of(value))
        if not is_unknown(value) and value.dtype.kind in "iuf" and value.size <= 4096:
            data[name] = onnx().numpy_helper.from_array(np.asarray(value), name)
    try:
        schema = onnx().defs.get_schema(node.op, node.version, node.domain)
        opsets = [helper.make_opsetid(d, v) for d, v in node.opsets.items()]
        found = onnx().shape_inference.infer_node_outputs(schema, proto, types, data, opset_imports=opsets)
    except Exception:  # of any kind: a node that it cannot infer is run instead
        return None
    known = [_type(found.get(name)) for name in proto.output if name]
    return None if None in known else known  # type: ignore[return-value]


def _type(proto: Any) -> Type | None:
    if proto is None or not proto.HasField("tensor_type") or not proto.tensor_type.HasField("shape"):
        return None
    dims = proto.tensor_type.shape.dim
    if not all(d.HasField("dim_value") and d.dim_value >= 0 for d in dims) or not proto.tensor_type.elem_type:
        return None
    dtype = np.dtype(onnx().helper.tensor_dtype_to_np_dtype(proto.tensor_type.elem_type))
    return dtype, tuple(int(d.dim_value) for d in dims)


def library_call(tracer: Tracer, node: Node, values: dict[str, Any], functions: Sequence[Any]) -> list[Any]:
    """The node's outputs as those of a call of the library: of torch or onnx.reference, when the kernels run.

    Raises:
        ValueError: nobody knows the results' shapes before.
        NeedsValues: they depend on small inputs of the model.
    """
    node = _with_lengths(node, values)
    run = Evaluated(node, functions)
    given = {n: values[n] for n in run.names if values.get(n) is not None}
    types = None if (node.domain, node.op) in _MISTAKEN else types_of(node, given)
    if types is None:
        small = [v for v in given.values() if size_of(v) <= 64]
        node.needs(v for v in small if dtype_of(v).kind in "iub")  # floats are shapes only of Resize and its like
        node.needs(small)
        types = _tried(run, given, node)
    what = f"a result of {node.who}"
    unknown = {n: v for n, v in given.items() if is_unknown(v)}
    call = _Call(run, given, types, node)
    carriers = [(carrier(d, what), s) for d, s in types]
    made = tracer.library_call(f"onnx.{node.op}", call, [_value(v) for v in unknown.values()], carriers)
    results = iter([m if is_graph_dtype(d) else Held(m, d) for m, (d, _) in zip(made, types, strict=True)])
    return [next(results) if name else None for name in node.proto.output]


def _with_lengths(node: Node, values: dict[str, Any]) -> Node:
    """A ConvTranspose with the lengths that SAME says: shape inference takes others where steps leave gaps."""
    if (node.domain, node.op) != ("", "ConvTranspose") or "output_shape" in node.attributes:
        return node
    if not node.attr("auto_pad", "NOTSET").startswith("SAME"):
        return node
    sizes = shape_of(values[node.proto.input[0]])[2:]
    lengths = [n * step for n, step in zip(sizes, node.attr("strides", [1] * len(sizes)), strict=True)]
    made = copy.copy(node)
    made.attributes = {**node.attributes, "output_shape": onnx().helper.make_attribute("output_shape", lengths)}
    return made


def _value(value: Any) -> Traced:
    return value.value if isinstance(value, Held) else value


def _tried(run: Evaluated, given: dict[str, Any], node: Node) -> list[Type]:
    """What it gives for inputs of ones: shapes that depend on values are found out when it runs."""
    if sum(size_of(v) for v in given.values() if is_unknown(v)) > _MOST_TRIED:
        raise ValueError("nobody knows the shape of its result before it runs")
    ones = {n: np.ones(shape_of(v), dtype_of(v)) if is_unknown(v) else v for n, v in given.items()}
    found = run.run(ones)
    if not all(isinstance(f, np.ndarray) for f in found):
        raise ValueError("it gives a sequence, an optional or a map, which graphs cannot hold")
    return [(f.dtype, f.shape) for f in found]


class _Call:
    """What the kernel of a node runs: a function of torch's, on tensors where it has one, else onnx.reference."""

    def __init__(self, run: Evaluated, given: dict[str, Any], types: Sequence[Type], node: Node) -> None:
        self._run = run
        self._known = {n: v for n, v in given.items() if not is_unknown(v)}
        self._unknown = {n: dtype_of(v) for n, v in given.items() if is_unknown(v)}
        self._types = types
        self._who = node.who
        self._inputs = [n or None for n in node.proto.input]
        self._function = torch_calls.function(node, [given.get(n or "") for n in self._inputs], types)
        self._constants: dict[str, Any] = {}  # of one device, as tensors

    def __call__(self, *arrays: Any) -> list[Any]:
        if not tensors.is_tensor(arrays[0]):
            return self._by_reference([np.asarray(a) for a in arrays])
        device = arrays[0].device
        if self._function is None:
            found = self._by_reference([tensors.to_numpy(a) for a in arrays])
            return [tensors.from_numpy(f, device) for f in found]
        given = {n: tensors.seen(a, d) for (n, d), a in zip(self._unknown.items(), arrays, strict=True)}
        values = self._on(device) | given
        with _quiet(), tensors.torch().no_grad():
            found = self._function(*(None if n is None else values[n] for n in self._inputs))
        listed = [f for f in (found if isinstance(found, (list, tuple)) else (found,)) if f is not None]
        made = [self._checked_tensor(f, *t) for f, t in zip(listed, self._types, strict=True)]
        return [_arrays.apart(m, list(values.values())) for m in made]

    def _on(self, device: Any) -> dict[str, Any]:
        """The known inputs on a device."""
        made = self._constants  # which other threads may put others in place of
        if not made or any(t.device != device for t in made.values()):
            made = self._constants = {n: tensors.from_numpy(v, device) for n, v in self._known.items()}
        return made

    def _by_reference(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        given = {n: seen(a, d) for (n, d), a in zip(self._unknown.items(), arrays, strict=True)}
        found = self._run.run(self._known | given)
        made = [self._checked(f, *t) for f, t in zip(found, self._types, strict=True)]
        return [stored(_arrays.apart(m, list(given.values()))) for m in made]

    def _checked_tensor(self, found: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
        self._require(tuple(found.shape), shape)
        return tensors.stored(found.to(tensors.torch_dtype(dtype)).contiguous(), carrier(dtype, self._who))

    def _checked(self, found: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        self._require(found.shape if isinstance(found, np.ndarray) else None, shape)
        return np.ascontiguousarray(found, dtype).reshape(shape)

    def _require(self, found: tuple[int, ...] | None, shape: tuple[int, ...]) -> None:
        if found != shape:
            what = f"the shape of its result depends on values; {shape} is planned"
            raise ValueError(f"kfusion.onnx: {self._who}: {what}")


def bits(tracer: Tracer, held: Held) -> Traced:
    """The bits of a small dtype as int32, which kernels copy as they are; others as they are held."""
    if held.dtype.itemsize > 2:
        return held.value
    unsigned = np.dtype(f"uint{8 * held.dtype.itemsize}")

    def widened(array: Any) -> list[Any]:
        if tensors.is_tensor(array):  # torch has few unsigned dtypes
            signed = getattr(tensors.torch(), f"int{8 * held.dtype.itemsize}")
            return [array.contiguous().view(signed).to(tensors.torch().int32) & int(np.iinfo(unsigned).max)]
        return [np.asarray(array).view(unsigned).astype(np.int32)]

    return tracer.library_call("onnx.bits", widened, [held.value], [("int32", held.shape)])[0]


def of_bits(array: Any, dtype: np.dtype[Any]) -> np.ndarray:
    """An array of the dtype, of what `bits` gives."""
    if dtype.itemsize > 2:
        return np.asarray(array).view(dtype)
    return np.asarray(array).astype(np.dtype(f"uint{8 * dtype.itemsize}")).view(dtype)


def count(shape: Sequence[int]) -> int:
    """The number of elements of a shape."""
    return math.prod(shape)


def number_of(value: np.ndarray) -> Any:
    """A known array of one element as a number of Python that kernels hold; itself where it is none."""
    is_number = value.ndim == 0 and (value.dtype.kind in "bif" or value.dtype == as_dtype("bfloat16"))
    return value.item() if is_number and is_graph_dtype(value.dtype) else value
