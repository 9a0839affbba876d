"""Gradients of random programs in float64: those that torch's autograd gives of the same program in torch's words."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import kfusion as kf
from gradients import vjp_in_two_passes

from .checks import EXECUTABLE, H200, Runner, check_plan
from .in_torch import TORCH
from .program import NUMPY, Program
from .values import Unfit, Value

TOLERANCE = 1e-10  # of the largest element
ROUNDINGS = 1e-13  # of it, where torch's inputs and the gradients of its results are rounded once more
LEAST = 1e-3  # of the largest element
MOVE = 1e-3  # so that hardly two inputs are equal
NEAR, NEXT = 1e-11, 1e-9  # how far gradients may move where inputs do


def _like(x: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Values that lie as x does."""
    if x.flags.c_contiguous or x.flags.f_contiguous:
        return values.copy("C" if x.flags.c_contiguous else "F")
    steps = tuple(slice(None, None, -2 if s < 0 else 2) for s in x.strides)
    view = np.zeros([e * 2 for e in x.shape], values.dtype)[steps]
    view[...] = values
    return view


def is_exact(p: Program) -> bool:
    """Whether nothing is rounded. Raises Unfit where a step says nothing."""
    return all(v.error == 0 for v in p.values())


def moves(arrays: Sequence[np.ndarray], by: float) -> list[np.ndarray]:
    """Other values nearby, of which hardly two are equal."""
    random = np.random.default_rng(0)
    return [x if x.dtype.kind in "bi" else np.asarray(x + by * random.standard_normal(x.shape)) for x in arrays]


def moved(p: Program, by: float) -> Program:
    return replace(p, inputs=[_like(x, y) for x, y in zip(p.inputs, moves(p.inputs, by), strict=True)])


def tensor(x: np.ndarray) -> torch.Tensor:
    """A leaf; one that lies as x does, where torch has such tensors."""
    t = torch.from_numpy(x.copy() if any(s < 0 for s in x.strides) else x).detach()
    return t.requires_grad_() if x.dtype.kind == "f" else t


def seed(i: int, shape: Sequence[int]) -> np.ndarray:
    """The gradient of result i."""
    return np.asarray(np.random.default_rng(100 + i).standard_normal(tuple(shape)))


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch has one thread for these small tensors."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def by_torch(
    function: Callable[..., Any], inputs: Sequence[np.ndarray], seed: Callable[..., np.ndarray] = seed
) -> tuple[list[Any], list[Any]]:
    """Float results of a function of tensors, and the gradients of its float inputs by torch's autograd."""
    tensors = [tensor(x) for x in inputs]
    results = [y for y in function(*tensors) if y.dtype == torch.float64]
    pairs = [(y, torch.from_numpy(seed(i, y.shape))) for i, y in enumerate(results) if y.requires_grad]
    if not pairs:
        raise Unfit
    leaves = [t for t in tensors if t.requires_grad]
    found = torch.autograd.grad([y for y, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True)
    gradients = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]
    return [y.detach() for y in results], gradients


def difference(got: Sequence[Any], want: Sequence[Any]) -> float:
    """The largest one, of the largest element."""
    largest = 0.0
    for a, b in zip(got, want, strict=True):
        if b.numel():
            largest = max(largest, float((a - b).abs().max()) / max(float(b.abs().max()), LEAST))
    return largest


def next_to(x: np.ndarray) -> np.ndarray:
    """The next numbers, up or down."""
    return np.asarray(np.nextafter(x, np.random.default_rng(1).choice([-np.inf, np.inf], x.shape)))


@dataclass
class Case:
    """A program whose gradients are what they are whoever computes them: more than roundings, and continuous at its
    inputs, or computed without roundings, so that ties, of which autograd divides or chooses, are everybody's ties.
    """

    program: Program
    results: list[Value]
    gradients: list[Any]

    @staticmethod
    def of(program: Program) -> Case:
        exact = is_exact(program)
        if not exact:
            program = moved(program, MOVE)
        values, function, inputs = program.values(), program.function(TORCH), program.inputs
        results, gradients = by_torch(function, inputs)
        if not all(bool(x.isfinite().all()) for x in (*results, *gradients)):
            raise Unfit
        if not exact and not difference(by_torch(function, moved(program, NEAR).inputs)[1], gradients) <= NEXT:
            raise Unfit
        rounded = inputs if exact else [_like(x, next_to(x)) if x.dtype.kind == "f" else x for x in inputs]
        if not difference(by_torch(function, rounded, lambda *a: next_to(seed(*a)))[1], gradients) <= ROUNDINGS:
            raise Unfit
        return Case(program, [v for v in (values[o] for o in program.outputs) if v.is_float], gradients)

    @property
    def loss(self) -> tuple[float, float]:
        """What `loss_of` gives, and the size of its terms."""
        terms = [y.array * seed(i, y.shape) for i, y in enumerate(self.results)]
        return sum(float(t.sum()) for t in terms), sum(float(np.abs(t).sum()) for t in terms)

    def require(self, what: str, gradients: Sequence[Any], results: Sequence[Any] = ()) -> None:
        for value, got in zip(self.results, results, strict=False):
            try:
                value.check(got.detach() if isinstance(got, torch.Tensor) else got)
            except AssertionError as error:
                raise AssertionError(f"{what}: a result: {error}") from None
        for i, (got, want) in enumerate(zip(gradients, self.gradients, strict=True)):
            found = got if isinstance(got, torch.Tensor) else torch.from_numpy(np.array(got))
            assert (found.dtype, found.shape) == (want.dtype, want.shape), f"{what}: {i} is {tuple(found.shape)}"
            distance = difference([found], [want])
            assert distance <= TOLERANCE, f"{what}: {i} is wrong by {distance:.2g} of its largest element"


