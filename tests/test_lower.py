"""Groups as loops: what the executors run, on awkward functions and on random graphs."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st

import kfusion as kf
import loops
from graph_strategies import cases
from kfusion import _core

DEVICE = kf.device("H200").to_dict()


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(cases(), st.booleans())
def test_loops_compute_what_their_graph_does(case, fuse):
    case.check(loops.run(_core.lower(case.graph, DEVICE, fuse), case.inputs))
