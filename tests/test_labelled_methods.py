"""Every public method of labelled arrays gives what its library gives, or is refused by name."""

from __future__ import annotations

import operator
import warnings
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import kfusion as kf
from sweeps import sweep

pd, pl, xr = (pytest.importorskip(name) for name in ("pandas", "polars", "xarray"))

_SEED = np.random.default_rng(7)
_DTYPES = ("float64", "float32", "int64", "bool")  # each test draws one
_REFUSALS = ("kfusion", "is not traced", "traced value", "not implemented for bool dtypes")
# Errors of libraries that depend on data, or that arguments of no sense meet in NumPy's C.
_NO_ERROR_HERE = (
    "negative integer powers",
    "copy not allowed",
    "destination is read-only",
    "Cannot construct a dtype",
    "an integer is required",
    "cannot be interpreted as an integer",
)
_CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    *(((), {"axis": axis}) for axis in (0, 1, "columns", None)),
    *(((), {"skipna": skipna}) for skipna in (True, False)),
    ((), {"ddof": 0}),
    ((), {"ddof": 2}),
    ((), {"axis": 1, "skipna": False}),
    ((), {"min_count": 4}),
    ((), {"numeric_only": True}),
    *(((value,), {}) for value in (0, 1, 2, -1, 0.5, 0.0, "float32", "a", True)),
    *(((value,), {"axis": 0}) for value in (1, 0.5)),
    ((), {"lower": -0.5, "upper": 0.5}),
    ((), {"lower": -0.5}),
    ((), {"dim": "r"}),
    ((), {"dim": ("r", "c"), "skipna": False}),
    ((), {"dim": "c", "ddof": 1}),
    ((), {"q": 0.5, "dim": "r"}),
    (("r",), {}),
    ((), {"r": 1}),
    ((), {"keepdims": True}),
]
_OTHERS = ("same", "row", "condition", "array")  # as the only argument, by the name of what `_others` makes


def _values(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    x = _SEED.normal(size=shape) * 2
    if dtype == "bool":
        return x > 0
    if dtype.startswith("float"):
        x[0] = np.nan
        x.flat[-1] = 0.0
    return x.astype(dtype)


def _kinds() -> dict[str, Any]:
    def frame(dtype: str) -> Any:
        return pd.DataFrame(_values(dtype, (5, 3)), index=list("vwxyz"), columns=["a", "b", "c"])

    def series(dtype: str) -> Any:
        return pd.Series(_values(dtype, (5,)), index=list("vwxyz"), name="s")

    def array(dtype: str) -> Any:
        coords = {"r": [3, 1, 2, 5, 4], "c": list("abc")}
        return xr.DataArray(_values(dtype, (5, 3)), dims=("r", "c"), coords=coords, name="x", attrs={"unit": "m"})

    made = {"frame": frame, "series": series, "xarray": array}
    made["polars"] = lambda dtype: pl.Series("s", _values(dtype, (5,)))
    return made


_KINDS = _kinds()
_CLASSES = {"frame": pd.DataFrame, "series": pd.Series, "xarray": xr.DataArray, "polars": pl.Series}
_WRITES = "plot hist boxplot to_clipboard to_sql to_hdf to_pickle to_excel to_parquet to_feather to_iceberg show_graph"


def _names(kind: Any) -> list[str]:
    return [n for n in dir(kind) if not n.startswith("_") and not n.startswith("to_") and n not in _WRITES.split()]


def _others(x: Any, name: str) -> Any:
    if name == "same":
        return ~x if str(getattr(x, "dtype", "")) == "bool" else x * 0 + 2
    if name == "row":
        return (
            x.iloc[0] if isinstance(x, pd.DataFrame) else x.isel(r=0, drop=True) if isinstance(x, xr.DataArray) else x
        )
    if name == "condition":
        return x > 0
    return np.full(x.shape, 1.5)


def _outcome(run: Any) -> Any:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return run(), None
        except Exception as error:
            return None, error


def _differs(got: Any, wanted: Any) -> str:
    """What of two results does not agree, "" where all does."""
    if isinstance(wanted, (tuple, list)) and isinstance(got, (tuple, list)):
        pairs = zip(got, wanted, strict=False)
        return next(filter(None, (_differs(*pair) for pair in pairs)), "" if len(got) == len(wanted) else "length")
    if isinstance(wanted, dict):
        return _differs(list(got.values()), list(wanted.values()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if isinstance(wanted, pd.DataFrame):
                pd.testing.assert_frame_equal(got, wanted, rtol=2e-5, atol=1e-6, check_names=True)
            elif isinstance(wanted, pd.Series):
                pd.testing.assert_series_equal(got, wanted, rtol=2e-5, atol=1e-6)
            elif isinstance(wanted, xr.DataArray):
                xr.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-6)
                assert (got.dtype, str(got.name), got.attrs) == (wanted.dtype, str(wanted.name), wanted.attrs), (
                    "dtype, name or attrs"
                )
            elif isinstance(wanted, pl.Series):
                from polars.testing import assert_series_equal

                assert_series_equal(got, wanted, rel_tol=2e-5, abs_tol=1e-6)
            else:
                assert np.asarray(got).dtype.kind == np.asarray(wanted).dtype.kind, "dtype"
                np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), rtol=2e-5, atol=1e-6)
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:300]}"
    return ""


