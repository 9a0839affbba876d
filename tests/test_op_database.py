"""torch's own database of its operators, with arguments for each: fused, every one gives what it gives by itself, or is
refused by a TraceError; so do numbers beyond dtypes, and gradients at zeros, ties and infinities. Needs torch's test
utilities, and what those import (expecttest)."""

from __future__ import annotations

import contextlib
import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import kfusion as kf
from kfusion._tracing import library_checks

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")
operators = pytest.importorskip("torch.testing._internal.common_methods_invocations").op_db
import op_gradients  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]  # torch's own warnings
DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture
def one_thread():
    """For arrays as small as these, threads only wait for each other. Arguments are the same in every run."""
    threads = kf.get_num_threads(), torch.get_num_threads()
    kf.set_num_threads(1)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    kf.set_num_threads(threads[0])
    torch.set_num_threads(threads[1])


# ---- results --------------------------------------------------------------------------------------------------------

# The names of operators that are not compared, and why.
_LEFT_OUT = {
    "of no arrays": "arange broadcast_shapes empty empty_permuted empty_strided eye full linspace logspace ones "
    "scalar_tensor zeros signal.windows tril_indices triu_indices",
    "of random numbers": "cauchy exponential geometric log_normal normal uniform randn randint rand_like randn_like "
    "randint_like svd_lowrank pca_lowrank nn.functional.fractional_max_pool nn.functional.feature_alpha_dropout "
    "nn.functional.dropout nn.functional.alpha_dropout "
    "nn.functional.scaled_dot_product_attention",
    "of no defined elements": "empty_like new_empty new_empty_strided",
    "of GPUs, or sparse": "jiterator sparse",
    "of other shapes or dtypes without data": "native_batch_norm _native_batch_norm_legit _batch_norm_with_update "
    "native_layer_norm addbmm",
    "of infinities only where torch rounds each step": "nn.functional.soft_margin_loss",
}
_NAMES = tuple(" ".join(_LEFT_OUT.values()).split())
_NEAR = {"rtol": 3e-4, "atol": 3e-4, "equal_nan": True}  # which small integers cannot be without being equal
COMPARED = [op for op in operators if not op.name.startswith(_NAMES)]


