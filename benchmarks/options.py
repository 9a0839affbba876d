"""What a run is asked for, and which peers can be asked."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kfusion import _core
from kfusion._compare import peers as _peers

from . import rivals

PEERS = ("numpy", "numexpr", "torch", "torch.compile", "torch.compile.warm", "torch.compile.max",
         "torch.compile.graphs", "triton", "cupy", "cupy.fuse", "jax.jit", "numba", "experiment")  # fmt: skip
DTYPES = ("float32", "bfloat16", "float16", "float64")
_ON = {
    "cpu": (
        "numpy",
        "numexpr",
        "torch",
        "torch.compile",
        "torch.compile.warm",
        "torch.compile.max",
        "jax.jit",
        "numba",
    ),
    "cuda": (
        "torch",
        "torch.compile",
        "torch.compile.max",
        "torch.compile.graphs",
        "triton",
        "cupy",
        "cupy.fuse",
        "jax.jit",
        "experiment",
    ),
}
# torch and its compiler (2.13 mixes up what it has compiled for two instruction sets), JAX's, Numba's.
_AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "TORCHINDUCTOR_CACHE_DIR": os.path.join(tempfile.gettempdir(), "inductor_avx2"),
         "XLA_FLAGS": "--xla_cpu_max_isa=AVX2", "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": ""}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """device: "cpu" or "cuda". peers: those to ask. all_peers: in every case, not only where they compile quickly.

    dtypes: None leaves the choice to each suite. nbytes: of a case's input; None likewise. repeats: samples of each
    version; None is as many as there is time for. processes: fresh ones for each first call. calls: in one sample of
    what a call costs the host. only: text that a case's title must have, or several between "|". seconds: after which
    no case begins.
    """

    device: str
    quick: bool = False
    dtypes: tuple[str, ...] | None = None
    peers: tuple[str, ...] = ()
    all_peers: bool = False
    nbytes: int | None = None
    repeats: int | None = None
    processes: int = 2
    calls: int = 500
    only: str = ""
    seconds: float | None = None

    def __post_init__(self) -> None:
        """Raises ValueError where a dtype is none of those that are measured."""
        for dtype in self.dtypes or ():
            if dtype not in DTYPES:
                raise ValueError(f"kfusion bench: a dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")

    def asked(self, known: Collection[str], slow: Collection[str] = ("torch.compile.max",)) -> list[str]:
        """The peers to ask of those that a case knows: those that are slow to compile only where all are wanted."""
        return [p for p in self.peers if p in known and (self.all_peers or p not in slow)]


def installed(device: str) -> tuple[str, ...]:
    """The peers that are installed and have arrays on the device; nothing is imported."""
    return tuple(name for name in _ON[device] if importlib.util.find_spec(module_of(name)) is not None)


def module_of(peer: str) -> str:
    """The package that a peer comes from: "torch" for "torch.compile"."""
    return rivals.MODULES.get(peer) or _peers.library_of(peer)


def checked_peers(names: Sequence[str], device: str) -> tuple[str, ...]:
    """Named peers, each once.

    Raises:
        ValueError: a name is unknown, or the peer cannot run on the device.
        ImportError: a peer is not installed.
    """
    for name in names:
        if name not in PEERS:
            raise ValueError(f"kfusion bench: a peer must be one of {', '.join(PEERS)}, got {name!r}")
        if name not in _ON[device]:
            raise ValueError(f"kfusion bench: the peer {name} does not run on {device} ({', '.join(_ON[device])} do)")
        if importlib.util.find_spec(module_of(name)) is None:
            raise ImportError(f"kfusion bench: the peer {name} needs {module_of(name)}, which is not installed")
    return tuple(dict.fromkeys(names))


def chosen_device(device: str) -> str:
    """ "auto" as what there is.

    Raises:
        kfusion.DeviceError: CUDA is asked for and there is none.
    """
    count = _core.cuda_device_count()
    if device == "cuda" and count == 0:
        _core.cuda_device_info(0)  # raises, and says why
    return device if device != "auto" else "cuda" if count else "cpu"


def prepare_environment() -> None:
    """What must be set before a peer is imported: JAX would take most of the GPU's memory; and those that compile are
    held to AVX2 where kfusion is (KFUSION_ISA=avx2)."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if _core.isa() == "avx2" and "avx512" in _core.available_isas():
        for name, value in _AVX2.items():
            os.environ.setdefault(name, value)
