"""Fixtures that all tests share."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

import kfusion as kf
import plans
import selection
from gpu_turns import turn
from kfusion import _core
from kfusion._tracing import library_checks
from kinds import FRAMEWORKS, HAVE_GPU, Kind

hypothesis.settings.register_profile("kfusion", database=None)  # nothing is kept from an earlier run
hypothesis.settings.load_profile("kfusion")
os.environ["KFUSION_TUNE"] = "off"  # no plan depends on what was measured on this machine
# Inductor takes code from its cache that was made for registers of another width, and then writes past the end of
# arrays (torch 2.13): a folder for each instruction set, where a disk serves several machines.
os.environ.setdefault(
    "TORCHINDUCTOR_CACHE_DIR",
    f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}_{'_'.join(_core.available_isas())}",
)


@pytest.fixture
def torch() -> Any:
    """torch, on a GPU."""
    module = pytest.importorskip("torch")
    if not module.cuda.is_available():
        pytest.skip("torch without CUDA")
    module.cuda.synchronize()
    return module


@pytest.fixture(params=FRAMEWORKS)
def kind(request: pytest.FixtureRequest) -> Kind:
    request.param.require()
    return request.param


@pytest.fixture(params=[p for p in FRAMEWORKS if p.values[0].name in ("numpy", "own")])
def place(request: pytest.FixtureRequest) -> Kind:
    """The CPU and the GPU, each through the kind that needs no other library."""
    request.param.require()
    return request.param


@pytest.fixture(autouse=True)
def gpu_turn(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests of GPUs run beside those of other processes, or alone."""
    if request.node.get_closest_marker("cuda") is None:
        yield
        return
    alone = request.node.get_closest_marker("alone_on_gpu") is not None
    with turn(Path(tempfile.gettempdir()) / f"kfusion_gpu_{os.getuid()}", alone=alone):
        yield


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The test's own, drawn from that of the run."""
    print(f"--seed {request.config.option.seed}")
    return selection.number_of(request.config.option.seed, request.node.nodeid)


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture(autouse=True)
def torch_draws_from_the_seed(request: pytest.FixtureRequest) -> None:
    """torch's generator begins with the test's number, whatever ran before in this process."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(selection.number_of(request.config.option.seed, request.node.nodeid))


@pytest.fixture(params=_core.available_isas())
def isa(request: pytest.FixtureRequest) -> Any:
    before = _core.isa()
    _core.testing.set_isa(request.param)
    yield request.param
    _core.testing.set_isa(before)


@pytest.fixture
def threads() -> Any:
    before = kf.get_num_threads()
    yield kf.set_num_threads
    kf.set_num_threads(before)


# Files of tests of tracing, by how their names begin; none that compares whole graphs, nor draws in other threads.
_TRACE = ("test_trace_torch", "test_trace_numpy", "test_torch_operators", "test_library", "test_traced_values")


@pytest.fixture(autouse=True)
def calls_are_compared(request: pytest.FixtureRequest) -> Any:
    """Where functions of torch and NumPy are traced, each is called by itself, too (some 10 % of these files' time)."""
    is_compared = request.path.name.startswith(_TRACE)
    with library_checks.using(library_checks.raised) if is_compared else contextlib.nullcontext():
        yield


@pytest.fixture(params=plans.PLANS)
def plan(request: pytest.FixtureRequest) -> kf.Plan:
    """Plans of several kinds: one kernel, many, none."""
    return plans.PLANS[request.param]()


def pytest_addoption(parser: pytest.Parser) -> None:
    selection.add_options(parser)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist's
def pytest_cmdline_main(config: pytest.Config) -> None:
    selection.resolve(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A process of pytest-xdist draws from the run's seed."""
    node.workerinput["seed"] = node.config.option.seed


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("dist", "no") != "no" and config.option.verbose == 0:
        config.pluginmanager.register(selection.ByFile(config))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return selection.lacks_mark(collection_path, config.option.markexpr) or None


def pytest_report_header(config: pytest.Config) -> str:
    return selection.header(config)


@pytest.fixture
def is_sampled(request: pytest.FixtureRequest) -> bool:
    """Whether tests of thousands of cases may draw some of them."""
    return request.config.option.cases != 0


@pytest.fixture
def some(is_sampled: bool, rng: np.random.Generator) -> Callable[[Iterable[Any], int], list[Any]]:
    """some(rows, n): n of the rows, where the run takes a part of the cases, else all of them."""

    def draw(rows: Iterable[Any], count: int) -> list[Any]:
        given = list(rows)
        return [given[i] for i in rng.permutation(len(given))[:count]] if is_sampled else given

    return draw


# torch's own, where a process's first product is in the thread of a backward pass.
_NO_CONTEXT = "ignore:Attempting to run cuBLAS, but there was no current CUDA context:UserWarning"


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.filterwarnings(_NO_CONTEXT))
            item.add_marker(pytest.mark.skipif(not HAVE_GPU, reason="needs an NVIDIA GPU"))
    option = config.option
    if option.cases or option.one_in > 1:
        kept = selection.chosen((item.nodeid for item in items), option.seed, option.cases, option.one_in)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
        items[:] = [item for item in items if item.nodeid in kept]
