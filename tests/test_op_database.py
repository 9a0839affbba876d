"""torch's own database of its operators, with arguments for each: fused, every one gives what it gives by itself, or is
refused by a TraceError. Needs torch's test utilities, and what those import (expecttest)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kfusion as kf
from kfusion._tracing import library_checks

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")
operators = pytest.importorskip("torch.testing._internal.common_methods_invocations").op_db

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


# ---- what is traced beside what torch gives: dtypes, extents, memory, writes, draws ----

_MADE = tuple(f"{_LEFT_OUT['of no arrays']} jiterator sparse".split())
TRACED = [op for op in operators if not op.name.startswith(_MADE)]
_DTYPES = tuple(getattr(torch, name) for name in ("float64", "float32", "float16", "int64", "bool"))


def known_differences():
    """The names of functions in the table of docs/checking.md."""
    page = (Path(__file__).parents[1] / "docs" / "checking.md").read_text()
    _, table = page.split("| torch's function | difference | why |")
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


def names_of(found):
    return {text.partition(":")[0].removeprefix("torch.") for text in found}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("one_thread")
def test_some_traces(seed, rng):
    torch.manual_seed(0)
    dtype = ("float32", "int64", "bool", "float16")[seed % 4]
    found = [text for op in TRACED[seed % 16 :: 16] for text in traced_differences(op, dtype, rng, 2)]
    assert [text for text in found if not names_of([text]) <= known_differences()] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("one_thread")
def test_all_traces(rng, is_sampled):
    """All differences are listed on the page."""
    torch.manual_seed(0)
    some = TRACED[rng.integers(8) :: 8] if is_sampled else TRACED
    dtypes = ("float32", "int64", "bool", "float16")
    found = [text for op in some for dtype in dtypes for text in traced_differences(op, dtype, rng, 12)]
    assert [text for text in found if not names_of([text]) <= known_differences()] == []


@pytest.fixture
def one_thread():
    """For arrays as small as these, threads only wait for each other."""
    threads = kf.get_num_threads(), torch.get_num_threads()
    kf.set_num_threads(1)
    torch.set_num_threads(1)
    yield
    kf.set_num_threads(threads[0])
    torch.set_num_threads(threads[1])


def all_differences(compared, dtypes, rng, most):
    torch.manual_seed(0)
    return [text for op in compared for dtype in dtypes for text in differences(op, dtype, rng, most)]


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's own, of some of its operators
@pytest.mark.usefixtures("one_thread")
def test_some_operators(seed, rng):
    assert all_differences(COMPARED[seed % 16 :: 16], ("float32",), rng, 2) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.usefixtures("one_thread")
def test_all_operators(rng, is_sampled):
    """In a sample of the tests about an eighth of them, which is drawn."""
    some = [op for op in COMPARED if rng.integers(8) == 0] if is_sampled else COMPARED
    assert all_differences(some, ("float32", "int64", "bool"), rng, 4 if is_sampled else 12) == []
