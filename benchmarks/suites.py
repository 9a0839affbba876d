"""What is measured: the suites and their cases, in the order they run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from kfusion import _timing
from kfusion._devices import hardware

from . import attention, convolutions, drawn, gradients, layers, losses, optimizers, products, training
from . import functions as f
from .cold_start import FirstCall
from .compiling import CompileCase
from .host import HostCase
from .inputs import Inputs
from .models import ModelCase, available
from .options import Options
from .results import Measured
from .throughput import Case

ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
LENGTHS = (
    1, 2, 3, 7, 8, 17, 32, 64, 127, 128, 256, 257, 512, 768, 769, 1000, 1023, 1024, 2048, 4095, 4096, 8192, 16384,
    32768, 50256, 50257, 65536, 131072, 131073, 262144, 524288, 1048576,
)  # fmt: skip
# Where those peers are asked that compile for a second or more for each length.
SLOW_PEERS_LENGTHS = {"float32": (64, 1024, 8192, 32768, 131072), "bfloat16": (1024, 8192, 131072)}
HALF_LENGTHS = (
    1, 8, 17, 64, 256, 257, 512, 1023, 1024, 4096, 8192, 32768, 50256, 50257, 131072, 131073, 524288, 1048576,
)  # fmt: skip
QUICK_LENGTHS = (17, 1023, 1024, 8192, 131072)
FEW_ROWS = ((1, 8192), (16, 8192), (8, 1048576), (1, 1048576))
STRIDED_LENGTHS = (64, 1024, 8192, 32768)
EXPERIMENT_SHAPE = (4096, 1024)  # the CuPy experiment's
CHAIN_SIZES = (1024, 4096, 16384)

_TORCH = ("torch", "torch.compile", "torch.compile.warm")
_ROW_PEERS = ("numpy", *_TORCH, "triton", "cupy", "jax.jit", "numba")
_MAP_PEERS = ("numpy", "numexpr", *_TORCH, "cupy", "cupy.fuse", "jax.jit", "numba")
_REDUCTION_PEERS = ("numpy", *_TORCH, "cupy", "jax.jit", "numba")
_BOTH = ("cold", "hot")
_INPUT_BYTES = {"cuda": 2**28, "cpu": 2**26}
_CPU_BYTES = 2**30  # of a case's arrays and result together
CPU_IN_CACHE = {"a core's L1": 2**14, "L2": 2**19, "L3": 2**23}


class Job(Protocol):
    """One case."""

    @property
    def suite(self) -> str:
        """That it belongs to."""
        ...

    @property
    def title(self) -> str:
        """The case in one line."""
        ...

    def measure(self, inputs: Inputs, options: Options, report: _timing.Progress) -> Measured:
        """Measures it."""
        ...


class Suite(NamedTuple):
    """devices: where it runs when no suite is named."""

    about: str
    devices: tuple[str, ...]
    cases: Callable[[str, Options], Iterator[Job]]


# ---- rows -----------------------------------------------------------------------------------------------------------


class _Rows(NamedTuple):
    """A function of rows: its name, how many parameters of a row's length it takes, its own peers.

    passes: over the matrix, 2 where the result is as large, 1 where it is small.
    """

    name: str
    function: Callable[..., Any]
    parameters: int = 0
    peers: tuple[str, ...] = _ROW_PEERS
    passes: int = 2


def _row_cases(*of: _Rows) -> Callable[[str, Options], Iterator[Job]]:
    def cases(suite: str, options: Options) -> Iterator[Job]:
        for rows in of:
            for dtype in options.dtypes or (("float32",) if options.quick else ("float32", "bfloat16")):
                yield from _lengths(suite, rows, dtype, options)
                yield from _layouts(suite, rows, dtype, options)

    return cases


def _lengths(suite: str, rows: _Rows, dtype: str, options: Options) -> Iterator[Case]:
    nbytes = (options.nbytes or _INPUT_BYTES[options.device]) // (2 if options.quick else 1)
    full = not options.quick and dtype == "float32"
    if _within(EXPERIMENT_SHAPE, dtype, options):
        yield _row_case(suite, rows, EXPERIMENT_SHAPE, dtype, states=_BOTH, slow_peers=full)
    for cols in QUICK_LENGTHS if options.quick else LENGTHS if dtype == "float32" else HALF_LENGTHS:
        count = max(nbytes // (cols * ITEM_BYTES[dtype]), 1)
        slow_peers = cols in SLOW_PEERS_LENGTHS.get(dtype, ()) and not options.quick
        yield _row_case(suite, rows, (count, cols), dtype, slow_peers=slow_peers)
    for shape in FEW_ROWS[:2] if options.quick else FEW_ROWS:
        if _within(shape, dtype, options):
            yield _row_case(suite, rows, shape, dtype, states=_BOTH, slow_peers=full and shape == FEW_ROWS[0])


def _layouts(suite: str, rows: _Rows, dtype: str, options: Options) -> Iterator[Case]:
    """Rows with gaps between them and columns that are contiguous; in one dtype."""
    if dtype != "float32" and not options.dtypes:
        return
    nbytes = options.nbytes or _INPUT_BYTES[options.device]
    for cols in (1024,) if options.quick else STRIDED_LENGTHS:
        for layout in ("strided", "transposed"):
            count = max(nbytes // (cols * ITEM_BYTES[dtype]), 1)
            yield _row_case(suite, rows, (count, cols), dtype, layout=layout, slow_peers=False)


def _row_case(suite: str, rows: _Rows, shape: tuple[int, int], dtype: str, **more: Any) -> Case:
    return Case(suite, rows.name, rows.function, shape, dtype, rows.peers, parameters=rows.parameters,
                leaves_little=rows.passes == 1, **more)  # fmt: skip


# ---- maps and reductions --------------------------------------------------------------------------------------------


def _chains(suite: str, options: Options) -> Iterator[Job]:
    for dtype in options.dtypes or ("float32", "bfloat16"):
        for n in CHAIN_SIZES[: 2 if options.quick else 3]:
            shape = _square(n, dtype, options)
            states = _BOTH if n == CHAIN_SIZES[0] else ("cold",)
            for function, arrays in _CHAINS:
                name = _formula(function)
                yield Case(suite, name, function, shape, dtype, _MAP_PEERS, arrays, states=states,
                           slow_peers=not options.quick)  # fmt: skip


_CHAINS = ((f.five_ops, 1), (f.five_ops_of_two, 2), (f.pointwise_chain, 3), (f.mul_add_relu, 2), (f.gelu, 1),
           (f.add_transposed, 2))  # fmt: skip


def _reductions(suite: str, options: Options) -> Iterator[Job]:
    for dtype in options.dtypes or ("float32",):
        shape = _square(4096 if options.quick else 16384, dtype, options)
        for function in (f.sum_rows, f.sum_columns, f.sum_all, f.max_rows, f.max_all, f.var_rows, f.var_columns):
            yield Case(
                suite, _formula(function), function, shape, dtype, _REDUCTION_PEERS, slow_peers=not options.quick
            )


def _square(n: int, dtype: str, options: Options) -> tuple[int, int]:
    """n x n, or the largest square that --bytes allows."""
    if options.nbytes is not None:
        n = min(n, max(math.isqrt(options.nbytes // ITEM_BYTES[dtype]), 1))
    return n, n


def _within(shape: tuple[int, int], dtype: str, options: Options) -> bool:
    """Whether --bytes allows a shape of its own size."""
    return options.nbytes is None or math.prod(shape) * ITEM_BYTES[dtype] <= options.nbytes


def _formula(function: Callable[..., Any]) -> str:
    return (function.__doc__ or function.__name__).splitlines()[0].rstrip(".")


# ---- the CPU at sizes beyond and within its caches ------------------------------------------------------------------


def _cpu(suite: str, options: Options) -> Iterator[Job]:
    available = hardware.available_memory_bytes() or 8 * _CPU_BYTES
    total = options.nbytes or min(_CPU_BYTES // (16 if options.quick else 1), available // 8)
    sizes = [(total, ("cold",)), *((n, ("hot",)) for n in (() if options.quick else CPU_IN_CACHE.values()))]
    for nbytes, states in sizes:
        cases: dict[str, _CpuCases] = dict.fromkeys(options.dtypes or ("float32",), (_CPU_MAPS, _CPU_ROWS))
        if states == ("cold",) and not (options.quick or options.dtypes):
            cases |= _CPU_OTHERS
        for dtype, (maps, all_rows) in cases.items():
            for function, arrays in maps[:: 3 if options.quick else 1]:
                # Whole lines: torch.compile (2.13) writes beyond the end of 1365 floats.
                elements = nbytes // ITEM_BYTES[dtype] // (arrays + 1) // 64 * 64
                yield Case(suite, _formula(function), function, (max(elements, 1),), dtype, _MAP_PEERS, arrays,
                           states=states, slow_peers=not options.quick)  # fmt: skip
            for rows, cols in all_rows[:: 3 if options.quick else 1]:
                count = nbytes // (rows.passes * ITEM_BYTES[dtype] * cols)
                if count > 0:
                    yield _row_case(suite, rows, (count, cols), dtype, states=states, slow_peers=not options.quick)


_CPU_MAPS = ((f.light, 2), (f.exp_chain, 2), (f.tanh_chain, 2), (f.gelu_chain, 3), (f.log_chain, 2), (f.five_ops, 1),
             (f.twenty_ops, 2))  # fmt: skip
_SOFTMAX, _LAYERNORM = _Rows("softmax", f.softmax), _Rows("layernorm", f.layernorm, 2)
_RMSNORM, _RELU_LAYERNORM = _Rows("rmsnorm", f.rmsnorm, 1), _Rows("relu_layernorm", f.relu_layernorm)
_SUM_ROWS = _Rows("sum over axis -1", f.sum_rows, passes=1)
_SUM_COLUMNS = _Rows("sum over axis 0", f.sum_columns, passes=1)
_CPU_ROWS = ((_SOFTMAX, 4096), (_LAYERNORM, 512), (_LAYERNORM, 1023), (_LAYERNORM, 4096), (_LAYERNORM, 16384),
             (_LAYERNORM, 262144), (_RELU_LAYERNORM, 4096), (_SUM_ROWS, 1024), (_SUM_COLUMNS, 4096))  # fmt: skip
_CpuCases = tuple[tuple[tuple[Callable[..., Any], int], ...], tuple[tuple[_Rows, int], ...]]  # maps, and rows
_CPU_OTHERS: dict[str, _CpuCases] = {
    "bfloat16": (((f.light, 2), (f.exp_chain, 2), (f.gelu_chain, 3)), ((_SOFTMAX, 4096), (_LAYERNORM, 4096))),
    "float64": (((f.sine, 1),), ()),
}

# ---- microseconds and milliseconds ----------------------------------------------------------------------------------


def _host(suite: str, options: Options) -> Iterator[Job]:
    peers = {
        "numpy": ("numpy", "numexpr", "jax.jit"),
        "torch cpu": ("torch", "torch.compile"),
        "torch": ("torch", "torch.compile", "triton"),
        "cupy": ("cupy", "cupy.fuse"),
        "kfusion": (),
    }
    for library in ("numpy", "torch cpu") if options.device == "cpu" else ("torch", "cupy", "kfusion"):
        if library.split()[0] in ("torch", "cupy") and library.split()[0] not in options.peers:
            continue
        for name, function in (("chain of five", f.five_ops), ("relu_layernorm", f.relu_layernorm)):
            for shape in ((16, 256), (0, 256)):
                yield HostCase(suite, name, function, shape, library, peers[library])
        if library == "torch":
            yield HostCase(suite, "product and gelu", f.product_gelu, (256, 256), library, ("torch",), "bfloat16")


def _cold_start(suite: str, options: Options) -> Iterator[Job]:
    shape = _square(EXPERIMENT_SHAPE[1], "float32", options)
    named = (
        ("chain of five", "five_ops", ("torch.compile", "jax.jit", "cupy.fuse")),
        ("softmax", "softmax", ("triton",)),
        ("layernorm", "layernorm", ()),
        ("relu_layernorm", "relu_layernorm", ()),
    )
    for name, function, asked in named[: 1 if options.quick else 4]:
        yield FirstCall(suite, name, function, shape, asked)
    if options.device == "cuda":
        yield FirstCall(suite, "product and gelu", "product_gelu", (4096, 4096), (), "bfloat16")


# ---- layers ---------------------------------------------------------------------------------------------------------

_SMALLER = {"cuda": 1, "cpu": 16}  # what the first extents are divided by
_LAYER_DTYPES = {"cuda": ("bfloat16", "float32"), "cpu": ("float32",)}


def _layers(suite: str, options: Options) -> Iterator[Job]:
    for dtype in options.dtypes or _LAYER_DTYPES[options.device]:
        yield from layers.cases(suite, dtype, _SMALLER[options.device] * (16 if options.quick else 1))


# ---- whole models ---------------------------------------------------------------------------------------------------

_MODEL_DTYPES = {"cuda": "bfloat16", "cpu": "float32"}


def _models(suite: str, options: Options) -> Iterator[Job]:
    batch, length = (1, 128) if options.device == "cpu" else (0, 0)
    for dtype in options.dtypes or (_MODEL_DTYPES[options.device],):
        for name in available():
            yield ModelCase(suite, name, dtype, not options.quick, batch, length)


_COMPILED_FIRST = ("BERT", "ResNet", "diffusion block", "GPT-2", "Llama", "ViT")  # of each kind one: it takes minutes


def _compile(suite: str, options: Options) -> Iterator[Job]:
    batch, length = (1, 128) if options.device == "cpu" else (0, 0)
    names = [n for n in _COMPILED_FIRST if n in available()]
    for dtype in options.dtypes or (_MODEL_DTYPES[options.device],):
        for name in dict.fromkeys([*names, *available()]):
            yield CompileCase(suite, name, dtype, not options.quick, batch, length)


# ---- convolutions ---------------------------------------------------------------------------------------------------


def _convolutions(suite: str, options: Options) -> Iterator[Job]:
    for dtype in options.dtypes or ("float16",):
        if options.device == "cuda":
            yield from convolutions.cases(dtype)


# ---- attention ------------------------------------------------------------------------------------------------------


def _attention(suite: str, options: Options) -> Iterator[Job]:
    for dtype in options.dtypes or ("bfloat16",):
        if options.device == "cuda":
            yield from attention.cases(dtype)


# ---- optimizers -----------------------------------------------------------------------------------------------------


def _optimizers(suite: str, options: Options) -> Iterator[Job]:
    for dtype in options.dtypes or ("bfloat16", "float32"):
        yield from optimizers.cases(dtype, options.device)


# ---- losses ---------------------------------------------------------------------------------------------------------


def _losses(suite: str, options: Options) -> Iterator[Job]:
    for dtype in options.dtypes or (_MODEL_DTYPES[options.device],):
        yield from losses.cases(dtype, options.device, 16 if options.quick else 1)


def _training(suite: str, options: Options) -> Iterator[Job]:
    for dtype in options.dtypes or (_MODEL_DTYPES[options.device],):
        yield from training.cases(dtype, options.device, 16 if options.quick else 1)


# ---- gradients -------------------------------------------------------------------------------------------------------


def _gradients(suite: str, options: Options) -> Iterator[Job]:
    for dtype in options.dtypes or ("float32", "bfloat16"):
        if options.device == "cpu":
            yield from gradients.cases(dtype, options)


# ---- products -------------------------------------------------------------------------------------------------------


def _products(suite: str, options: Options) -> Iterator[Job]:
    for dtype in options.dtypes or (_MODEL_DTYPES[options.device],):
        yield from products.cases(suite, dtype, options.device)


# ---- the suites -----------------------------------------------------------------------------------------------------

SUITES = {
    "relu_layernorm": Suite(
        "ReLU + LayerNorm over rows of 1 to 1M elements, few, strided, transposed; the CuPy experiment's two versions",
        ("cuda",),
        _row_cases(_RELU_LAYERNORM._replace(peers=(*_ROW_PEERS, "experiment"))),
    ),
    "norms": Suite(
        "layer norm and RMS norm with weights over the same rows", ("cuda",), _row_cases(_LAYERNORM, _RMSNORM)
    ),
    "softmax": Suite("softmax over the same rows", ("cuda",), _row_cases(_SOFTMAX)),
    "chains": Suite("elementwise chains through @kf.fuse, and x.T + y", ("cuda",), _chains),
    "reductions": Suite("sums, maxima and variances of rows, columns and all", ("cuda",), _reductions),
    "cpu": Suite("chains, rows and sums on the CPU, at 1 GB and within its caches", ("cpu",), _cpu),
    "host": Suite("what a call of a small array costs its caller", ("cpu", "cuda"), _host),
    "layers": Suite("rotary embedding, gates, norms, losses and the like, as today's models have them", (), _layers),
    "attention": Suite("attention, beside cuDNN's kernel of the same products", (), _attention),
    "products": Suite("products with what follows them, beside the library's bare products", (), _products),
    "convolutions": Suite("convolutions with what follows them, beside the library's alone", (), _convolutions),
    "optimizers": Suite("steps over the parameters of a GPT, beside torch's fused and foreach", (), _optimizers),
    "losses": Suite("losses over large vocabularies with their gradients, and the memory they take", (), _losses),
    "training": Suite("backward passes of norms, and steps of blocks of models with their memory", (), _training),
    "gradients": Suite("forward and backward passes on the CPU, beside torch's own", (), _gradients),
    "drawn": Suite(
        f"{drawn.COUNT} drawn functions; fails where fused takes over {drawn.BOUND} of unfused's or the library's time",
        (),
        drawn.cases,
    ),
    "models": Suite("calls of whole models, beside eager torch and torch.compile", (), _models),
    "compile": Suite("the same models through torch.compile: kfusion's backend beside inductor", (), _compile),
    "cold_start": Suite("first calls in fresh processes", ("cpu", "cuda"), _cold_start),
}


def chosen(names: Sequence[str], device: str) -> list[str]:
    """The suites to run, in order: the named ones, or those that fit the device.

    Raises:
        ValueError: a name is unknown.
    """
    for name in names:
        if name not in SUITES:
            raise ValueError(f"kfusion bench: a suite must be one of {', '.join(SUITES)}, got {name!r}")
    return [n for n, suite in SUITES.items() if (n in names if names else device in suite.devices)]


def jobs(names: Sequence[str], options: Options) -> list[Job]:
    """The cases of the suites that are asked for.

    Raises:
        ValueError: there are cases, and none has the text that its title must have.
    """
    all_jobs = [job for name in names for job in SUITES[name].cases(name, options)]
    found = [job for job in all_jobs if any(text in job.title for text in options.only.split("|"))]
    if all_jobs and not found:
        titles = "\n  ".join(job.title for job in all_jobs)
        raise ValueError(f"kfusion bench: no case has {options.only!r} in its title; there are\n  {titles}")
    return found
