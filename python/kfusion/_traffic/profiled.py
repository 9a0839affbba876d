"""What `kfusion.measure_traffic` runs under the profiler: functions unfused and fused, once unseen and once counted.

python -m kfusion._traffic.profiled '{"device": 0, "requests": [["module:function", [[[4096, 1024], "float32"]]]]}'
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _core, _user_code
from .._compare import versions as _versions
from .._fuse import fuse
from .._spec import FLOATS

_WHO = "kfusion.measure_traffic"


def main(argument: str) -> int:
    """Runs the requests; an error is one line on stderr and the status 2."""
    try:
        asked = json.loads(argument)
        for target, arrays in asked["requests"]:
            run(target, arrays, asked["device"])
    except Exception as error:  # whatever the function raises is said, not shown as a traceback
        text = (str(error).strip() or type(error).__name__).replace("\n", " ")
        print(text if text.startswith("kfusion") else f"{_WHO}: {type(error).__name__}: {text}", file=sys.stderr)
        return 2
    return 0


def run(target: str, arrays: Sequence[tuple[Sequence[int], str]], device: int) -> None:
    """Both versions of a function on arrays of these shapes and dtypes. A call compiles, the next one is profiled."""
    versions = _versions.versions_of(_user_code.load(target, _WHO))
    arguments = [random_array(tuple(shape), dtype, device) for shape, dtype in arrays]
    for version in (versions.unfused, versions.fused):
        version(*arguments)
        _core.cuda_profile(lambda: version(*arguments), device=device)  # noqa: B023


@fuse
def _sum_as(a: Any, b: Any, dtype: str) -> Any:
    return (a + b).astype(dtype)


def random_array(shape: tuple[int, ...], dtype: str, device: int) -> Any:
    """Sums of normal numbers, one for each extent of the first axis and one for each element of the rest, added on the
    GPU: gigabytes from the host would take longer than all the rest. Bools and integers, which may be indices, are 0
    or 1.
    """
    rng = np.random.default_rng(0)
    if dtype not in FLOATS:
        return _core.to_device(rng.integers(0, 2, shape).astype(dtype), device)
    first, rest = ((shape[0], *[1] * (len(shape) - 1)), shape[1:]) if len(shape) > 1 else ((1,) * len(shape), shape)
    a, b = (_core.to_device(rng.standard_normal(s, np.float32), device) for s in (first, rest))
    return _sum_as(a, b, dtype)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
