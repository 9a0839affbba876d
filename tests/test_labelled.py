"""Arrays with labels: xarray's, pandas' and polars', and those of the array API that export DLPack. Every public method
gives what its library gives, or is refused by name."""

from __future__ import annotations

import operator
import warnings
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import kfusion as kf
from sweeps import refusals, sweep

pd, pl, xr = (pytest.importorskip(name) for name in ("pandas", "polars", "xarray"))
VALUES = np.arange(6.0).reshape(2, 3) - 2
TABLE = pd.DataFrame(VALUES, index=["a", "b"], columns=["u", "value", "w"])
SERIES = pd.Series([1.0, -2, 3], index=list("abc"), name="s")
COORDINATES = {"t": [10, 20], "c": list("xyz"), "lon": ("t", [1.0, 2.0]), "run": 7}
LABELLED = xr.DataArray(VALUES, dims=("t", "c"), coords=COORDINATES, attrs={"unit": "K"}, name="heat")


@kf.fuse
def activated(x: Any, y: Any) -> Any:
    return kf.relu(x - y) * 2


# ---- xarray ---------------------------------------------------------------------------------------------------------


def test_results_of_xarray():
    x = LABELLED
    wanted = x.copy(data=np.maximum(VALUES - 1, 0) * 2)
    for got in (activated(x, 1.0), activated(x, np.ones(3)), activated(x, x * 0 + 1)):
        assert got.identical(wanted) or got.assign_attrs(x.attrs).identical(wanted)
    assert activated(x, 1.0).attrs == {"unit": "K"}
    got = kf.fuse(lambda x: {"softmax": kf.softmax(x), "sums": kf.sum(x, -1), "mean": x.mean(), "turned": x.T})(x)
    assert got["softmax"].dims == x.dims
    assert got["sums"].identical(x.sum("c", keep_attrs=False))
    assert got["turned"].identical(x.T)
    assert got["mean"].identical(x.mean())
    pytest.importorskip("dask.array")
    lazy = activated(x.chunk(t=1), 1.0)  # stays lazy
    assert lazy.chunks == ((1, 1), (3,))
    assert lazy.compute().equals(activated(x, 1.0))


def test_dimensions_and_coordinates():
    x = LABELLED
    of_names = (
        lambda x: x - x.mean("t"), lambda x: x * x.T, lambda x: x @ x.T, lambda x: x[1:], lambda x: x.sel(t=10),
    )  # fmt: skip
    for f in of_names:
        xr.testing.assert_allclose(kf.fuse(f)(x), f(x))
    apart = x.assign_coords(t=[20, 30])  # only t = 20 is in both
    xr.testing.assert_identical(kf.fuse(lambda x, y: x + y)(x, apart), x + apart)
    f = kf.fuse(lambda x: x.sel(t=20))
    for labels in ([10, 20], [20, 10], [20, 30], [10, 20]):  # a trace holds for its labels
        y = x.assign_coords(t=labels)
        xr.testing.assert_identical(f(y), y.sel(t=20))
    assert "run" not in activated(x, x.assign_coords(run=8)).coords  # belongs to no axis: dropped, as xarray does

    def made(index: Any = None) -> Any:
        return xr.DataArray(np.arange(3.0), dims="a", coords=index and {"a": index})

    where = kf.fuse(lambda x, y, z: kf.where(x > 0, y, z))  # no argument without coordinates hides others
    assert where(made(), made([0, 1, 2]), made()).indexes["a"].tolist() == [0, 1, 2]
    add = kf.fuse(lambda x, y: kf.add(x, y))
    refusals([
        (lambda: where(made(), made([0, 1, 2]), made([2, 1, 0])), ValueError, "differ in coordinate 'a'"),
        (lambda: add(x, x.assign_coords(t=[1, 2])), ValueError,
         r"differ in coordinate 't': pass the results of xarray\.align"),
        (lambda: add(x, x.rename(t="q")), ValueError, r"differ in the names of an axis \('q' and 't'\)"),
        (lambda: kf.fuse(lambda x: x.to_dataset())(x), kf.TraceError, "a Dataset is returned"),
        (lambda: kf.fuse(lambda x: x.assign_coords(mean=x.mean("c")))(x), kf.TraceError,
         "coordinate 'mean' of a result is computed"),
        (lambda: activated(x.to_dataset(), 1.0), TypeError,
         r'got Dataset: pass its arrays one by one, x\["variable"\]'),
    ])  # fmt: skip