def _holds(x: Any, function: Any) -> str:
    """ "" where the fused function gives what the plain one gives, or says that it does not."""
    wanted, wrong = _outcome(lambda: function(x.copy() if hasattr(x, "copy") else x))
    got, error = _outcome(lambda: kf.fuse(function)(x))
    if error is not None:
        text = str(error)
        if wrong is not None or any(word in text for word in _REFUSALS):
            return ""
        return f"raises {type(error).__name__}: {text[:200]}"
    if wrong is not None and not any(text in str(wrong) for text in _NO_ERROR_HERE):
        return f"gives {type(got).__name__} where the library raises {type(wrong).__name__}: {str(wrong)[:100]}"
    return _differs(got, wanted) if wrong is None else ""


@pytest.mark.parametrize("kind", list(_CLASSES))
def test_methods(kind, some, rng):
    def check(name):
        x = _KINDS[kind](rng.choice(_DTYPES))
        wrong = {}
        for args, kwargs in some(_CALLS, 4):
            wrong[str((args, kwargs))] = _holds(x, lambda x, a=args, k=kwargs: getattr(x, name)(*a, **k))
        for other in some(_OTHERS, 1):
            wrong[other] = _holds(x, lambda x, other=other: getattr(x, name)(_others(x, other)))
        assert not {call: why for call, why in wrong.items() if why}

    names = [(name,) for name in _names(_CLASSES[kind]) if callable(getattr(_CLASSES[kind], name, None))]
    sweep(check, some(names, 30))


_OPERATORS = "add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift lt le gt ge eq ne"
_OPERANDS = (*_OTHERS, 0, 2, 3.0, -1, 0.0, True, np.float32(2), np.int64(3), [1, 2, 3, 4, 5])


@pytest.mark.parametrize("kind", list(_CLASSES))
def test_operators(kind, some, rng):
    def check(name):
        x, function = _KINDS[kind](rng.choice(_DTYPES)), getattr(operator, name)
        wrong = {}
        for operand in some(_OPERANDS, 5):

            def made(x, operand=operand):
                return _others(x, operand) if isinstance(operand, str) else operand

            wrong[str(operand)] = _holds(x, lambda x, made=made: function(x, made(x)))
            wrong[f"{operand} from the left"] = _holds(x, lambda x, made=made: function(made(x), x))
        assert not {call: why for call, why in wrong.items() if why}

    sweep(check, some([(name,) for name in _OPERATORS.split()], 8))


