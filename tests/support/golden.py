"""A small kernel of each skeleton, and some that gather: texts and launches that golden/ keeps as they are generated.

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


def embeddings(ids, words, places, weight, bias):
    return kf.layernorm(kf.take(words, ids, 0) + places, weight, bias)


def losses(logits, targets):
    return kf.cross_entropy(logits, targets, ignore_index=-100, reduction="none")


def linear_gelu(x, w, b, residual):
    return kf.gelu(x @ w.T + b, approximate="tanh") + residual


def softmax_and_sums(x):
    return kf.softmax(x), x.sum(0)


def splade_head(h, w, b):
    return kf.log1p(kf.relu(h @ w.T + b)).max(1)


def largest_of_rows(x, w):
    return (x @ w.T).max(-1)


def queries_keys_values(x, q, k, v, a, b, c):
    return x @ q.T + a, x @ k.T + b, x @ v.T + c


# By skeleton: a function, and the shape of its arguments (weight and bias have that of a row).
CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "pointwise": (relu_of_sum, (4096, 4096)),
    "summed_ring_rows": (softmax_and_sums, (4096, 4096)),
    "summed_rows": (softmax_and_sums, (4096, 480)),
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


# What skeletons have in common: elements of a table, which are read through an index.
GATHERS = {
    "embeddings": (embeddings, [((8, 512), "int64"), ((30_522, 768),), ((512, 768),), ((768,),), ((768,),)]),
    "losses": (losses, [((4096, 32_000),), ((4096,), "int64")]),
}


# Products with what follows them, on tensor cores.
def gradients_before_gelu(dy: Any, w: Any, h: Any) -> Any:
    """The gradients of linear, gelu, linear: of what the first one gives, and of its bias."""
    (d,) = kf.vjp(kf.gelu, h)[1](dy @ w)
    return d, d.sum(0)


PRODUCTS = {
    "stored_product": (linear_gelu, [((8192, 4096),), ((16_384, 4096),), ((16_384,),), ((8192, 16_384),)]),
    "reduced_product": (splade_head, [((32, 256, 768),), ((30_522, 768),), ((30_522,),)]),
    "products_beside": (queries_keys_values, [((1024, 4096),), ((4096, 4096),), ((1024, 4096),), ((1024, 4096),),
                                              ((4096,),), ((1024,),), ((1024,),)]),
    "product_with_sums": (gradients_before_gelu, [((8192, 1024),), ((1024, 4096),), ((8192, 4096),)]),
    "product_in_parts": (largest_of_rows, [((4096, 1024),), ((32_000, 1024),)]),
}  # fmt: skip


def text_of(case: str) -> str:
    """The kernel's source and its launch on an H200."""
    if case in PRODUCTS:
        function, specs = PRODUCTS[case]
        return _text(function, [kf.spec(*spec, "bfloat16") for spec in specs])
    if case in GATHERS:
        function, specs = GATHERS[case]
        return _text(function, [kf.spec(*spec) for spec in specs])
    function, shape = CASES[case]
    names = inspect.signature(function).parameters
    dtype = "bfloat16" if case == "weighted_rows" else "float32"
    return _text(function, [kf.spec(shape if name in "xy" else shape[-1:], dtype) for name in names])


def _text(function: Callable[..., Any], arguments: list[Any]) -> str:
    kernel, *_ = _core.cuda_kernels(kf.trace(function, *arguments), kf.device("h200").to_dict())
    launch = "".join(f"// {name}: {value}\n" for name, value in kernel.launch.items() if value)
    return f"{kernel.source}\n{launch}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the files of golden/ anew")
    if parser.parse_args().write:
        GOLDEN.mkdir(exist_ok=True)
        for case in (*CASES, *GATHERS, *PRODUCTS):
            (GOLDEN / f"{case}.cu").write_text(text_of(case))


if __name__ == "__main__":
    main()
