"""The same operation as users of other libraries write it, one library call per step (eager mode)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from . import _arrays

PEERS = ("numpy", "torch", "jax", "cupy")
_UNFIT_ON_CPU = {"cupy": "it has no arrays on the CPU"}
_UNFIT_ON_CUDA = {
    "numpy": "it has no arrays on a GPU",
    "jax": "it runs on CUDA streams of its own, which events on the caller's stream do not time",
}


class Call(NamedTuple):
    """A peer made ready: calling it computes once and returns the peer's own array, complete."""

    name: str
    run: Callable[[], Any]


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
    names = [n for n in PEERS if _arrays.imported(n)] if peers is None else _named(peers)
    unfit = _UNFIT_ON_CUDA if cuda else _UNFIT_ON_CPU
    notes = [f"{n} is left out: {unfit[n]}." for n in names if n in unfit and peers is not None]
    return [n for n in names if n not in unfit], notes


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
        importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"kfusion.compare: the peer {name!r} cannot be imported: {error}") from error


def prepare(name: str, x: Any, weight: Any, bias: Any, eps: float) -> Call:
    """Converts the arguments to the peer's arrays and returns the call to time.

    Raises:
        Exception: whatever the peer raises for a dtype or layout that it does not take.
    """
    own_x, own_weight, own_bias = (_arrays.convert(a, name) for a in (x, weight, bias))
    if _arrays.dtype_name(own_x) != _arrays.dtype_name(x):
        raise TypeError(f"{name} turns {_arrays.dtype_name(x)} into {_arrays.dtype_name(own_x)}")
    if name == "torch":
        return Call(name, _torch(own_x, own_weight, own_bias, eps))
    library = importlib.import_module("jax.numpy" if name == "jax" else name)
    if name == "jax":
        return Call(name, lambda: _array_api(library, own_x, own_weight, own_bias, eps).block_until_ready())
    return Call(name, lambda: _array_api(library, own_x, own_weight, own_bias, eps))


def _torch(x: Any, weight: Any, bias: Any, eps: float) -> Callable[[], Any]:
    import torch
    from torch.nn import functional

    weight, bias = (None if p is None else p.to(x.dtype) for p in (weight, bias))

    stream = torch.cuda.default_stream(x.device) if x.is_cuda else None  # the one that is timed

    def run() -> Any:
        with torch.no_grad(), torch.cuda.stream(stream):
            return functional.layer_norm(functional.relu(x), x.shape[-1:], weight, bias, eps)

    return run


def _array_api(xp: Any, x: Any, weight: Any, bias: Any, eps: float) -> Any:
    wide = x.astype("float32") if x.dtype.itemsize == 2 else x  # as anybody has to who wants a useful variance
    r = xp.maximum(wide, 0)
    y = (r - r.mean(-1, keepdims=True)) / xp.sqrt(r.var(-1, keepdims=True) + eps)
    if weight is not None:
        y = y * weight
    if bias is not None:
        y = y + bias
    return y.astype(x.dtype)
