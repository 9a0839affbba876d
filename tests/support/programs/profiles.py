"""What random programs are made of: profiles of their steps, dtypes and extents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .values import FLOATS


@dataclass(frozen=True)
class Profile:
    """What programs are made of: each kind of step, as often as it stands here; dtypes of inputs and casts."""

    name: str
    kinds: tuple[str, ...]
    dtypes: tuple[str, ...]
    casts: tuple[str, ...]
    steps: tuple[int, int] = (2, 14)
    whole: bool = False  # inputs are small integers
    layers: int = 0  # each made of the one or two before it, and all of them needed
    bases: tuple[tuple[int, int], ...] = ()  # the extents that shapes are made of, other than those of all profiles
    interfaces: bool = False  # arguments and results are in containers, beside what is made of sizes
    of_torch: bool = False  # programs of attention.py, with their gradients
    sets: bool = False  # something is set beside the results


def many(**counts: int) -> tuple[str, ...]:
    return tuple(name for name, count in counts.items() for _ in range(count))


_ALL = ("float32", "float32", "float64", "float16", "bfloat16")
# Rows and columns of as many as sums of parts of the rows need (kfusion/plan/rewrites/partial_sums.cpp).
_PARTS = (*((33, 128), (64, 130), (130, 64), (96, 131), (130, 520), (520, 130)) * 3, (64, 1030))
_TALL = ((130, 520), (520, 130), (33, 67), (7, 2050), (2050, 7))  # whose values are large for what broadcasts to them
PROFILES = (
    Profile("anything", many(unary=2, function=1, binary=4, scale=1, compare=1, select=1, reduce=3, normalise=2,
                              centre=2, view=3, cast=1, composite=1, logical=1), _ALL, (*_ALL, "int32"), (2, 16)),
    Profile("axes", many(binary=5, reduce=3, nested=2, normalise=3, centre=4, view=2, scale=1),
            ("float32", "float64"), _ALL, (3, 14)),
    Profile("exact", many(binary=4, reduce=3, nested=2, centre=2, view=4, scale=1, select=1, compare=1, logical=1,
                           cast=1, exact=2), ("float32", "float32", "float64", "int32", "int64"),
            ("float32", "float64", "int32", "int64"), (3, 16), whole=True),
    Profile("elementwise", many(unary=2, function=1, binary=5, scale=2, compare=1, select=1, view=2, cast=1),
            ("float32", "float64"), ("float32", "float64"), (3, 20)),
    Profile("casts", many(unary=1, binary=3, scale=3, round=5, view=2, reduce=1), ("float32", "float64"), _ALL,
            (3, 20)),
    Profile("views", many(binary=5, view=6, unary=1, reduce=1), ("float32",), ("float32",), (3, 14), whole=True),
    Profile("layers", ("layer",), ("float32", "float64"), _ALL, (3, 3), layers=3),
    Profile("chain", many(normalise=4, centre=3, binary=1), ("float32", "float64"), _ALL, (3, 12)),
    Profile("products", many(matmul=3, convolve=1, take=1, along=1, unary=2, binary=3, view=3, reduce=2, cast=1),
            ("float32", "float64"), ("float32", "float64"), (2, 10)),
    Profile("calls", many(sort=2, scan=2, write=2, unary=2, binary=3, view=2, reduce=2, join=1, take=1),
            ("float32", "float64"), ("float32", "float64"), (2, 10)),
    Profile("writes", many(write=5, unary=2, binary=4, view=3, reduce=2, join=2, cast=1), _ALL,
            (*_ALL, "int32"), (2, 12)),
    Profile("gathers", many(take=3, along=3, unary=2, binary=4, view=3, reduce=2, normalise=1, join=1, cast=1), _ALL,
            (*_ALL, "int32"), (2, 12)),
    Profile("joins", many(join=5, unary=2, binary=4, view=2, reduce=2, normalise=1, scale=1, cast=1, logical=1,
                           compare=1), _ALL, _ALL, (2, 12)),
    Profile("random bits", many(kept=4, unary=2, binary=3, view=3, reduce=2, normalise=1, scale=1, cast=1, join=1),
            _ALL, _ALL, (2, 12)),
    Profile("sums of columns", many(beside=3, reduce=2, centre=1, unary=1, binary=3, view=1, cast=1, composite=1),
            _ALL, _ALL, (2, 8), bases=_PARTS),
    Profile("broadcasts", many(broadcast=4, unary=1, binary=2, reduce=2, centre=1, view=1, cast=1, join=1),
            ("float32", "float64"), _ALL, (2, 8), bases=_TALL),
    Profile("composites", many(composite=4, view=4, binary=2, reduce=1, cast=1, compare=1), _ALL, _ALL, (2, 8)),
    Profile("attention", (), (), (), of_torch=True),
)  # fmt: skip
_TRAINING = Profile("training", many(composite=4, head=5, matmul=2, along=1, take=1, binary=3, unary=2, function=2,
                                     centre=1, normalise=1, reduce=2, view=1, select=1, compare=1),
                    _ALL, _ALL, (3, 14))  # fmt: skip
# Mostly small ones; vectors and tiles with their remainders, rows that are cut, work for several threads.
BASES = [(4, 8), (3, 5), (7, 11), (1, 6), (8, 8), (2, 3)] * 4 + [(33, 67), (2, 1030), (1030, 2), (16, 64)] * 2
BASES += [(0, 5), (130, 520)]


def in_float64(profile: Profile) -> Profile:
    def wide(dtypes: Sequence[str]) -> tuple[str, ...]:
        return tuple("float64" if d in FLOATS else d for d in dtypes)

    return replace(profile, dtypes=wide(profile.dtypes), casts=wide(profile.casts))


# The profiles of programs whose gradients are compared; what rounds to half types has none that are exact.
GRAD_PROFILES = tuple(in_float64(p) for p in (*PROFILES, _TRAINING) if "round" not in p.kinds and not p.of_torch)
_FEW = ((4, 8), (3, 5), (7, 11), (2, 3), (6, 1), (1, 6), (8, 8), (16, 64))
_SIZED = Profile("sizes", many(sized=4, unary=2, binary=3, reduce=1, scale=1), ("float64",), ("float64",), (1, 6))
_STATES = Profile(
    "states", many(unary=3, binary=3, view=2, reduce=2, write=1), ("float64",), ("float64",), (1, 6), sets=True
)
OWN_PROFILES = (
    Profile("own functions", many(own=5, unary=2, binary=4, scale=1, reduce=2, normalise=1, view=2, select=1, compare=1,
                                  matmul=1), ("float64",), ("float64",), (2, 12)),
)  # fmt: skip
CALL_PROFILES = tuple(replace(p, interfaces=True, bases=_FEW) for p in (_SIZED, _STATES, *GRAD_PROFILES))
