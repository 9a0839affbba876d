"""Functions that set something, called by several threads."""

from __future__ import annotations

import inspect
import sys
import threading
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from kfusion._graph.contents import set_contents
from kfusion._graph.functional import Functional
from kfusion._graph.objects import TakenApart
from stateful import Holder, module_of

pytestmark = pytest.mark.native


@pytest.mark.parametrize("is_object", [True, False], ids=["object", "dict"])
def test_what_stays_is_there_all_the_time(is_object):
    """A destructor, which runs when what is replaced goes, sees what another thread would."""
    seen = []

    class Seer:
        def __del__(self):
            seen.append(list(held))

    o = Holder(Seer())
    held = vars(o) if is_object else {"held": o.held}
    target = o if is_object else held
    del o
    held["other"] = "stays"
    set_contents(target, {"held": 1, "other": held["other"], "new": 2})
    assert held == {"held": 1, "other": "stays", "new": 2}
    assert len(seen) == 1
    assert "other" in seen[0]


@pytest.mark.parametrize("body", ["o.new, o.held = 1, 2; del o.gone", "o.held = 3", "o.gone = vars(o).pop('held')"])
def test_what_other_threads_set_during_a_call_stays(body):
    scope: dict[str, Any] = {}
    exec(f"def f(o):\n    {body}\n", scope)
    plain, other = Holder(0), Holder(0)
    plain.gone = other.gone = "there"
    scope["f"](plain)
    apart = TakenApart(inspect.signature(scope["f"]), [other], {})
    returned = Functional(scope["f"], "f", inspect.signature(scope["f"]))(*apart.args)
    other.fresh = "of another thread"
    apart.put_back(returned)
    assert vars(other) == {**vars(plain), "fresh": "of another thread"}


@pytest.mark.parametrize("repeat", range(3))
def test_first_calls_of_several_threads(repeat):
    """Each count is one that the plain function could have found, nothing of a trace is seen, and nobody fails."""
    module = module_of("c.n += 1; c.h = x * 2; return x * 1 + np.zeros(len(x))")
    fused, failed = kf.fuse(module.f), []
    barrier = threading.Barrier(4)

    def work():
        try:
            barrier.wait()
            for n in (3, 4, 5):
                np.testing.assert_array_equal(fused(np.ones(n)), np.ones(n))
        except BaseException as error:
            failed.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not failed
    assert 0 < module.c.n <= 12
    assert type(module.c.n) is int
    np.testing.assert_array_equal(module.c.h, 2 * np.ones(len(module.c.h)))
