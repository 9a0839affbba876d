"""Measures the errors of the CPU's vectorised functions of one float32 over all 2^32 arguments, for every instruction
set, against NumPy's float64 functions (whose own error, of a few units in the 53rd digit, does not show).

Run by hand: python tests/support/ulp.py results/ulp.json [--every N] [names...], which adds to the file and prints the
table for docs/cpu.md. Takes minutes a function; `--every N` takes every Nth argument, and the file says so.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import vector_maps
from kfusion import _core
from kfusion._devices import hardware

CHUNK = 2**16
LEVELS = ("baseline", "avx2", "avx512")
SIGN = np.uint32(2**31)
MAPS = [row["name"] for row in _core.op_table() if row["kind"] == "map" and row["signature"] == "F_F"]


def erf(x: np.ndarray) -> np.ndarray:
    from scipy import special  # as exact as math.erf, and many times faster

    return special.erf(x)


EXACT = vector_maps.EXACT | {"erf": erf}


def same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))


class Measurement:
    """The errors of one function, by instruction set: the largest error, where it is, and how many results are not the
    nearest.
    """

    def __init__(self, name: str) -> None:
        self.exact, self.kernels, self.found, self.arguments = EXACT[name], {}, {}, 0
        for level in _core.available_isas():
            _core.testing.set_isa(level)
            self.kernels[level] = vector_maps.kernel(name, "float32", size=CHUNK)
            self.found[level] = {"max_ulp": 0.0, "at": 0.0, "not_nearest": 0}

    def add(self, bits: np.ndarray) -> None:
        """These positive arguments and their negatives, whose errors are the same where the function is odd or even."""
        x = bits.view(np.float32)
        results = self.compare(x)
        negative = (bits | SIGN).view(np.float32)
        for level, y in results.items():
            z = self.kernels[level](negative)
            flipped = (y.view(np.uint32) ^ SIGN).view(np.float32)
            if not (same(z, y).all() or same(z, flipped).all()):
                self.compare(negative)
                break
        else:
            for level, count in self.last.items():
                self.found[level]["not_nearest"] += count
        self.arguments += 2 * len(bits)

    def compare(self, x: np.ndarray) -> dict[str, np.ndarray]:
        with np.errstate(all="ignore"):
            exact = self.exact(x.astype(np.float64))
            nearest = exact.astype(np.float32)
        results = {level: run(x) for level, run in self.kernels.items()}
        self.last = {level: self.note(level, x, y, exact, nearest) for level, y in results.items()}
        return results

    def note(self, level: str, x: np.ndarray, y: np.ndarray, exact: np.ndarray, nearest: np.ndarray) -> int:
        [other] = np.nonzero(~same(y, nearest))
        if len(other):
            errors = vector_maps.ulp_errors(y[other], exact[other])
            worst, found = int(errors.argmax()), self.found[level]
            found["not_nearest"] += len(other)
            if errors[worst] > found["max_ulp"]:
                found |= {"max_ulp": round(float(errors[worst]), 4), "at": float(x[other[worst]])}
        return len(other)


def measure(name: str, every: int) -> dict[str, Any]:
    m = Measurement(name)
    for first in range(0, 2**31, CHUNK * every):
        m.add(np.minimum(first + np.arange(CHUNK) * every, 2**31 - 1).astype(np.uint32))
    for found in m.found.values():
        found["not_nearest"] /= m.arguments
        found["max_ulp"] = max(found["max_ulp"], 0.5)  # of what is rounded to nearest, no more is known
    return {"every": every, **m.found}


def table(found: dict[str, dict[str, Any]]) -> str:
    """The largest errors in Markdown."""
    rows = [["", *LEVELS, "arguments"], ["---"] * (len(LEVELS) + 2)]
    for name, of in sorted(found.items()):
        rows.append([name, *(f"{of[level]['max_ulp']:.2f}" for level in LEVELS)])
        rows[-1].append("all" if of["every"] == 1 else f"1 in {of['every']}")
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main(path: Path, names: list[str], every: int) -> None:
    found = json.loads(path.read_text())["float32"] if path.exists() else {}
    for name in names or MAPS:
        found[name] = measure(name, every)
        print(name, found[name], flush=True)
        facts = {"cpu": hardware.cpu(), "versions": hardware.versions([])}
        path.write_text(json.dumps(facts | {"float32": dict(sorted(found.items()))}, indent=1) + "\n")
    print(table(found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("names", nargs="*")
    options = parser.parse_intermixed_args()
    main(options.path, options.names, options.every)
