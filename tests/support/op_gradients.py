"""Gradients of torch's own database of operators: fused, each is compared with eager torch, at ordinary points and with
zeros, ties, bounds, saturation, infinities, NaN and masked rows placed into its arguments.

As a script it goes over all entries, or those that are named, and prints what differs:

    python tests/support/op_gradients.py [--names NAME ...] [--samples N] [--draws N] [--seed N] [--part I/N]
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as trees

import kfusion as kf

RTOL = 1e-6
INF, NAN = float("inf"), float("nan")
# What is placed into arguments, by the kind of point. `bounds` has the numbers of a call itself, too.
VALUES = {
    "ordinary": [],
    "zeros": [0.0, -0.0],
    "ties": [],
    "bounds": [1.0, -1.0, 0.5, -0.5, 1e-12, 1e-8, 1e-6],
    "saturation": [40.0, -40.0, 800.0, -800.0, 1e30, -1e30, 1e-30],
    "infinities": [INF, -INF],
    "nan": [NAN],
    "masked rows": [-INF],
}
# Entries that are not compared, and why.
LEFT_OUT = {
    "random numbers": "bernoulli cauchy exponential geometric log_normal normal uniform multinomial svd_lowrank "
    "pca_lowrank nn.functional.fractional_max_pool nn.functional.dropout nn.functional.alpha_dropout "
    "nn.functional.feature_alpha_dropout nn.functional.rrelu rand_like randn_like nn.functional.multi_head_attention",
    "no defined elements": "empty_like new_empty",
    "of GPUs, or sparse": "jiterator sparse",
}
_NAMES = tuple(" ".join(LEFT_OUT.values()).split())
# What kf.TraceError says, in errors of other kinds.
REFUSALS = ("have no gradients here", "call it under torch.no_grad()", "dtype must be one of")
# Why entries differ from torch; at which points, "" for all; and which. docs/using.md lists them.
DIFFERENT = (
    (
        "torch's kernels for vectors and for the elements left over differ from each other there",
        "zeros, bounds, saturation, nan",
        ["logit", "elu", "selu", "celu", "hardshrink", "softshrink", "hardswish", "relu6", "hardtanh"],
    ),
    ("a tensor that is overwritten has the gradient None, and zeros in torch", "", ["fill", "zero_"]),
    ("cancellation near 0 leaves other digits in both", "bounds, saturation", ["sinc", "special_sinc"]),
    ("products overflow in another order of the factors", "saturation", ["prod", "masked_prod"]),
    ("the signs of zeros decide those of infinities of singular matrices", "zeros, masked rows", ["linalg_cond"]),
    ("infinite logits are multiplied by 0", "infinities, masked rows", ["multilabel_soft_margin_loss"]),
    (
        "rows of infinite or NaN scores are 0 or NaN by torch's kernel",
        "infinities, nan, masked rows, saturation",
        ["scaled_dot_product_attention"],
    ),
)
KNOWN = {name: points for _, points, names in DIFFERENT for name in names}
ENTRIES = [
    op for op in op_db if not op.name.startswith(_NAMES) and torch.float64 in op.supported_backward_dtypes("cpu")
]


@dataclass(frozen=True)
class Difference:
    """What is wrong with an entry at one point."""

    entry: str
    call: int
    kind: str
    seed: int
    what: str  # "error", "value" or "gradient"
    text: str

    def __str__(self) -> str:
        return f"{self.entry} call {self.call}, {self.kind}, seed {self.seed}: {self.what} {self.text}"


@dataclass(frozen=True)
class Call:
    """An entry's function with arguments; `leaves` are the tensors of floats among these."""

    name: str
    function: Callable[..., Any]
    structure: Any
    arguments: list[Any]

    @property
    def places(self) -> list[int]:
        return [i for i, a in enumerate(self.arguments) if isinstance(a, torch.Tensor) and a.is_floating_point()]

    @property
    def numbers(self) -> list[float]:
        return [float(a) for a in self.arguments if type(a) in (int, float) and abs(a) < 1e6]

    def __call__(self, *leaves: Any) -> Any:
        given = list(self.arguments)
        for i, leaf in zip(self.places, leaves, strict=True):
            given[i] = leaf
        args, kwargs = trees.tree_unflatten(given, self.structure)
        return self.function(*args, **kwargs)


def calls(op: Any, most: int) -> Iterator[Call]:
    """Some of the database's calls of an entry, in float64."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = list(op.sample_inputs("cpu", torch.float64, requires_grad=False))
    for sample in samples[:: -(-len(samples) // most)]:
        arguments, structure = trees.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        if not any(k.startswith("dropout") and v for k, v in sample.kwargs.items()):
            yield Call(op.formatted_name, op.op, structure, arguments)


def placed(x: Any, kind: str, numbers: list[float], rng: np.random.Generator) -> Any:
    """x with values of a kind at some of its places."""
    values = np.array(x.detach().numpy())
    pool = VALUES[kind] + (numbers + [-n for n in numbers] if kind == "bounds" else [])
    flat, count = values.reshape(-1), values.size
    if kind == "masked rows" and values.ndim:
        rows = values.reshape(-1, values.shape[-1]) if values.shape[-1] else values
        rows[rng.random(len(rows)) < 0.3] = rng.choice([-INF, 0.0])
    elif count:
        some = rng.random(count) < rng.choice([0.2, 0.5])
        flat[some] = rng.choice(flat if kind == "ties" else pool, some.sum()) if pool or kind == "ties" else flat[some]
    return torch.from_numpy(values.reshape(x.shape))


def leaves_of(call: Call, kind: str, rng: np.random.Generator) -> list[Any]:
    """The call's float tensors, where most of them have values of the kind."""
    found = [call.arguments[i] for i in call.places]
    chosen = rng.random(len(found)) < 0.7
    if len(found):
        chosen[rng.integers(len(found))] = True
    return [placed(x, kind, call.numbers, rng) if c else x.detach().clone() for x, c in zip(found, chosen, strict=True)]