# ---- pandas ---------------------------------------------------------------------------------------------------------


def test_results_of_pandas():
    pd.testing.assert_series_equal(activated(SERIES, 0.5), pd.Series([1.0, 0, 5], index=SERIES.index, name="s"))
    assert activated(SERIES, SERIES.rename("other")).name is None
    functions = (
        lambda x: (x - x.mean()) / x.std(), lambda x: x.sum(), lambda x: x.T, lambda x: x.mean(axis=1),
        lambda x: x["u"] * x.value, lambda x: x[["w", "u"]] + 1, lambda x: x.sub(x["u"], axis=0),
        lambda x: x["u"]["b"] * x,
    )  # fmt: skip
    for f in functions:
        assert not _differs(kf.fuse(f)(TABLE), f(TABLE))
    got = kf.fuse(lambda x: kf.softmax(x))(TABLE)
    assert (list(got.index), list(got.columns)) == (["a", "b"], ["u", "value", "w"])
    pd.testing.assert_series_equal(kf.fuse(lambda x: kf.sum(x, -1))(TABLE), TABLE.sum(axis=1))
    assert kf.fuse(lambda x: {name: column.sum() for name, column in x.items()})(TABLE) == dict(TABLE.sum())
    got = kf.fuse(lambda x: (x.to_numpy().mean(), np.where(x > 0, x, 0), kf.matmul(x, np.ones((3, 2)))))(TABLE)
    assert (got[0], type(got[1]), got[2].shape) == (VALUES.mean(), np.ndarray, (2, 2))
    np.testing.assert_array_equal(got[1], np.maximum(VALUES, 0))
    assert activated.plan(TABLE, 1.0).fused.issued == activated.plan(VALUES, 1.0).fused.issued


def _adds(x: Any) -> Any:
    x += 1
    return x


def _sets_column(x: Any) -> Any:
    x["b"] = x["u"] * 2
    return x


def test_what_is_refused_of_pandas():
    def traced(f: Any, x: Any = TABLE) -> Any:
        return lambda: kf.fuse(f)(x)

    def inplace(name: str, *arguments: Any) -> Any:
        call = traced(lambda x: getattr(x, name)(*arguments, inplace=True), pd.Series([1.0, np.nan]))
        return call, AttributeError, rf"write y = x\.{name}\(\.\.\.\) without inplace=True"

    rows = [
        (traced(lambda x: x.groupby(level=0)), kf.TraceError, r"DataFrame\.groupby is not traced"),
        (traced(lambda x: x.sort_values("u")), kf.TraceError, r"DataFrame\.sort_values is not traced"),
        (traced(lambda x: x.sum(min_count=1)), kf.TraceError, "with these arguments is not traced"),
        (traced(lambda x: x.loc["a"]), kf.TraceError, r"DataFrame\.loc is not traced"),
        (traced(lambda x: x[x > 0]), kf.TraceError, r"x\[DataFrame\] of a DataFrame of pandas is not traced"),
        (traced(lambda x: x + x.rename(columns={"u": "k"})), kf.TraceError, r"DataFrame\.rename is not traced"),
        (traced(_adds, SERIES), kf.TraceError, r"x \+= y writes to a Series of pandas"),
        (traced(_sets_column), kf.TraceError, r"x\['b'\] = y writes to a DataFrame(?s:.*)as a result of its own"),
        (lambda: activated(SERIES, SERIES[::-1]), ValueError,
         r"the operands of sub differ in their index: pass the results of x.align\(y\)"),
        (lambda: activated(pd.DataFrame({"a": [1.0], "b": [1]}), 1.0), TypeError,
         r'columns of one dtype, got float64, int64: pass x.astype\("float64"\)'),
        (lambda: activated(pd.DataFrame({"a": ["u"]}), 1.0), TypeError, "must have numbers, got .*: pass .* or x.sel"),
        (lambda: activated(pd.DataFrame({"a": np.array([None, 1.0], dtype=object)}), 1.0), TypeError,
         "must have numbers, got object"),
        (lambda: activated(pd.Series([1, None], dtype="Int64"), 1), TypeError, "must have numbers, got Int64"),
        (lambda: activated(pd.Index([1.0]), 1), TypeError, r"got Index; x.to_numpy\(\)"),
    ]  # fmt: skip
    for dtype in ("int8", "uint8", "int16", "uint32"):  # the second time labels differ, too
        s, says = pd.Series([1, 2], dtype=dtype), f"'s dtype must be one of .*, got {dtype}"
        rows += [(lambda s=s: activated(s, 1), TypeError, "x" + says)]
        rows += [(lambda s=s: activated(pd.Series([1.0, 2], index=[1, 0]), s), TypeError, "y" + says)]
    refusals([*rows, inplace("fillna", 0), inplace("clip", 0, 1), inplace("interpolate"), inplace("ffill")])
    assert list(TABLE) == ["u", "value", "w"]
    assert SERIES.tolist() == [1, -2, 3]


