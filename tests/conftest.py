"""Fixtures that all tests share."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import uuid
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

import kfusion as kf
import plans
from kfusion import _core
from kfusion._tracing import library_checks
from kinds import FRAMEWORKS, Kind

os.environ["KFUSION_TUNE"] = "off"  # no plan depends on what was measured on this machine
# Inductor takes code from its cache that was made for registers of another width, and then writes past the end of
# arrays (torch 2.13): a folder for each instruction set, where a disk serves several machines.
os.environ.setdefault(
    "TORCHINDUCTOR_CACHE_DIR",
    f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}_{'_'.join(_core.available_isas())}",
)


@pytest.fixture(params=FRAMEWORKS)
def kind(request: pytest.FixtureRequest) -> Kind:
    request.param.require()
    return request.param


@pytest.fixture(params=[p for p in FRAMEWORKS if p.values[0].name in ("numpy", "own")])
def place(request: pytest.FixtureRequest) -> Kind:
    """The CPU and the GPU, each through the kind that needs no other library."""
    request.param.require()
    return request.param


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Another one in every run; a failure prints it, and KFUSION_TEST_SEED repeats it."""
    seed = int(os.environ.get("KFUSION_TEST_SEED", np.random.SeedSequence().entropy % 2**32))
    request.node.user_properties.append(("seed", seed))
    print(f"KFUSION_TEST_SEED={seed}")
    return seed


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """Fresh values in every run."""
    return np.random.default_rng(seed)


@pytest.fixture(params=_core.available_isas())
def isa(request: pytest.FixtureRequest) -> Any:
    before = _core.isa()
    _core.set_isa(request.param)
    yield request.param
    _core.set_isa(before)


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
    what = "run N of the tests: each function once, then more cases of each, drawn anew in every run"
    parser.addoption("--sample", type=int, metavar="N", help=what)


def pytest_configure(config: pytest.Config) -> None:
    """One seed for all processes of a run, which inherit it."""
    if config.option.sample is not None:
        os.environ.setdefault("KFUSION_TEST_SAMPLE", uuid.uuid4().hex[:8])


def pytest_report_header(config: pytest.Config) -> str | None:
    if config.option.sample is None:
        return None
    return f"sample of {config.option.sample} tests: KFUSION_TEST_SAMPLE={os.environ['KFUSION_TEST_SAMPLE']} repeats it"


@pytest.fixture
def is_sampled(request: pytest.FixtureRequest) -> bool:
    """Whether tests of thousands of cases may draw some of them."""
    return request.config.option.sample is not None


# torch's own, where a process's first product is in the thread of a backward pass.
_NO_CONTEXT = "ignore:Attempting to run cuBLAS, but there was no current CUDA context:UserWarning"


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.filterwarnings(_NO_CONTEXT))
    if config.option.sample is None or len(items) <= config.option.sample:
        return
    seed = os.environ["KFUSION_TEST_SAMPLE"]
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    turn = {}
    for name, of_one in cases.items():
        drawn = random.Random(f"{seed} {name}").sample(of_one, len(of_one))
        turn |= {item: k for k, item in enumerate(drawn)}
    # The k-th case of every function before any (k + 1)-th one.
    kept = set(sorted(items, key=turn.__getitem__)[: config.option.sample])
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]