def pulled(function: Callable[..., Any], is_float: Sequence[bool]) -> Callable[..., Any]:
    """From all inputs and the gradients of float results to float results and the gradients of float inputs."""

    def gradients(inputs: Sequence[Any], seeds: Sequence[Any]) -> Any:
        def own(*floats: Any) -> list[Any]:
            given = iter(floats)
            made = function(*[next(given) if f else x for x, f in zip(inputs, is_float, strict=True)])
            return [y for y in made if y.dtype == np.float64]

        results, pull = kf.vjp(own, *[x for x, f in zip(inputs, is_float, strict=True) if f])
        return results, pull(list(seeds))

    return gradients


def loss_of(function: Callable[..., Any], seeds: Sequence[Any]) -> Callable[..., Any]:
    """A number with these gradients of the results."""

    def loss(*arrays: Any) -> Any:
        results = [y for y in function(*arrays) if y.dtype == np.float64]
        return sum((y * s).sum() for y, s in zip(results, seeds, strict=True))

    return loss


_SHOWN = """for function in (f, kf.fuse(f)):
    tensors = [tensor(x) for x in arrays]
    results = [y for y in function(*tensors) if y.is_floating_point()]
    pairs = [(y, torch.from_numpy(seed(i, y.shape))) for i, y in enumerate(results) if y.requires_grad]
    sum((y * s).sum() for y, s in pairs).backward()
    print(*(t.grad for t in tensors), sep="\\n")
"""


class GradRunner(Runner):
    """Gradients on the CPU: of arrays by `kf.vjp`, `kf.value_and_grad` and `kf.grad`, of tensors by torch's autograd
    through fused functions.
    """

    def says_something(self, program: Program) -> bool:
        try:
            with one_thread():
                Case.of(program)
        except Unfit:
            return False
        except Exception:  # which the check raises again
            return True
        return True

    def script(self, program: Program) -> str:
        """The program in torch's words, and the gradients of its tensors, not fused and fused."""
        source = program.source(TORCH)
        lines = ["from collections.abc import Sequence", "from typing import Any", "import numpy as np", *TORCH.imports]
        lines += [*TORCH.called_in(source), source, *map(inspect.getsource, (moves, tensor, seed))]
        lines += [*program.written_inputs(), f"arrays = [{', '.join(program.names[: len(program.inputs)])}]"]
        lines += [] if is_exact(program) else [f"arrays = moves(arrays, {MOVE})"]
        return "\n".join([*lines, _SHOWN])

    def check(self, program: Program, *, thorough: bool = False) -> None:
        with one_thread():
            case = Case.of(program)
            self._check_tensors(case)
            self._check_arrays(case)

    def _check_tensors(self, case: Case) -> None:
        results, gradients = by_torch(kf.fuse(case.program.function(TORCH)), case.program.inputs)
        case.require("tensors", gradients, results)

    def _check_arrays(self, case: Case) -> None:
        function, inputs = case.program.function(NUMPY), case.program.inputs
        graph = kf.trace(function, *inputs)
        if any(n["op"] == "library_call" for n in graph.to_dict()["nodes"]):
            return  # of which NumPy has no gradients
        seeds = [seed(i, y.shape) for i, y in enumerate(case.results)]
        is_float = [x.dtype.kind == "f" for x in inputs]
        fused = kf.fuse(pulled(function, is_float))
        for name, run in (("vjp", fused), ("vjp, unfused", fused.unfused)):
            results, gradients = run(list(inputs), seeds)
            case.require(name, gradients, results)
        for memory in (None, 1 << 10, 0):
            if gradients := vjp_in_two_passes(graph, inputs, seeds, memory):
                case.require(f"two passes, memory={memory}", gradients)
        numbers = tuple(i for i, f in enumerate(is_float) if f)
        loss = loss_of(function, seeds)
        value, gradients = kf.value_and_grad(loss, numbers)(*inputs)
        want, size = case.loss
        assert abs(float(value) - want) <= TOLERANCE * max(size, LEAST), f"value_and_grad: {value}, not {want}"
        case.require("value_and_grad", gradients)
        case.require("grad", kf.grad(loss, numbers)(*inputs))
        backward = kf.trace(fused.__wrapped__, list(inputs), seeds)
        check_plan(backward, H200, {})
        check_plan(backward, self.device, EXECUTABLE)
