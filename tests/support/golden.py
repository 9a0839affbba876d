"""A small kernel of each skeleton, whose text and launch are kept in golden/ as they are generated.

python tests/support/golden.py --write          after a change that is meant to change them
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kfusion as kf
from kfusion import _core

GOLDEN = Path(__file__).parents[1] / "golden"


def relu_of_sum(x, y):
    return kf.relu(x + y)


def softmax(x):
    return kf.softmax(x)


def layernorm(x):
    return kf.layernorm(x)


def weighted_layernorm(x, weight, bias):
    return kf.layernorm(x, weight, bias)


def softmax_of_columns(x):
    return kf.softmax(x, axis=0)


def sum_of_columns(x):
    return x.sum(0)


def sum_of_all(x):
    return x.sum()


# By skeleton: a function, and the shape of its arguments (weight and bias have that of a row).
CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "pointwise": (relu_of_sum, (4096, 4096)),
    "packed_rows": (softmax, (100_000, 6)),
    "span_rows": (softmax, (100_000, 33)),
    "short_rows": (softmax, (100_000, 256)),
    "team_rows": (softmax, (4096, 4096)),
    "weighted_rows": (weighted_layernorm, (100_000, 1023)),
    "spread_rows": (softmax, (4, 65_536)),
    "ring_rows": (softmax, (4096, 65_536)),
    "long_rows": (layernorm, (4096, 2**23)),
    "split_rows": (sum_of_all, (4096, 4096)),
    "columns": (sum_of_columns, (4096, 4096)),
    "tiles": (softmax_of_columns, (4096, 4096)),
}


def text_of(skeleton: str) -> str:
    """The kernel's source and its launch on an H200."""
    function, shape = CASES[skeleton]
    names = inspect.signature(function).parameters
    dtype = "bfloat16" if skeleton == "weighted_rows" else "float32"
    arguments = [kf.spec(shape if name in "xy" else shape[-1:], dtype) for name in names]
    (kernel,) = _core.cuda_kernels(kf.trace(function, *arguments), kf.device("h200").to_dict())
    launch = "".join(f"// {name}: {value}\n" for name, value in kernel.launch.items() if value)
    return f"{kernel.source}\n{launch}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the files of golden/ anew")
    if parser.parse_args().write:
        GOLDEN.mkdir(exist_ok=True)
        for skeleton in CASES:
            (GOLDEN / f"{skeleton}.cu").write_text(text_of(skeleton))


if __name__ == "__main__":
    main()
