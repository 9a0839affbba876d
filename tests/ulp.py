"""Measures the errors of the CPU's vectorised functions of one float32 over all 2^32 arguments, for every instruction
set, against NumPy's float64 functions (whose own error, of a few units in the 53rd digit, does not show).

Run by hand: python tests/ulp.py results/ulp.json [names...], which adds to the file. Takes minutes a function.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import vector_maps
from kfusion import _core, _hardware

CHUNK = 2**18
MAPS = [row["name"] for row in _core.op_table() if row["kind"] == "map" and row["signature"] == "F_F"]


def erf(x: np.ndarray) -> np.ndarray:
    from scipy import special  # as exact as math.erf, and many times faster

    return special.erf(x)


EXACT = vector_maps.EXACT | {"erf": erf}


def measure(name: str) -> dict[str, dict[str, float]]:
    """By instruction set: the largest error, where it is, and the share of results that are rounded correctly."""
    kernels = {}
    for level in _core.available_isas():
        _core.set_isa(level)
        kernels[level] = vector_maps.kernel(name, "float32", size=CHUNK)
    found = {level: {"max_ulp": 0.0, "at": 0.0, "not_nearest": 0} for level in kernels}
    for first in range(0, 2**32, CHUNK):
        x = np.arange(first, first + CHUNK, dtype=np.uint32).view(np.float32)
        with np.errstate(all="ignore"):
            exact = EXACT[name](x.astype(np.float64))
            nearest = exact.astype(np.float32)
        for level, run in kernels.items():
            got = run(x)
            same = (got.view(np.uint32) == nearest.view(np.uint32)) | (np.isnan(got) & np.isnan(nearest))
            [other] = np.nonzero(~same)
            if not len(other):
                continue
            errors = vector_maps.ulp_errors(got[other], exact[other])
            worst, f = int(errors.argmax()), found[level]
            f["not_nearest"] += len(other)
            if errors[worst] > f["max_ulp"]:
                f |= {"max_ulp": round(float(errors[worst]), 4), "at": float(x[other[worst]])}
    for f in found.values():
        f["not_nearest"] /= 2**32
        f["max_ulp"] = max(f["max_ulp"], 0.5)  # of what is rounded to nearest, no more is known
    return found


def table(found: dict[str, dict[str, dict[str, float]]]) -> str:
    """The largest errors in Markdown."""
    levels = list(next(iter(found.values())))
    rows = [["", *levels], ["---"] * (len(levels) + 1)]
    rows += [[name, *(f"{of[level]['max_ulp']:.2f}" for level in levels)] for name, of in found.items()]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main(path: Path, names: list[str]) -> None:
    before = json.loads(path.read_text()) if path.exists() else {"float32": {}}
    for name in names or MAPS:
        found = measure(name)
        print(name, found, flush=True)
        before["float32"] = dict(sorted((before["float32"] | {name: found}).items()))
        facts = {"cpu": _hardware.cpu(), "versions": _hardware.versions(set())}
        path.write_text(json.dumps(facts | {"float32": before["float32"]}, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
