"""Functions that set something, called by several threads, and Ctrl-C while they do."""

from __future__ import annotations

import decimal
import inspect
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from kfusion._environment import contents
from kfusion._environment.functional import Functional
from kfusion._environment.objects import TakenApart
from stateful import Holder, module_of
from sweeps import sweep

pytestmark = pytest.mark.native


def test_what_stays_is_there_all_the_time():
    """A destructor, which runs when what is replaced goes, sees what another thread would."""
    for is_object in (True, False):
        seen = []

        class Seer:
            def __del__(self):
                seen.append(list(held))  # noqa: B023

        o = Holder(Seer())
        held = vars(o) if is_object else {"held": o.held}
        target = o if is_object else held
        del o
        held["other"] = "stays"
        contents.set_contents(target, {"held": 1, "other": held["other"], "new": 2})
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
    fused, barrier, before = kf.fuse(module.f), threading.Barrier(4), sys.getswitchinterval()

    def work(_):
        barrier.wait(60)
        for n in (3, 4, 5):
            np.testing.assert_array_equal(fused(np.ones(n)), np.ones(n))

    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
    finally:
        sys.setswitchinterval(before)
    assert 0 < module.c.n <= 12
    assert type(module.c.n) is int
    np.testing.assert_array_equal(module.c.h, 2 * np.ones(len(module.c.h)))


# ---- Ctrl-C ----


def test_asking_passes_it_on(monkeypatch):
    def interrupted() -> None:
        raise KeyboardInterrupt

    fused = kf.fuse(lambda x: x * int(decimal.getcontext().prec))
    fused(np.ones(2))
    with monkeypatch.context() as patched:
        patched.setattr(decimal, "getcontext", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fused(np.ones(2))
    np.testing.assert_array_equal(fused(np.ones(2)), [28, 28])


def test_all_settings_or_none():
    """One comes at each line that Python runs meanwhile."""

    def check(line):
        done: list[int] = []
        left = [line]

        def trace(frame, event, _):
            if event == "line" and frame.f_code is contents.surely.__code__:
                left[0] -= 1
                if left[0] == 0:
                    raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            contents.surely([lambda i=i: done.append(i) if i not in done else None for i in range(3)])
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        assert done in ([], [0, 1, 2])

    sweep(check, [(line,) for line in range(24)])