_FUNCTIONS = """
    exp log sqrt sin abs absolute negative sign isnan isfinite floor square reciprocal mean sum std var max min prod any
    all median cumsum cumprod round clip where transpose argmax argsort sort ptp nanmean nansum nan_to_num average diff
    maximum minimum add multiply power arctan2 hypot logical_and less equal concatenate stack dot logaddexp modf divmod
"""


_FUNCTION_CALLS = {
    "x": lambda f, x: f(x),
    "axis 0": lambda f, x: f(x, axis=0),
    "axis 1": lambda f, x: f(x, axis=1),
    "x, 2": lambda f, x: f(x, 2),
    "2, x": lambda f, x: f(2, x),
    "x, same": lambda f, x: f(x, _others(x, "same")),
    "x, row": lambda f, x: f(x, _others(x, "row")),
    "x, 0, 1": lambda f, x: f(x, 0, 1),
    "x > 0, x, 0": lambda f, x: f(x > 0, x, 0),
    "list": lambda f, x: f([x, x]),
    "ddof": lambda f, x: f(x, ddof=1),
}


@pytest.mark.parametrize("kind", list(_CLASSES))
def test_functions_of_numpy(kind, some, rng):
    def check(name):
        x, function = _KINDS[kind](rng.choice(_DTYPES)), getattr(np, name)
        calls = some(_FUNCTION_CALLS.items(), 3)
        wrong = {call: _holds(x, lambda x, of=of: of(function, x)) for call, of in calls}
        assert not {call: why for call, why in wrong.items() if why}

    sweep(check, some([(name,) for name in _FUNCTIONS.split()], 20))


_STEPS = {
    "centred": lambda x, y: x - x.mean(),
    "scaled": lambda x, y: x / (x.abs().max() + 1),
    "added": lambda x, y: x + y,
    "rows": lambda x, y: x.sub(x.mean(axis=1), axis=0),
    "kept": lambda x, y: x.where(y > 0, 0.5),
    "masked": lambda x, y: x.mask(x > 1),
    "filled": lambda x, y: x.fillna(-1.0),
    "clipped": lambda x, y: x.clip(-0.5, 0.5),
    "of numpy": lambda x, y: np.tanh(x) * np.maximum(y, 0),
    "of kfusion": lambda x, y: kf.softmax(x),
    "summed": lambda x, y: x + x.cumsum() / 10,
    "column": lambda x, y: x.mul(x["b"], axis=0),
    "turned": lambda x, y: (x.T - x.mean(axis=1)).T,
    "spread": lambda x, y: x / (x.std(ddof=0) + 1),
    "count": lambda x, y: x * x.count() + x.isna().sum(),
    "chosen": lambda x, y: x * (x > x.min()).all(axis=0),
}
_LASTS = {
    "table": lambda x: x,
    "sums": lambda x: x.sum(),
    "means": lambda x: x.mean(axis=1),
    "spread": lambda x: x.std(),
    "number": lambda x: x["a"].var(),
    "pair": lambda x: (x[["c", "a"]], x.max(axis="columns")),
}


@hypothesis.settings(deadline=None)
@hypothesis.given(st.lists(st.sampled_from(sorted(_STEPS)), min_size=1, max_size=5), st.sampled_from(sorted(_LASTS)),
                  st.integers(1, 9), st.integers(0, 2**32 - 1))  # fmt: skip
def test_random_programs_of_tables(steps, last, rows, seed):
    rng = np.random.default_rng(seed)
    x, y = (
        pd.DataFrame(rng.normal(size=(rows, 3)), columns=list("abc")).mask(rng.random((rows, 3)) < 0.1) for _ in "xy"
    )

    def program(x, y, softmax=kf.softmax):
        for step in steps:
            x = softmax(x) if step == "of kfusion" else _STEPS[step](x, y)
        return _LASTS[last](x)

    def softmax(x):
        e = np.exp(x.sub(x.max(axis=1, skipna=False), axis=0))
        return e.div(e.sum(axis=1, skipna=False), axis=0)

    assert not _differs(kf.fuse(program)(x, y), program(x, y, softmax))
