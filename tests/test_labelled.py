"""Arrays with labels: xarray's, pandas' and polars', and those of the array API that export DLPack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kfusion as kf

VALUES = np.arange(6.0).reshape(2, 3) - 2


@kf.fuse
def activated(x: Any, y: Any) -> Any:
    return kf.relu(x - y) * 2


class TestXarray:
    @pytest.fixture(autouse=True)
    def library(self):
        self.xr = pytest.importorskip("xarray")

    def made(self) -> Any:
        coords = {"t": [10, 20], "c": list("xyz"), "lon": ("t", [1.0, 2.0]), "run": 7}
        return self.xr.DataArray(VALUES, dims=("t", "c"), coords=coords, attrs={"unit": "K"}, name="heat")

    def test_maps_keep_all(self):
        x = self.made()
        wanted = x.copy(data=np.maximum(VALUES - 1, 0) * 2)
        for got in (activated(x, 1.0), activated(x, np.ones(3)), activated(x, self.made() * 0 + 1)):
            assert got.identical(wanted) or got.assign_attrs(x.attrs).identical(wanted)
        assert activated(x, 1.0).attrs == {"unit": "K"}

    def test_reductions_keep_what_has_an_axis(self):
        x = self.made()
        got = kf.fuse(lambda x: {"softmax": kf.softmax(x), "sums": kf.sum(x, -1), "mean": x.mean(), "turned": x.T})(x)
        assert got["softmax"].dims == x.dims
        assert got["sums"].identical(x.sum("c", keep_attrs=False))
        assert got["turned"].identical(x.T)
        assert got["mean"].identical(x.mean())

    def test_dimensions_meet_by_name(self):
        x = self.made()
        for f in (
            lambda x: x - x.mean("t"),
            lambda x: x * x.T,
            lambda x: x @ x.T,
            lambda x: x[1:],
            lambda x: x.sel(t=10),
        ):
            self.xr.testing.assert_allclose(kf.fuse(f)(x), f(x))
        apart = x.assign_coords(t=[20, 30])  # only t = 20 is in both
        self.xr.testing.assert_identical(kf.fuse(lambda x, y: x + y)(x, apart), x + apart)

    def test_a_trace_holds_for_its_labels(self):
        x = self.made()
        f = kf.fuse(lambda x: x.sel(t=20))
        for labels in ([10, 20], [20, 10], [20, 30], [10, 20]):
            y = x.assign_coords(t=labels)
            self.xr.testing.assert_identical(f(y), y.sel(t=20))

    def test_results_that_have_no_form(self):
        x = self.made()
        with pytest.raises(kf.TraceError, match="a Dataset is returned"):
            kf.fuse(lambda x: x.to_dataset())(x)
        with pytest.raises(kf.TraceError, match="coordinate 'mean' of a result is computed"):
            kf.fuse(lambda x: x.assign_coords(mean=x.mean("c")))(x)

    def test_lazy_arrays_stay_lazy(self):
        pytest.importorskip("dask.array")
        x = self.made()
        got = activated(x.chunk(t=1), 1.0)
        assert got.chunks == ((1, 1), (3,))
        assert got.compute().equals(activated(x, 1.0))

    def test_coordinates_that_differ(self):
        x = self.made()
        add = kf.fuse(lambda x, y: kf.add(x, y))
        with pytest.raises(ValueError, match=r"differ in coordinate 't': pass the results of xarray\.align"):
            add(x, x.assign_coords(t=[1, 2]))
        with pytest.raises(ValueError, match=r"differ in the names of an axis \('q' and 't'\)"):
            add(x, x.rename(t="q"))
        other = x.assign_coords(run=8)  # belongs to no axis: dropped, as xarray's own arithmetic does
        assert "run" not in activated(x, other).coords

    def test_an_argument_without_coordinates_hides_no_others(self):
        def made(index: Any = None) -> Any:
            return self.xr.DataArray(np.arange(3.0), dims="a", coords=index and {"a": index})

        add = kf.fuse(lambda x, y, z: kf.where(x > 0, y, z))
        with pytest.raises(ValueError, match="differ in coordinate 'a'"):
            add(made(), made([0, 1, 2]), made([2, 1, 0]))
        assert add(made(), made([0, 1, 2]), made()).indexes["a"].tolist() == [0, 1, 2]

    def test_others_are_refused(self):
        with pytest.raises(TypeError, match=r'got Dataset: pass its arrays one by one, x\["variable"\]'):
            activated(self.made().to_dataset(), 1.0)


class TestPandas:
    @pytest.fixture(autouse=True)
    def library(self):
        self.pd = pytest.importorskip("pandas")

    def test_series(self):
        s = self.pd.Series([1.0, -2, 3], index=list("abc"), name="s")
        self.pd.testing.assert_series_equal(activated(s, 0.5), self.pd.Series([1.0, 0, 5], index=s.index, name="s"))
        assert activated(s, s.rename("other")).name is None

    def test_tables(self):
        x = self.pd.DataFrame(VALUES, index=["a", "b"], columns=list("uvw"))
        for f in (lambda x: (x - x.mean()) / x.std(), lambda x: x.sum(), lambda x: x.T, lambda x: x.mean(axis=1)):
            got, wanted = kf.fuse(f)(x), f(x)
            (self.pd.testing.assert_frame_equal if wanted.ndim == 2 else self.pd.testing.assert_series_equal)(
                got, wanted
            )
        got = kf.fuse(lambda x: kf.softmax(x))(x)
        assert (list(got.index), list(got.columns)) == (["a", "b"], list("uvw"))
        self.pd.testing.assert_series_equal(kf.fuse(lambda x: kf.sum(x, -1))(x), x.sum(axis=1))

    def test_columns(self):
        x = self.pd.DataFrame(VALUES, index=["a", "b"], columns=["u", "value", "w"])
        for f in (
            lambda x: x["u"] * x.value,
            lambda x: x[["w", "u"]] + 1,
            lambda x: x.sub(x["u"], axis=0),
            lambda x: x["u"]["b"] * x,
        ):
            got, wanted = kf.fuse(f)(x), f(x)
            (self.pd.testing.assert_frame_equal if wanted.ndim == 2 else self.pd.testing.assert_series_equal)(
                got, wanted
            )
        assert kf.fuse(lambda x: {name: column.sum() for name, column in x.items()})(x) == dict(x.sum())

    def test_what_is_no_table_any_more(self):
        x = self.pd.DataFrame(VALUES)
        got = kf.fuse(lambda x: (x.to_numpy().mean(), np.where(x > 0, x, 0), kf.matmul(x, np.ones((3, 2)))))(x)
        assert got[0] == VALUES.mean()
        assert type(got[1]) is np.ndarray
        np.testing.assert_array_equal(got[1], np.maximum(VALUES, 0))
        assert got[2].shape == (2, 2)

    @pytest.mark.parametrize(
        ("function", "message"),
        [
            (lambda x: x.groupby(level=0), r"DataFrame\.groupby is not traced"),
            (lambda x: x.sort_values("u"), r"DataFrame\.sort_values is not traced"),
            (lambda x: x.sum(min_count=1), "with these arguments is not traced"),
            (lambda x: x.loc["a"], r"DataFrame\.loc is not traced"),
            (lambda x: x[x > 0], r"x\[DataFrame\] of a DataFrame of pandas is not traced"),
            (lambda x: x + x.rename(columns={"u": "k"}), r"DataFrame\.rename is not traced"),
        ],
    )
    def test_refusals(self, function, message):
        x = self.pd.DataFrame(VALUES, index=["a", "b"], columns=list("uvw"))
        with pytest.raises(kf.TraceError, match=message):
            kf.fuse(function)(x)

    def test_plans(self):
        x = self.pd.DataFrame(VALUES)
        assert activated.plan(x, 1.0).fused.issued == activated.plan(VALUES, 1.0).fused.issued

    def test_an_index_that_differs(self):
        s = self.pd.Series([1.0, -2, 3], index=list("abc"))
        with pytest.raises(
            ValueError, match=r"the operands of sub differ in their index: pass the results of x.align\(y\)"
        ):
            activated(s, s[::-1])

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"a": [1.0], "b": [1]}, r'columns of one dtype, got float64, int64: pass x.astype\("float64"\)'),
            ({"a": ["u"]}, r"must have numbers, got .*: pass .* or x.select_dtypes"),
            ({"a": np.array([None, 1.0], dtype=object)}, "must have numbers, got object"),
        ],
    )
    def test_tables_of_other_things(self, values, message):
        with pytest.raises(TypeError, match=message):
            activated(self.pd.DataFrame(values), 1.0)

    def test_other_kinds(self):
        with pytest.raises(TypeError, match="must have numbers, got Int64"):
            activated(self.pd.Series([1, None], dtype="Int64"), 1)
        with pytest.raises(TypeError, match=r"got Index; x.to_numpy\(\)"):
            activated(self.pd.Index([1.0]), 1)

    @pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32"])
    def test_dtypes_that_graphs_have_not(self, dtype):
        s = self.pd.Series([1, 2], dtype=dtype)
        with pytest.raises(TypeError, match=f"x's dtype must be one of .*, got {dtype}"):
            activated(s, 1)
        with pytest.raises(TypeError, match=f"y's dtype must be one of .*, got {dtype}"):  # labels differ, too
            activated(self.pd.Series([1.0, 2], index=[1, 0]), s)

    def test_they_are_not_written_to(self):
        def writes(x: Any) -> Any:
            x += 1
            return x

        s = self.pd.Series([1.0])
        with pytest.raises(kf.TraceError, match=r"x \+= y writes to a Series of pandas"):
            kf.fuse(writes)(s)
        assert s[0] == 1

    def test_a_column_is_not_set(self):
        def writes(x: Any) -> Any:
            x["b"] = x["a"] * 2
            return x

        table = self.pd.DataFrame({"a": [1.0, 2]})
        with pytest.raises(kf.TraceError, match=r"x\['b'\] = y writes to a DataFrame(?s:.*)as a result of its own"):
            kf.fuse(writes)(table)
        assert list(table) == ["a"]

    @pytest.mark.parametrize("name", ["fillna", "clip", "interpolate", "ffill"])
    def test_inplace_says_what_to_write(self, name):
        arguments = {"fillna": (0,), "clip": (0, 1)}.get(name, ())
        with pytest.raises(AttributeError, match=rf"write y = x\.{name}\(\.\.\.\) without inplace=True"):
            kf.fuse(lambda x: getattr(x, name)(*arguments, inplace=True))(self.pd.Series([1.0, np.nan]))


class TestPolars:
    @pytest.fixture(autouse=True)
    def library(self):
        self.pl = pytest.importorskip("polars")

    def test_series(self):
        s = self.pl.Series("s", [1.0, -2, 3])
        got = activated(s, 0.5)
        assert got.name == "s"
        assert got.to_list() == [1, 0, 5]
        assert kf.fuse(lambda x: (x * x).sum())(s) == 14

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ([1.0, None], r"has nulls: pass x.fill_null\(value\) or x.drop_nulls\(\)"),
            (["a"], "must have numbers, got String"),
            (np.array([1, 2], "int8"), "x's dtype must be one of .*, got int8"),
        ],
    )
    def test_other_series(self, values, message):
        with pytest.raises(TypeError, match=message):
            activated(self.pl.Series(values), 1.0)

    def test_tables_are_refused(self):
        with pytest.raises(TypeError, match=r"got DataFrame: pass x.to_numpy\(\), or its columns one by one"):
            activated(self.pl.DataFrame({"a": [1.0]}), 1.0)


def test_arrays_of_two_libraries():
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    with pytest.raises(TypeError, match="arrays must be of one library, got some of pandas and polars"):
        activated(pd.Series([1.0]), pl.Series([1.0]))
    with pytest.raises(TypeError, match="out= and stream= are for arrays in memory, got arrays of pandas"):
        activated(pd.Series([1.0]), 1.0, out=np.ones(1))


def test_arrays_of_the_array_api():
    xp = pytest.importorskip("array_api_strict")
    for name in ("float32", "float64", "int32", "int64"):
        x = xp.asarray([[1, 0, 3]], dtype=getattr(xp, name))
        got = activated(x, x[:, 1:2])
        assert got.__array_namespace__() is xp
        assert got.dtype == x.dtype
        assert xp.all(got == xp.asarray([[2, 0, 6]], dtype=x.dtype))


def _sets_in_dict(kept, given):
    kept["last"] = given["a"] * 2


def _sets_in_list(kept, given):
    kept["all"].append(given["a"] * 2)


def _sets_in_argument(kept, given):
    given["b"] = given["a"] * 2


def _sets_number_in_argument(kept, given):
    given["n"] += 1


@pytest.mark.parametrize("library", ["pandas", "polars", "xarray"])
@pytest.mark.parametrize("sets", [_sets_in_dict, _sets_in_list, _sets_in_argument, _sets_number_in_argument])
def test_what_has_labels_is_set_nowhere(library, sets):
    module = pytest.importorskip(library)
    values = np.random.default_rng().normal(size=5)
    series = module.DataArray(values, dims="x") if library == "xarray" else module.Series(values)
    kept = {"all": []}

    @kf.fuse
    def f(given):
        sets(kept, given)
        return given["a"] + 1

    given = {"a": series, "n": 0}
    for _ in range(2):
        with pytest.raises(kf.TraceError, match="sets something beside its results"):
            f(given)
        assert kept == {"all": []}
        assert list(given) == ["a", "n"]
        assert given["a"] is series
        assert given["n"] == 0


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_numbers_are_set_by_functions_of_labelled_arrays(library):
    module = pytest.importorskip(library)
    kept = {"n": 0}

    @kf.fuse
    def f(s):
        kept["n"] += 1
        return s + 1

    for _ in range(3):
        f(module.Series([1.0, 2.0]))
    assert kept == {"n": 3}
