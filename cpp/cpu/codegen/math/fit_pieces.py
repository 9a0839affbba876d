"""Fits the tables of pieces_tables.hpp: odd functions that saturate, as 32 polynomials of degree 5 (pieces.hpp).

Centres are chosen where the function's value is nearly a float, so that the table's rounding costs nothing (S. Gal,
B. Bachelis, "An accurate elementary mathematical library for the IEEE floating point standard", 1991). The rest is a
weighted least squares fit whose weights grow where the relative error is large, in the way of C. L. Lawson, 1961.

Run: python fit_pieces.py > pieces_tables.hpp
"""

import itertools
import sys

import numpy as np
from mpmath import erf, mp, mpf, tanh

mp.dps = 30
PIECES, AN_OCTAVE, DEGREE = 32, 4, 4


def fit(f, points, weights):
    """The polynomial of those points whose largest weighted error is small, and that error."""
    a = np.vander(points, DEGREE + 1, increasing=True)
    y = np.array([float(f(mpf(p))) for p in points])
    w = np.ones(len(points))
    for _ in range(40):
        c = np.linalg.lstsq(a * (weights * w)[:, None], y * weights * w, rcond=None)[0]
        errors = abs(a @ c - y) * weights
        w *= np.sqrt(errors / errors.max() + 1e-3)
        w /= w.max()
    return c, errors.max()


def centre_of(f, low, high):
    """A float near the middle at which f is nearly a float."""

    def lost(x):
        value = f(mpf(float(x)))
        return abs(value - mpf(float(np.float32(float(value))))) / mpf(float(np.spacing(np.float32(float(value)))))

    middle = np.float32((low + high) / 2).view(np.int32)
    return min(((middle + 16 * k).astype(np.int32).view(np.float32) for k in range(-1500, 1500)), key=lost)


def pieces(f, low, top):
    """Rows: centres, values there, then coefficients of (f(c + t) - f(c)) / t; of the first piece (f(t) - t) / t."""
    first = np.float32(low).view(np.int32)
    bounds = [0.0, *((first + (k << 21)).astype(np.int32).view(np.float32).item() for k in range(1, PIECES + 1))]
    columns, worst = [], 0.0
    for begin, end in itertools.pairwise(bounds):
        if begin >= top:
            columns.append(columns[-1])
            continue
        x = (begin + end) / 2 - np.cos(np.pi * (np.arange(60) + 0.5) / 60) * (end - begin) / 2
        c = centre_of(f, begin, end) if begin > 0 else np.float32(0)
        value, t = f(mpf(float(c))), x - float(c)
        weights = np.array([abs(s / float(f(mpf(p)))) for p, s in zip(x, t, strict=True)])
        part = (lambda s, c=c, v=value: (f(mpf(float(c)) + s) - v) / s) if begin > 0 else (lambda s: f(s) / s - 1)
        coefficients, error = fit(part, t, weights)
        columns.append([c, float(value), *coefficients])
        worst = max(worst, error)
    print(f"largest relative error {worst:.1e}", file=sys.stderr)
    return np.array(columns, np.float32).T


def declaration(name, low, top, table):
    def numbers(row):
        texts = [f"{v:.9g}f" if "." in f"{v:.9g}" else f"{v:.9g}" for v in row]
        return "{" + ",\n ".join(", ".join(texts[k : k + 8]) for k in range(0, PIECES, 8)) + "}"

    rows = [numbers(row) for row in table]
    slopes = ",\n".join(rows[2:])
    return f"constexpr Pieces {name} = {{{low!r}f, {top!r}f,\n{rows[0]},\n{rows[1]},\n{{{slopes}}}}};"


if __name__ == "__main__":
    print("// Made by fit_pieces.py.\n#pragma once\n// clang-format off\n")
    print("namespace kfusion::cpu::ir {\nnamespace {\n")
    print(declaration("kTanhPieces", 0.0625, 9.5, pieces(tanh, 0.0625, 9.5)) + "\n")
    print(declaration("kErfPieces", 0.03125, 4.0, pieces(erf, 0.03125, 4.0)) + "\n")
    print("}  // namespace\n}  // namespace kfusion::cpu::ir")
