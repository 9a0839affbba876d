"""Fixtures that all tests share."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import kfusion as kf
import plans
from kfusion import _core
from kinds import FRAMEWORKS, Kind


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


@pytest.fixture(params=plans.PLANS)
def plan(request: pytest.FixtureRequest) -> kf.Plan:
    """Plans of several kinds: one kernel, many, none."""
    return plans.PLANS[request.param]()
