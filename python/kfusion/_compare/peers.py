"""An operation as users of other libraries have it: one call after the other, or through their own compilers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _arrays
from .._tracing.trace import Trace
from . import libraries, numexpr_text
from .evaluate import Program, program


class _Peer(NamedTuple):
    """module: what a program that uses it has imported. arrays: the library whose arrays it takes."""

    module: str
    arrays: str
    prepare: Callable[[Trace, Sequence[Any]], Program]
    unfit_on_cpu: str = ""
    unfit_on_cuda: str = ""


class Call(NamedTuple):
    """A peer made ready: calling it computes once and returns the peer's own arrays, complete."""

    name: str
    run: Callable[[], list[Any]]


def choose(peers: Sequence[str] | None, cuda: bool) -> tuple[list[str], list[str]]:
    """The peers to measure, and notes on named ones that cannot be.

    Args:
        peers: names to import, or None for NumPy and whatever is imported already.
        cuda: whether the data is on a CUDA device.

    Raises:
        TypeError: peers is a string rather than a list of strings.
        ValueError: an unknown name.
        ImportError: a named library is not installed.
    """
    names = [n for n in PEERS if _arrays.imported(_PEERS[n].module)] if peers is None else _named(peers)
    unfit = {n: p.unfit_on_cuda if cuda else p.unfit_on_cpu for n, p in _PEERS.items()}
    notes = [f"{n} is left out: {unfit[n]}." for n in names if unfit[n] and peers is not None]
    return [n for n in names if not unfit[n]], notes


def _named(peers: Sequence[str]) -> list[str]:
    if isinstance(peers, str):
        raise TypeError(f"kfusion.compare: peers must be a list of names, got the string {peers!r}")
    for name in peers:
        if name not in PEERS:
            raise ValueError(f"kfusion.compare: a peer must be one of {', '.join(PEERS)}, got {name!r}")
        load(name)
    return list(dict.fromkeys(peers))


def load(name: str) -> None:
    """Imports a peer.

    Raises:
        ImportError: it is not installed, or its own import fails.
    """
    try:
        importlib.import_module(_PEERS[name].module)
    except ImportError as error:
        raise ImportError(f"kfusion.compare: the peer {name!r} cannot be imported: {error}") from error


def library_of(name: str) -> str:
    """The package that a peer comes from: "torch" for "torch.compile"."""
    return name.partition(".")[0]


def prepare(name: str, trace: Trace, arrays: Sequence[Any]) -> Call:
    """Converts the arguments to the peer's arrays and returns the call to time; nothing is computed or compiled yet.

    Raises:
        Exception: whatever the peer raises for an operation, dtype or layout that it does not take.
    """
    peer = _PEERS[name]
    own = [_arrays.convert(a, peer.arrays) for a in arrays]
    for given, taken in zip(arrays, own, strict=True):
        if _arrays.dtype_name(taken) != _arrays.dtype_name(given):
            raise TypeError(f"{name} turns {_arrays.dtype_name(given)} into {_arrays.dtype_name(taken)}")
    run = peer.prepare(trace, own)
    return Call(name, lambda: run(*own))


def _numpy(trace: Trace, arrays: Sequence[Any]) -> Program:
    return program(trace, libraries.Library("numpy", np))


def _numexpr_program(trace: Trace, arrays: Sequence[Any]) -> Program:
    return numexpr_text.program(trace)


def _torch(trace: Trace, arrays: Sequence[Any]) -> Program:
    return _without_grad(program(trace, libraries.Torch(arrays[0].device), alternatives=trace.alternatives), arrays)


def _torch_compile(trace: Trace, arrays: Sequence[Any]) -> Program:
    import torch

    # At its best: for these very shapes, on CUDA with the longest search. Left to itself it would compile the second
    # shape for any size, and that kernel can be many times slower.
    mode = "max-autotune-no-cudagraphs" if arrays[0].is_cuda else None
    run = torch.compile(program(trace, libraries.Torch(arrays[0].device)), dynamic=False, mode=mode)
    return _without_grad(run, arrays)


def _without_grad(run: Program, arrays: Sequence[Any]) -> Program:
    import torch

    cuda = arrays[0].is_cuda
    stream = torch.cuda.default_stream(arrays[0].device) if cuda else None  # the one that is timed
    if not any(a.requires_grad for a in arrays) and (
        stream is None or torch.cuda.current_stream(arrays[0].device) == stream
    ):
        return run  # the contexts below cost the host more than a small call

    def on_that_stream(*given: Any) -> list[Any]:
        with torch.no_grad(), torch.cuda.stream(stream):
            return run(*given)

    return on_that_stream


def _jax(trace: Trace, arrays: Sequence[Any]) -> Program:
    return _complete(program(trace, libraries.Jax()))


def _jax_jit(trace: Trace, arrays: Sequence[Any]) -> Program:
    import jax

    return _complete(jax.jit(program(trace, libraries.Jax())))


def _complete(run: Program) -> Program:
    import jax

    wait: Any = jax.block_until_ready
    return lambda *arrays: wait(run(*arrays))


def _cupy(trace: Trace, arrays: Sequence[Any]) -> Program:
    return program(trace, libraries.Cupy())


def _cupy_fuse(trace: Trace, arrays: Sequence[Any]) -> Program:
    import cupy

    run = program(trace, libraries.Cupy())
    fused = cupy.fuse(kernel_name="fused")(lambda *given: tuple(run(*given)))

    def computed(*given: Any) -> list[Any]:
        results = fused(*given)
        return list(results) if isinstance(results, tuple) else [results]

    return computed


_NO_GPU_ARRAYS, _NO_CPU_ARRAYS = "it has no arrays on a GPU", "it has no arrays on the CPU"
_OWN_STREAMS = "it runs on CUDA streams of its own, which events on the caller's stream do not time"
_PEERS = {
    "numpy": _Peer("numpy", "numpy", _numpy, unfit_on_cuda=_NO_GPU_ARRAYS),
    "numexpr": _Peer("numexpr", "numpy", _numexpr_program, unfit_on_cuda=_NO_GPU_ARRAYS),
    "torch": _Peer("torch", "torch", _torch),
    "torch.compile": _Peer("torch._dynamo", "torch", _torch_compile),
    "jax": _Peer("jax", "jax", _jax, unfit_on_cuda=_OWN_STREAMS),
    "jax.jit": _Peer("jax", "jax", _jax_jit, unfit_on_cuda=_OWN_STREAMS),
    "cupy": _Peer("cupy", "cupy", _cupy, unfit_on_cpu=_NO_CPU_ARRAYS),
    "cupy.fuse": _Peer("cupy", "cupy", _cupy_fuse, unfit_on_cpu=_NO_CPU_ARRAYS),
}
PEERS = tuple(_PEERS)