# ---- polars, and arrays of several libraries ------------------------------------------------------------------------


def test_polars_and_arrays_of_two_libraries():
    got = activated(pl.Series("s", [1.0, -2, 3]), 0.5)
    assert (got.name, got.to_list()) == ("s", [1, 0, 5])
    assert kf.fuse(lambda x: (x * x).sum())(pl.Series("s", [1.0, -2, 3])) == 14
    refusals([
        (lambda: activated(pl.Series([1.0, None]), 1.0), TypeError,
         r"has nulls: pass x.fill_null\(value\) or x.drop_nulls\(\)"),
        (lambda: activated(pl.Series(["a"]), 1.0), TypeError, "must have numbers, got String"),
        (lambda: activated(pl.Series(np.array([1, 2], "int8")), 1.0), TypeError, "x's dtype must be one .*, got int8"),
        (lambda: activated(pl.DataFrame({"a": [1.0]}), 1.0), TypeError,
         r"got DataFrame: pass x.to_numpy\(\), or its columns one by one"),
        (lambda: activated(pd.Series([1.0]), pl.Series([1.0])), TypeError,
         "arrays must be of one library, got some of pandas and polars"),
        (lambda: activated(pd.Series([1.0]), 1.0, out=np.ones(1)), TypeError,
         "out= and stream= are for arrays in memory, got arrays of pandas"),
    ])  # fmt: skip


def test_arrays_of_the_array_api():
    xp = pytest.importorskip("array_api_strict")
    for name in ("float32", "float64", "int32", "int64"):
        x = xp.asarray([[1, 0, 3]], dtype=getattr(xp, name))
        got = activated(x, x[:, 1:2])
        assert got.__array_namespace__() is xp
        assert got.dtype == x.dtype
        assert xp.all(got == xp.asarray([[2, 0, 6]], dtype=x.dtype))


# ---- what a function sets -------------------------------------------------------------------------------------------


def _sets_in_dict(kept, given):
    kept["last"] = given["a"] * 2


def _sets_in_list(kept, given):
    kept["all"].append(given["a"] * 2)


def _sets_in_argument(kept, given):
    given["b"] = given["a"] * 2


def _sets_number_in_argument(kept, given):
    given["n"] += 1