def differences(op, dtype, rng, most):
    """What is wrong with the operator on `most` of a dozen of the database's arguments, drawn, twice each."""
    if not op.supports_dtype(getattr(torch, dtype), "cpu"):
        return
    samples = list(op.sample_inputs("cpu", getattr(torch, dtype)))

    def plain(*args, **kwargs):
        return op.op(*args, **kwargs)

    fused = kf.fuse(plain)
    dozen = samples[:: -(-len(samples) // 12)]
    for i in rng.permutation(len(dozen))[:most]:
        sample = dozen[i]
        for _ in range(2):  # the second call is known
            try:
                want = plain(sample.input, *sample.args, **sample.kwargs)
            except Exception:
                continue
            try:
                got = fused(sample.input, *sample.args, **sample.kwargs)
                torch.testing.assert_close(got, want, **_NEAR)
            except kf.TraceError:
                continue
            except Exception as error:
                yield f"{op.formatted_name} of {dtype}: {type(error).__name__}: {error}"


def test_some_operators(seed, rng):
    assert [text for op in COMPARED[seed % 16 :: 16] for text in differences(op, "float32", rng, 2)] == []


@pytest.mark.slow
def test_all_operators(rng, is_sampled):
    """In a sample of the tests about an eighth of them, which is drawn."""
    some = [op for op in COMPARED if rng.integers(8) == 0] if is_sampled else COMPARED
    found = (
        text
        for op, dtype in itertools.product(some, ("float32", "int64", "bool"))
        for text in differences(op, dtype, rng, 4 if is_sampled else 12)
    )
    assert list(found) == []


# ---- what is traced beside what torch gives: dtypes, extents, memory, writes, draws ---------------------------------

_MADE = tuple(f"{_LEFT_OUT['of no arrays']} jiterator sparse".split())
TRACED = [op for op in operators if not op.name.startswith(_MADE)]
_DTYPES = tuple(getattr(torch, name) for name in ("float64", "float32", "float16", "int64", "bool"))


def known_differences():
    """The names of functions in the table of docs/checking.md."""
    _, table = (DOCS / "checking.md").read_text().split("| torch's function | difference | why |")
    rows = [line for line in table.partition("\n\n")[0].splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall("`(.*?)`", row.split("|")[1])}


def varied(sample, rng):
    """The arguments, then those with the first tensor behind the input of another dtype, and without axes."""
    yield sample.args
    place = next((i for i, a in enumerate(sample.args) if isinstance(a, torch.Tensor)), None)
    if place is not None:
        other = sample.args[place].to(_DTYPES[rng.integers(len(_DTYPES))])
        for changed in (other, *(v.clone() for v in other.flatten()[:1])):
            yield (*sample.args[:place], changed, *sample.args[place + 1 :])


def traced_differences(op, dtype, rng, most):
    """What the checking mode finds in traces of the operator, of arguments that torch takes."""
    if not op.supports_dtype(getattr(torch, dtype), "cpu"):
        return []
    samples, found = list(op.sample_inputs("cpu", getattr(torch, dtype))), []
    for sample in samples[:: -(-len(samples) // most)]:
        for args in varied(sample, rng):
            try:
                op.op(sample.input, *args, **sample.kwargs)
                with library_checks.using(found.append):
                    kf.trace(lambda *args, **kwargs: op.op(*args, **kwargs), sample.input, *args, **sample.kwargs)
            except Exception:  # which other tests look at
                continue
    return found


def unknown(found):
    """What of it the page does not list."""
    known = known_differences()
    return [text for text in found if text.partition(":")[0].removeprefix("torch.") not in known]


def test_some_traces(seed, rng):
    dtype = ("float32", "int64", "bool", "float16")[seed % 4]
    assert unknown(text for op in TRACED[seed % 16 :: 16] for text in traced_differences(op, dtype, rng, 2)) == []


@pytest.mark.slow
def test_all_traces(rng, is_sampled):
    some = TRACED[rng.integers(8) :: 8] if is_sampled else TRACED
    pairs = itertools.product(some, ("float32", "int64", "bool", "float16"))
    assert unknown(text for op, dtype in pairs for text in traced_differences(op, dtype, rng, 12)) == []


# ---- numbers beyond the range of a dtype: an error where torch raises one -------------------------------------------

DTYPES = ("float16", "bfloat16", "float32", "int32", "int64")
BEYOND = (1e6, -1e6, 1e39, -1e300, 70000, 2**31, -(2**40), float("inf"), float("nan"))


def is_scalar(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def with_number(sample, place, value):
    """The sample's arguments with another number at a place."""
    if isinstance(place, str):
        return sample.args, sample.kwargs | {place: value}
    return (*sample.args[:place], value, *sample.args[place + 1 :]), sample.kwargs


def places(op, sample):
    """Where the sample has a number that may be a fraction, and hence no extent, axis or count."""
    for place, value in (*enumerate(sample.args), *sample.kwargs.items()):
        if is_scalar(value):
            args, kwargs = with_number(sample, place, 1.5)
            with contextlib.suppress(Exception):
                op.op(sample.input.clone(), *args, **kwargs)
                yield place


def called(f, *args, **kwargs):
    """Whether torch's error about a number is raised; None where the call is refused, or fails otherwise."""
    args = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    try:
        f(*args, **kwargs)
    except kf.TraceError:
        return None
    except Exception as error:
        is_it = re.search("cannot be converted to type|must be in range \\[", str(error))
        return True if is_it else None
    return False


def differences_beyond(op, dtype):
    if not op.supports_dtype(getattr(torch, dtype), "cpu"):
        return
    samples = op.sample_inputs("cpu", getattr(torch, dtype))
    for sample in [s for s in samples if any(map(is_scalar, (*s.args, *s.kwargs.values())))][:1]:
        for place, value in itertools.product(places(op, sample), BEYOND):
            args, kwargs = with_number(sample, place, value)
            want = called(op.op, sample.input, *args, **kwargs)
            got = called(kf.fuse(lambda x, *a, k=kwargs, op=op: op.op(x, *a, **k)), sample.input, *args)
            if want != got and (want or got):
                yield f"{op.formatted_name} of {dtype}, {value} for {place}: raises {got}, torch: {want}"


def test_some_functions_of_numbers(seed):
    assert [t for op in TRACED[seed % 96 :: 96] for t in differences_beyond(op, DTYPES[seed % 5])] == []


@pytest.mark.slow
def test_all_functions_of_numbers(rng, is_sampled):
    pairs = itertools.product(TRACED[rng.integers(16) :: 16] if is_sampled else TRACED, DTYPES)
    assert [text for pair in pairs for text in differences_beyond(*pair)] == []


# ---- gradients, where the argument is what it may not be: zeros, ties, bounds, infinities, NaN, masked rows ---------


def wrong_gradients(entries, seed, samples):
    draws = (op_gradients.differences(op, np.random.default_rng(seed), samples, 1) for op in entries)
    return [str(difference) for found in draws for difference in found]


def test_some_gradients(seed):
    assert wrong_gradients(op_gradients.ENTRIES[seed % 40 :: 40], seed, 1) == []
    page = (DOCS / "using.md").read_text().replace("\n", " ")
    for reason, _, names in op_gradients.DIFFERENT:
        assert reason in page
        assert all(f"`{name}`" in page for name in names)


@pytest.mark.slow
def test_all_gradients(seed, rng, is_sampled):
    """In a sample of the tests a tenth of them, which is drawn."""
    some = [op for op in op_gradients.ENTRIES if rng.integers(10) == 0] if is_sampled else op_gradients.ENTRIES
    assert wrong_gradients(some, seed, 3) == []
