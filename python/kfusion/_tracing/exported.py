"""Programs of torch.export: functions of their inputs and, by name, of parameters, buffers and constants."""

from __future__ import annotations

from typing import Any

from .._spec import DTYPES, Spec
from . import fx_graphs
from .dtype_names import name_of_dtype

_HELD = ("PARAMETER", "BUFFER", "CONSTANT_TENSOR")


def is_program(value: Any) -> bool:
    """Whether a value is what torch.export.export gives; torch is not imported for it."""
    kind = type(value)
    return kind.__name__ == "ExportedProgram" and kind.__module__.startswith("torch.export")


class Program:
    """What an exported program computes; on specs, too: its tensors need no data."""

    def __init__(self, program: Any) -> None:
        module = program.graph_module
        nodes = list(module.graph.nodes)
        self.__name__ = type(module).__name__ if not program.module_call_graph else "exported"
        self._placeholders = [n for n in nodes if n.op == "placeholder"]
        self._nodes = [n for n in nodes if n.op not in ("placeholder", "output")]
        self._results = nodes[-1].args[0]
        self._constants = fx_graphs.constants(module)
        self._specs = program.graph_signature.input_specs

    def __call__(self, *inputs: Any, **held: Any) -> Any:
        given = iter(inputs)
        values: dict[Any, Any] = {}
        for node, spec in zip(self._placeholders, self._specs, strict=True):
            if spec.kind.name in _HELD:
                values[node] = held[spec.target]
            elif fx_graphs.is_tensor(node.meta.get("val")):
                values[node] = next(given)
            else:
                values[node] = getattr(spec.arg, "value", None)
        fx_graphs.run(self._nodes, values, self._constants)
        return tuple(values[r] for r in self._results if hasattr(r, "op"))

    def specs(self) -> tuple[tuple[Spec, ...], dict[str, Spec]]:
        """The specs of the inputs that it was exported with, and of what it holds, by name."""
        inputs, held = [], {}
        for node, spec in zip(self._placeholders, self._specs, strict=True):
            value = node.meta.get("val")
            if spec.kind.name in _HELD:
                held[spec.target] = _spec(spec.target, value)
            elif fx_graphs.is_tensor(value):
                inputs.append(_spec(node.name, value))
        return tuple(inputs), held


def _spec(name: str, value: Any) -> Spec:
    """The spec of a tensor without data. A size that is a symbol counts as what it was at the export."""
    dtype = name_of_dtype(value)
    if dtype not in DTYPES:
        raise TypeError(f"kfusion: {name} must be {', '.join(DTYPES)}, got {dtype}")
    shape = tuple(fx_graphs.known(n) for n in value.shape)
    device = str(value.device)
    return Spec(shape, dtype, "torch", "cpu" if device == "meta" else device)