def test_what_has_labels_is_set_nowhere():
    def check(series, sets):
        kept, given = {"all": []}, {"a": series, "n": 0}

        @kf.fuse
        def f(given):
            sets(kept, given)
            return given["a"] + 1

        for _ in range(2):
            with pytest.raises(kf.TraceError, match="sets something beside its results"):
                f(given)
            assert kept == {"all": []}
            assert given["a"] is series
            assert (list(given), given["n"]) == (["a", "n"], 0)

    values = np.random.default_rng(0).normal(size=5)
    made = (pd.Series(values), pl.Series(values), xr.DataArray(values, dims="x"))
    ways = (_sets_in_dict, _sets_in_list, _sets_in_argument, _sets_number_in_argument)
    sweep(check, [(series, sets) for series in made for sets in ways])


def test_numbers_are_set_by_functions_of_labelled_arrays():
    for library in (pd, pl):
        kept = {"n": 0}

        @kf.fuse
        def f(s, kept=kept):
            kept["n"] += 1
            return s + 1

        for _ in range(3):
            f(library.Series([1.0, 2.0]))
        assert kept == {"n": 3}


# ---- every method, operator and function of NumPy -------------------------------------------------------------------

_SEED = np.random.default_rng(7)
_DTYPES = ("float64", "float32", "int64", "bool")  # each test draws one
_REFUSALS = ("kfusion", "is not traced", "traced value", "not implemented for bool dtypes")
# Errors of libraries that depend on data, or that arguments of no sense meet in NumPy's C.
_NO_ERROR_HERE = (
    "negative integer powers", "copy not allowed", "destination is read-only", "Cannot construct a dtype",
    "an integer is required", "cannot be interpreted as an integer",
)  # fmt: skip
# Arguments and keywords of calls.
_CALLS = [eval(f"(lambda *args, **kwargs: (args, kwargs))({text})") for text in """
 ; axis=0 ; axis=1 ; axis="columns" ; axis=None ; skipna=True ; skipna=False ; ddof=0 ; ddof=2 ; axis=1, skipna=False
min_count=4 ; numeric_only=True ; 0 ; 1 ; 2 ; -1 ; 0.5 ; 0.0 ; "float32" ; "a" ; True ; 1, axis=0 ; 0.5, axis=0
lower=-0.5, upper=0.5 ; lower=-0.5 ; dim="r" ; dim=("r", "c"), skipna=False ; dim="c", ddof=1 ; q=0.5, dim="r"
"r" ; r=1 ; keepdims=True""".replace("\n", " ; ").split(" ; ")]  # fmt: skip
_OTHERS = ("same", "row", "condition", "array")  # as the only argument, by the name of what `_others` makes


