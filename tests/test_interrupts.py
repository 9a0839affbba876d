"""Ctrl-C while a call asks for settings, or sets what the function sets."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import kfusion as kf
from kfusion._graph import contents

pytestmark = pytest.mark.native


def test_asking_passes_it_on():
    class Asks:
        @staticmethod
        def interrupted() -> None:
            raise KeyboardInterrupt

    import decimal

    fused = kf.fuse(lambda x: x * int(decimal.getcontext().prec))
    fused(np.ones(2))
    known = decimal.getcontext
    decimal.getcontext = Asks.interrupted
    try:
        with pytest.raises(KeyboardInterrupt):
            fused(np.ones(2))
    finally:
        decimal.getcontext = known
    np.testing.assert_array_equal(fused(np.ones(2)), [28, 28])


@pytest.mark.parametrize("line", range(24))
def test_all_settings_or_none(line):
    """One comes at each line that Python runs meanwhile."""
    done: list[int] = []
    steps = [lambda i=i: done.append(i) if i not in done else None for i in range(3)]
    left = [line]

    def trace(frame, event, _):
        if event == "line" and frame.f_code is contents.surely.__code__:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        contents.surely(steps)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    assert done in ([], [0, 1, 2])