def gradients(
    f: Callable[..., Any], leaves: list[Any], seed: int, numbers: Sequence[int] = ()
) -> tuple[list[Any], list[Any], list[int]]:
    """Results, gradients of the leaves for drawn gradients of the results that have some, and the numbers of these."""
    given = [x.clone().requires_grad_() for x in leaves]
    results = [y for y in trees.tree_leaves(f(*given)) if isinstance(y, torch.Tensor)]
    numbers = numbers or [i for i, y in enumerate(results) if y.is_floating_point() and y.requires_grad]
    draw = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(results[i].shape, generator=draw, dtype=results[i].dtype) for i in numbers]
    pairs = [(results[i], g) for i, g in zip(numbers, drawn, strict=True) if results[i].requires_grad]
    made, cotangents = zip(*pairs, strict=True) if pairs else ((), ())
    found = torch.autograd.grad(made, given, cotangents, allow_unused=True) if made else [None] * len(given)
    return [y.detach() for y in results], list(found), list(numbers)


def difference(call: Call, leaves: list[Any], seed: int) -> tuple[str, str] | None:
    """What is wrong with the fused call's gradients, as a word and a text; a word alone where nothing was compared."""
    try:
        values, want, numbers = gradients(call, leaves, seed)
    except Exception:
        return ("torch refuses", "")
    try:
        # the structure is the same for all leaves, and no leaf is captured
        got_values, got, _ = gradients(kf.fuse(lambda *a: call(*a)), leaves, seed, numbers)
    except Exception as error:
        is_refusal = isinstance(error, kf.TraceError) or any(t in str(error) for t in REFUSALS)
        return ("refused" if is_refusal else "error", f"{type(error).__name__}: {str(error)[:200]}")
    largest = max((float(x[x.isfinite()].abs().max()) for x in leaves if x.isfinite().any()), default=0.0)
    if text := unlike(got_values, values, largest):
        return ("value", text)
    if text := unlike(got, want, largest):
        return ("gradient", text)
    return None


def is_known(entry: str, kind: str) -> bool:
    """Whether a difference is in the table: of the entry, or of its points of a kind."""
    points = KNOWN.get(entry.removeprefix("nn_functional_"))
    return points is not None and (not points or kind in points.split(", "))


def unlike(got: list[Any], want: list[Any], largest: float) -> str:
    """How the first of what differs does; what cancels leaves something of the largest argument. Torch has tensors
    without elements where others are None.
    """
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        if a is None or b is None:
            if (a is None) != (b is None) and (a if b is None else b).numel():
                return f"{i}: {'None' if a is None else 'a tensor'}, torch {'None' if b is None else 'a tensor'}"
            continue
        b = b.to_dense() if b.is_sparse else b  # ours are dense
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{i}: {a.dtype} {tuple(a.shape)}, torch {b.dtype} {tuple(b.shape)}"
        if not b.is_floating_point():
            if not torch.equal(a, b):
                return f"{i}: other {b.dtype}"
            continue
        finite = b[b.isfinite()].abs()
        scale = max(largest, float(finite.max()) if finite.numel() else 0.0)
        same = (
            torch.isclose(a, b, rtol=RTOL, atol=RTOL * 1e-3 * scale + 1e-12) | b.isnan()
        )  # infinity times 0, in torch
        if not bool(same.all()):
            place = tuple(int(n) for n in (~same).nonzero()[0])
            return f"{i}{list(place)}: {float(a[place]):.6g}, torch {float(b[place]):.6g}"
    return ""


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """For arrays as small as these, threads only wait for each other."""
    threads = kf.get_num_threads(), torch.get_num_threads()
    kf.set_num_threads(1), torch.set_num_threads(1)
    try:
        yield
    finally:
        kf.set_num_threads(threads[0]), torch.set_num_threads(threads[1])


def differences(
    op: Any, rng: np.random.Generator, samples: int, draws: int, counts: collections.Counter[str] | None = None
) -> Iterator[Difference]:
    """What is wrong with an entry, `draws` times at each kind of point of some of its calls."""
    for number, call in enumerate(calls(op, samples)):
        for kind in VALUES:
            for _ in range(draws if kind != "ordinary" else 1):
                seed = int(rng.integers(2**31))
                found = difference(call, leaves_of(call, kind, np.random.default_rng(seed)), seed)
                if counts is not None:
                    counts[found[0] if found else "right"] += 1
                if found and found[1] and found[0] != "refused" and not is_known(call.name, kind):
                    yield Difference(call.name, number, kind, seed, *found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="*")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", default="0/1")
    args = parser.parse_args()
    part, parts = map(int, args.part.split("/"))
    chosen = [op for op in ENTRIES if not args.names or op.formatted_name in args.names or op.name in args.names]
    counts: collections.Counter[str] = collections.Counter()
    warnings.simplefilter("ignore")
    wrong = 0
    with one_thread():
        for op in chosen[part::parts]:
            found = list(differences(op, np.random.default_rng(args.seed), args.samples, args.draws, counts))
            wrong += bool(found)
            for what in dict.fromkeys(d.what for d in found):
                alike = [d for d in found if d.what == what]
                kinds = ", ".join(dict.fromkeys(d.kind for d in alike))
                print(f"{len(alike)} ({kinds}); {alike[0]}", flush=True)
    print(f"{len(chosen[part::parts])} entries, {dict(counts)}; {wrong} entries differ")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
