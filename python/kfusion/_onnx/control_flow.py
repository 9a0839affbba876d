"""Loop and Scan for onnx.reference, whose own stack scalars and matrices wrongly and have no directions and axes."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np

from .library import reference

_MOST_STEPS = 1 << 24


@functools.cache
def control_flow() -> tuple[type, ...]:
    """The classes that take the place of the reference's, within subgraphs too."""
    reference()
    run = importlib.import_module("onnx.reference.op_run").OpRun

    class Loop(run):  # type: ignore[misc, valid-type]
        op_domain = ""

        def need_context(self) -> bool:
            return True

        def _run(self, count: Any, condition: Any, *states: Any, context: Any = None, **_: Any) -> Any:
            body = self.body
            names, carried = body.input_names, len(states)
            stacked: list[list[Any]] = [[] for _ in body.output_names[1 + carried :]]
            steps = _MOST_STEPS if count is None else int(np.asarray(count).ravel()[0])
            goes_on = condition is None or bool(np.asarray(condition).ravel()[0])
            step = 0
            while goes_on and step < steps:
                given = [np.array(step, np.int64), np.array(goes_on), *states]
                found = body.run(None, {**(context or {}), **dict(zip(names, given, strict=True))})
                goes_on = bool(np.asarray(found[0]).ravel()[0])
                states = tuple(found[1 : 1 + carried])
                for values, value in zip(stacked, found[1 + carried :], strict=True):
                    values.append(value)
                step += 1
            return (*states, *(_stacked(values, body, i) for i, values in enumerate(stacked, 1 + carried)))

    class Scan(run):  # type: ignore[misc, valid-type]
        op_domain = ""

        def need_context(self) -> bool:
            return True

        def _run(self, *args: Any, context: Any = None, **attributes: Any) -> Any:
            body = self.body
            n = attributes["num_scan_inputs"]
            carried = len(args) - n
            states, scanned = args[:carried], _turned(args[carried:], attributes, "input")
            steps = scanned[0].shape[0]
            results: list[list[Any]] = [[] for _ in body.output_names[carried:]]
            for step in range(steps):
                given = [*states, *(s[step] for s in scanned)]
                found = body.run(None, {**(context or {}), **dict(zip(body.input_names, given, strict=True))})
                states = found[:carried]
                for values, value in zip(results, found[carried:], strict=True):
                    values.append(value)
            stacks = [_stacked(values, body, i) for i, values in enumerate(results, carried)]
            return (*states, *_turned(stacks, attributes, "output"))

    return Loop, Scan


def _stacked(values: list[Any], body: Any, output: int) -> np.ndarray:
    """What the steps gave along a new first axis; of no steps, of the shape that the body says."""
    if values:
        return np.stack([np.asarray(v) for v in values])
    onnx = importlib.import_module("onnx")
    kind = body.proto_.output[output].type.tensor_type
    dims = [d.dim_value for d in kind.shape.dim]
    return np.empty((0, *dims), onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type or onnx.TensorProto.FLOAT))


def _turned(values: Any, attributes: dict[str, Any], which: str) -> list[np.ndarray]:
    """Scanned inputs with their axis in front, or outputs with it at its place; in their directions."""
    axes = attributes.get(f"scan_{which}_axes") or [0] * len(values)
    directions = attributes.get(f"scan_{which}_directions") or [0] * len(values)
    made = []
    for value, axis, backwards in zip(values, axes, directions, strict=True):
        turned = np.moveaxis(value, axis, 0) if which == "input" else value
        turned = turned[::-1] if backwards else turned
        made.append(turned if which == "input" else np.moveaxis(turned, 0, axis))
    return made
