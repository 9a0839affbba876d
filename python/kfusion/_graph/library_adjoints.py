"""What gradients need of the array library: sums of elements by index, and its own gradients of its functions."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _arrays


class ByIndex(NamedTuple):
    """Adds elements of g to zeros at the positions along an axis from which `take` or `take_along_axis` took them.

    The order of additions is that of the indices, so that results have the same bits in every call.
    """

    kind: str
    axis: int

    def __call__(self, zeros: Any, indices: Any, g: Any) -> list[Any]:
        """Computes gradients of arrays of the caller's library."""
        if isinstance(g, np.ndarray):
            return [self._numpy(np.zeros_like(zeros, order="C"), indices, g)]
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(g, torch.Tensor):
            return [self._torch(torch, torch.zeros(zeros.shape, dtype=g.dtype, device=g.device), indices, g)]
        cupy, jax = sys.modules.get("cupy"), sys.modules.get("jax")
        if cupy is not None and isinstance(g, cupy.ndarray):
            return [self._cupy(cupy, zeros, indices, g)]
        if jax is not None and isinstance(g, jax.Array):
            return [self._jax(jax.numpy, zeros, indices, g)]
        raise TypeError(f"kfusion.grad: {self.kind} has no gradients of {type(g).__name__}")

    def _numpy(self, total: np.ndarray, indices: np.ndarray, g: np.ndarray) -> np.ndarray:
        if self.kind == "take":
            np.add.at(np.moveaxis(total, self.axis, 0), indices, _axes_first(np, g, self.axis, indices.ndim))
        else:
            np.add.at(total, self._positions(np, np.arange, indices), g)
        return total

    def _torch(self, torch: Any, total: Any, indices: Any, g: Any) -> Any:
        indices = indices.long()
        if total.is_cuda:  # there index_put_ sorts, the others add in any order; on the CPU it is the other way round
            if self.kind == "take":
                first = _axes_first(torch, g, self.axis, indices.ndim)
                total.movedim(self.axis, 0).index_put_((indices,), first, accumulate=True)
                return total
            arange = lambda n: torch.arange(n, device=total.device)  # noqa: E731
            return total.index_put_(self._positions(torch, arange, indices), g, accumulate=True)
        if self.kind == "take":
            first = _axes_first(torch, g, self.axis, indices.ndim)
            rows = first.reshape(indices.numel(), *first.shape[max(indices.ndim, 1) :])
            total.movedim(self.axis, 0).index_add_(0, indices.flatten(), rows)
            return total
        return total.scatter_add_(self.axis, indices, g)

    def _cupy(self, cupy: Any, zeros: Any, indices: Any, g: Any) -> Any:
        """Each element of the result adds its own, one after the other."""
        total = cupy.zeros_like(zeros, dtype=g.dtype, order="C")
        if self.kind == "take":
            rows = _axes_first(cupy, g, self.axis, indices.ndim).reshape(indices.size, -1)
            _sum_by_position(cupy, indices.ravel(), rows, out := cupy.moveaxis(total, self.axis, 0).copy())
            return cupy.ascontiguousarray(cupy.moveaxis(out, 0, self.axis))
        arange = functools.partial(cupy.arange, dtype="int64")
        positions = cupy.ravel_multi_index(self._positions(cupy, arange, indices), zeros.shape)
        _sum_by_position(cupy, positions.ravel(), cupy.ascontiguousarray(g).reshape(-1, 1), total)
        return total

    def _jax(self, numpy: Any, zeros: Any, indices: Any, g: Any) -> Any:
        total = numpy.zeros(zeros.shape, g.dtype)
        if self.kind == "take":
            rows = _axes_first(numpy, g, self.axis, indices.ndim)
            return numpy.moveaxis(numpy.moveaxis(total, self.axis, 0).at[indices].add(rows), 0, self.axis)
        return total.at[self._positions(numpy, numpy.arange, indices)].add(g)

    def _positions(self, library: Any, arange: Callable[[int], Any], indices: Any) -> tuple[Any, ...]:
        """For each axis the positions, `indices` along that of the gather."""
        positions = [
            arange(n).reshape([-1 if i == d else 1 for i in range(indices.ndim)]) for d, n in enumerate(indices.shape)
        ]
        positions[self.axis] = indices
        return tuple(library.broadcast_to(p, tuple(indices.shape)) for p in positions)


_SUM = """
    const long long end = start[i / width + 1];
    long long k = start[i / width];
    A sum = 0;
    for (; k < end; ++k) sum += static_cast<A>(rows[order[k] * width + i % width]);
    y = static_cast<T>(sum);
"""