def _values(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    x = _SEED.normal(size=shape) * 2
    if dtype == "bool":
        return x > 0
    if dtype.startswith("float"):
        x[0] = np.nan
        x.flat[-1] = 0.0
    return x.astype(dtype)


def _frame(dtype: str) -> Any:
    return pd.DataFrame(_values(dtype, (5, 3)), index=list("vwxyz"), columns=["a", "b", "c"])


def _series(dtype: str) -> Any:
    return pd.Series(_values(dtype, (5,)), index=list("vwxyz"), name="s")


def _array(dtype: str) -> Any:
    coords = {"r": [3, 1, 2, 5, 4], "c": list("abc")}
    return xr.DataArray(_values(dtype, (5, 3)), dims=("r", "c"), coords=coords, name="x", attrs={"unit": "m"})


def _polars(dtype: str) -> Any:
    return pl.Series("s", _values(dtype, (5,)))


_CLASSES = {_frame: pd.DataFrame, _series: pd.Series, _array: xr.DataArray, _polars: pl.Series}
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


def require(made: Any, calls: dict[str, Any]) -> None:
    """Each call of an array of a dtype that is drawn holds."""
    wrong = {call: why for call, f in calls.items() if (why := _holds(made, f))}
    assert not wrong


def test_methods(some, rng):
    def check(make, name):
        def other(x, other):
            return getattr(x, name)(_others(x, other))

        calls = {str(c): lambda x, c=c: getattr(x, name)(*c[0], **c[1]) for c in some(_CALLS, 3)}
        calls |= {o: lambda x, o=o: other(x, o) for o in some(_OTHERS, 1)}
        require(make(rng.choice(_DTYPES)), calls)

    pairs = [(make, n) for make, kind in _CLASSES.items() for n in _names(kind) if callable(getattr(kind, n, None))]
    sweep(check, some(pairs, 40))


_OPERATORS = "add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift lt le gt ge eq ne"
_OPERANDS = (*_OTHERS, 0, 2, 3.0, -1, 0.0, True, np.float32(2), np.int64(3), [1, 2, 3, 4, 5])


def test_operators(some, rng):
    def check(make, name):
        function, calls = getattr(operator, name), {}
        for operand in some(_OPERANDS, 3):

            def of(x, operand=operand):
                return _others(x, operand) if isinstance(operand, str) else operand

            calls[str(operand)] = lambda x, of=of: function(x, of(x))
            calls[f"{operand} from the left"] = lambda x, of=of: function(of(x), x)
        require(make(rng.choice(_DTYPES)), calls)

    sweep(check, some([(make, name) for make in _CLASSES for name in _OPERATORS.split()], 20))


_FUNCTIONS = """
    exp log sqrt sin abs absolute negative sign isnan isfinite floor square reciprocal mean sum std var max min prod any
    all median cumsum cumprod round clip where transpose argmax argsort sort ptp nanmean nansum nan_to_num average diff
    maximum minimum add multiply power arctan2 hypot logical_and less equal concatenate stack dot logaddexp modf divmod
"""
_FUNCTION_CALLS = {
    "x": lambda f, x: f(x), "axis 0": lambda f, x: f(x, axis=0), "axis 1": lambda f, x: f(x, axis=1),
    "x, 2": lambda f, x: f(x, 2), "2, x": lambda f, x: f(2, x), "x, same": lambda f, x: f(x, _others(x, "same")),
    "x, row": lambda f, x: f(x, _others(x, "row")), "x, 0, 1": lambda f, x: f(x, 0, 1),
    "x > 0, x, 0": lambda f, x: f(x > 0, x, 0), "list": lambda f, x: f([x, x]), "ddof": lambda f, x: f(x, ddof=1),
}  # fmt: skip


def test_functions_of_numpy(some, rng):
    def check(make, name):
        calls = {call: lambda x, of=of: of(getattr(np, name), x) for call, of in some(_FUNCTION_CALLS.items(), 3)}
        require(make(rng.choice(_DTYPES)), calls)

    sweep(check, some([(make, name) for make in _CLASSES for name in _FUNCTIONS.split()], 30))


_STEPS = {
    "centred": lambda x, y: x - x.mean(), "scaled": lambda x, y: x / (x.abs().max() + 1), "added": lambda x, y: x + y,
    "rows": lambda x, y: x.sub(x.mean(axis=1), axis=0), "kept": lambda x, y: x.where(y > 0, 0.5),
    "masked": lambda x, y: x.mask(x > 1), "filled": lambda x, y: x.fillna(-1.0),
    "clipped": lambda x, y: x.clip(-0.5, 0.5), "of numpy": lambda x, y: np.tanh(x) * np.maximum(y, 0),
    "of kfusion": lambda x, y: kf.softmax(x), "summed": lambda x, y: x + x.cumsum() / 10,
    "column": lambda x, y: x.mul(x["b"], axis=0), "turned": lambda x, y: (x.T - x.mean(axis=1)).T,
    "spread": lambda x, y: x / (x.std(ddof=0) + 1), "count": lambda x, y: x * x.count() + x.isna().sum(),
    "chosen": lambda x, y: x * (x > x.min()).all(axis=0),
}  # fmt: skip
_LASTS = {
    "table": lambda x: x, "sums": lambda x: x.sum(), "means": lambda x: x.mean(axis=1), "spread": lambda x: x.std(),
    "number": lambda x: x["a"].var(), "pair": lambda x: (x[["c", "a"]], x.max(axis="columns")),
}  # fmt: skip


@hypothesis.settings(max_examples=50, deadline=None)
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
