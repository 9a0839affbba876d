"""Kernels that are compiled when the package is built with CUDA, so that their first call is immediate and needs no
NVRTC: which they are, and how nvcc compiles them. Run by cmake/prebuild.py.

A kernel is found by its text (`_core.prebuilt_key`); one that is not here is compiled when it is first needed. The text
of a row kernel depends on the class of the row's length, so a walk of lengths finds all texts that there are for rows
of whole vectors; those of other rows are too many.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import itertools
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from . import _core, _named
from ._devices.devices import device
from ._fuse import FusedFunction
from ._spec import FLOATS, ITEM_BYTES, Spec


class Row(NamedTuple):
    """A function, and for which arguments it is prebuilt."""

    name: str
    dtypes: tuple[str, ...]  # of x and the parameters
    parameters: tuple[tuple[str, ...], ...]  # which it is given
    longest: int  # bytes of a row
    common: bool = False  # prebuilt although NVRTC is there

    def has(self, length: int, dtype: str) -> bool:
        """Whether it is prebuilt for rows of this many elements: whole vectors of 16 bytes."""
        return length >= LENGTHS[0] and length % 8 == 0 and length * ITEM_BYTES[dtype] <= self.longest


_NONE, _ONE, _BOTH = (), ("weight",), ("weight", "bias")
_USUAL, _BLOCK, _ANY = ("float32", "bfloat16"), 2**15, 2**25  # rows beyond a block take the longest to compile
FUNCTIONS = (
    Row("fused_relu_layernorm", _USUAL, (_NONE, _BOTH), _BLOCK, common=True),
    Row("fused_layernorm", _USUAL, (_NONE, _BOTH), _BLOCK, common=True),
    Row("fused_rmsnorm", _USUAL, (_ONE,), _BLOCK, common=True),
    Row("fused_softmax", _USUAL, (_NONE,), _BLOCK, common=True),
    Row("fused_relu_layernorm", FLOATS, (_NONE, _ONE, _BOTH), _BLOCK),
    Row("fused_relu_layernorm", _USUAL, (_NONE, _BOTH), _ANY),
    Row("unfused_relu_layernorm", _USUAL, (_NONE, _BOTH), _ANY),
)
COMMON = tuple(row for row in FUNCTIONS if row.common)
LENGTHS = sorted([24, *(2**p for p in range(4, 23))])  # of rows: the text depends on their class, which these end
_ROWS = (4096, 64, 16)  # many, fewer than multiprocessors, and few: how many there are plays no other part
_KERNELS_OF_A_UNIT = 16  # of one file for nvcc, whose headers they share, and of one image, which is loaded as a whole
_NAMESPACE = "namespace kfusion::device::scalar"  # of every text
_FLAGS = ("-fatbin", "-std=c++20", "--fmad=false", "-Xfatbin=-compress-all")  # as NVRTC's, and what makes files small


class Text(NamedTuple):
    """A kernel to compile."""

    key: str
    entry: str
    source: str


_Started = tuple[list[Text], concurrent.futures.Future[bytes]]  # a unit, and its image


def texts(wanted: Iterable[Row], lengths: Iterable[int], *, clusters: bool = True) -> Iterator[Text]:
    """The kernels of calls on arrays in C order, each once.

    Args:
        wanted: of FUNCTIONS.
        lengths: of rows.
        clusters: whether the GPU has clusters of blocks.
    """
    known: set[Text] = set()
    for row, rows, length in itertools.product(wanted, _ROWS, list(lengths)):
        for dtype, given in itertools.product(row.dtypes, row.parameters):
            for kernel in _kernels(row.name, (rows, length), dtype, given, clusters) if row.has(length, dtype) else ():
                text = Text(_core.prebuilt_key(kernel.source, kernel.entry), kernel.entry, kernel.source)
                if text not in known:
                    known.add(text)
                    yield text


def _kernels(name: str, shape: tuple[int, int], dtype: str, given: tuple[str, ...], clusters: bool) -> list[Any]:
    """The kernels of one call."""
    length = shape[1]
    function: FusedFunction = getattr(_named, name)
    parameters = {p: Spec((length,), dtype, device="cuda:0") for p in given}
    graph = function._planned((Spec(shape, dtype, device="cuda:0"),), parameters).graph
    fuse = name.startswith("fused_")
    return list(_core.cuda_kernels(graph, device("H200").to_dict(), fuse, True, clusters, names=False))


# ---- compiling ------------------------------------------------------------------------------------------------------


def build(wanted: Sequence[Row], architectures: Sequence[str], nvcc: str, folder: Path, work: Path) -> None:
    """Compiles kernels into an `<architecture>.kernels` each, and prints how far it is.

    Args:
        wanted: of FUNCTIONS.
        architectures: as CMake names them: "90" (machine code and PTX), "80-real" (machine code), "90a".
        nvcc: the compiler's file.
        folder: of the result.
        work: folder for files that later builds use again.
    """
    work.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in _core.cuda_headers().items():
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_text(text)
    with concurrent.futures.ThreadPoolExecutor(_cores()) as pool:  # of all: no core waits for the last of one
        started = [_start(pool, wanted, architecture, nvcc, work) for architecture in architectures]
        for architecture, units in zip(architectures, started, strict=True):
            write(folder / f"{architecture}.kernels", _finished(architecture, units))


def _start(
    pool: concurrent.futures.Executor, wanted: Sequence[Row], architecture: str, nvcc: str, work: Path
) -> list[_Started]:
    command = [nvcc, *_FLAGS, *_code(architecture), f"-I{work}"]
    every = texts(wanted, LENGTHS, clusters=_number(architecture) >= 90)
    return [(unit, pool.submit(_compiled, unit, command, work)) for unit in _batches(every)]


def _finished(architecture: str, units: Sequence[_Started]) -> Iterator[tuple[list[Text], bytes]]:
    done, every = 0, sum(len(unit) for unit, _ in units)
    for unit, image in units:
        yield unit, image.result()
        done += len(unit)
        print(f"  {done} of {every} kernels for {architecture}", flush=True)


def _batches(every: Iterator[Text]) -> Iterator[list[Text]]:
    while unit := list(itertools.islice(every, _KERNELS_OF_A_UNIT)):
        yield unit


def _number(architecture: str) -> int:
    found = re.match(r"\d+", architecture)
    if not found:
        raise ValueError(f"kfusion: CMAKE_CUDA_ARCHITECTURES must be numbers such as 90 or 80-real, got {architecture}")
    return int(found[0])


def _code(architecture: str) -> list[str]:
    name, _, kind = architecture.partition("-")
    code = [f"sm_{name}"] * (kind != "virtual") + [f"compute_{name}"] * (kind != "real")
    return ["-gencode", f"arch=compute_{name},code=[{','.join(code)}]"]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _compiled(unit: Sequence[Text], command: Sequence[str], work: Path) -> bytes:
    """The image of a unit, compiled unless an earlier build has done so."""
    text = unit_text(unit)
    digest = hashlib.sha256("\n".join([*command, text, *(t.key for t in unit)]).encode()).hexdigest()
    source, image = work / f"{digest[:32]}.cu", work / f"{digest[:32]}.fatbin"
    if not image.exists():
        source.write_text(text)
        made = image.with_suffix(".made")
        subprocess.run([*command, "-o", str(made), str(source)], check=True)
        made.rename(image)
        source.unlink()
    return image.read_bytes()


def unit_text(unit: Sequence[Text]) -> str:
    """Several kernels as one text: each in a namespace of its own, with a number behind its name."""
    includes, bodies = dict[str, None](), []
    for i, kernel in enumerate(unit):
        lines = kernel.source.splitlines()
        includes |= dict.fromkeys(line for line in lines if line.startswith("#include"))
        body = "\n".join(line for line in lines if not line.startswith("#include"))
        body = body.replace(f"{_NAMESPACE} {{", f"{_NAMESPACE}::kernel_{i} {{")
        bodies.append(body.replace(f"{kernel.entry}(", f"{numbered(kernel.entry, i)}("))
    return "\n".join([*includes, *bodies, ""])


def numbered(entry: str, i: int) -> str:
    """What kernel i of a unit is called there."""
    return f"{entry}_{i}"


def write(file: Path, units: Iterable[tuple[Sequence[Text], bytes]]) -> None:
    """An archive, as cuda/compiler/prebuilt.cpp reads it."""
    lines, images, offset = [], [], 0
    for unit, image in units:
        lines += [f"{t.key} {numbered(t.entry, i)} {offset} {len(image)}\n" for i, t in enumerate(unit)]
        images.append(image)
        offset += len(image)
    file.write_bytes(f"kfusion-prebuilt-1 {len(lines)}\n{''.join(lines)}".encode() + b"".join(images))