def _sum_by_position(cupy: Any, positions: Any, rows: Any, out: Any) -> None:
    """out[p] = sum of rows[k] for all k with positions[k] = p, in the order of k. `out` and `rows` are in C order."""
    if out.size == 0:
        return
    order = cupy.argsort(positions, kind="stable") if positions.size else positions.astype("int64")
    count = out.size // rows.shape[1] if rows.shape[1] else 0
    start = cupy.searchsorted(positions[order], cupy.arange(count + 1, dtype=positions.dtype))
    wide = "float64" if rows.dtype == "float64" else "float32"
    kernel = cupy.ElementwiseKernel(
        "raw T rows, raw int64 order, raw int64 start, int64 width, A none", "T y", _SUM, "kfusion_sum_by_position"
    )
    args = rows, order.astype("int64"), start.astype("int64"), rows.shape[1], cupy.zeros((), wide)
    out[...] = kernel(*args, size=out.size).reshape(out.shape)


def _axes_first(library: Any, g: Any, axis: int, count: int) -> Any:
    """g with the axes of the indices in front."""
    return library.moveaxis(g, tuple(range(axis, axis + count)), tuple(range(count))) if count else g[None]


class OfCall(NamedTuple):
    """torch's gradients of a function that a graph calls: of its `results` for its `arguments`, by number; those of as
    many axes have them in that `order`.
    """

    run: Callable[..., Sequence[Any]]
    results: tuple[int, ...]
    arguments: tuple[int, ...]
    order: tuple[int, ...] = ()

    def __call__(self, *arrays: Any) -> list[Any]:
        """Takes the function's arguments and, behind them, the gradients of its results."""
        torch = sys.modules["torch"]
        count = len(arrays) - len(self.results)
        given, gradients = list(arrays[:count]), arrays[count:]
        draws = getattr(self.run, "draws", None)
        has_gradients = torch.is_grad_enabled() and any(x.requires_grad for x in arrays)  # within another one of these
        with torch.enable_grad(), draws.again() if draws is not None else contextlib.nullcontext():
            for i in self.arguments:
                given[i] = given[i] if given[i].requires_grad else given[i].detach().requires_grad_()
            made = self.run(*given)
            pairs = [(made[r], g) for r, g in zip(self.results, gradients, strict=True) if made[r].requires_grad]
            wanted = [given[i] for i in self.arguments]
            found: Sequence[Any] = [None] * len(wanted)
            if pairs:
                results, theirs = zip(*((y, _lying_as(y, g)) for y, g in pairs), strict=True)
                found = torch.autograd.grad(results, wanted, theirs, allow_unused=True, create_graph=has_gradients)
        made = [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, found, strict=True)]
        made = [_arrays.apart(g, arrays) for g in made]  # some give what they get, such as cumsum of one element
        return [g.permute(self.order) if self.order and g.ndim == len(self.order) else g for g in made]


def _lying_as(result: Any, gradient: Any) -> Any:
    """The gradient in the result's order in memory: some of torch's kernels take no other, and do not say so."""
    if gradient.stride() == result.stride() or not result.is_cuda:
        return gradient
    return sys.modules["torch"].empty_like(result, dtype=gradient.dtype).copy_(gradient)


class OfAttention(NamedTuple):
    """torch's gradients of attention, by its arguments, its result and the logarithms of its sums."""

    gradients: Callable[..., Sequence[Any]]
    arguments: tuple[int, ...]

    def __call__(self, *arrays: Any) -> list[Any]:
        """Takes tensors; the gradient of the result is the last."""
        made = self.gradients(*arrays)
        return [made[i] for i in self.arguments]


class OfConv2d(NamedTuple):
    """torch's gradients of a convolution, by its input and weight."""

    numbers: tuple[int, ...]
    arguments: tuple[int, ...]

    def __call__(self, x: Any, w: Any, g: Any) -> list[Any]:
        """Takes tensors."""
        backward = sys.modules["torch"].ops.aten.convolution_backward
        stride, padding, dilation = (self.numbers[i : i + 2] for i in (0, 2, 4))
        wanted = [i in self.arguments for i in range(3)]
        made = backward(g, x, w, None, stride, padding, dilation, False, [0, 0], self.numbers[6], wanted)
        return [made[i] for i in self.arguments]


def function_for(adjoint: tuple[str, Sequence[int], Sequence[int], Sequence[int]], known: Sequence[Any]) -> Any:
    """The function for what a graph says that it needs; `known` are those of the trace, by number."""
    kind, numbers, results, arguments = adjoint
    if kind == "library_call":
        run = known[numbers[0]]
        own = getattr(run, "adjoint", None)  # of a function that knows its gradients better
        if own is not None:
            return own(tuple(arguments))
        return OfCall(run, tuple(results), tuple(arguments), tuple(numbers[1:]))
    if kind == "attention":
        return OfAttention(known[numbers[0]].gradients, tuple(arguments))
    if kind == "conv2d":
        return OfConv2d(tuple(numbers), tuple(arguments))
    return ByIndex(kind, numbers[0])
