"""kf.spec, and the functions as the package shows them."""

from __future__ import annotations

import inspect
import pickle
import re

import numpy as np
import pytest

import kfusion as kf
from kfusion import _core
from sweeps import sweep


def test_specs():
    s = kf.spec([4, np.int64(3)], np.float16, like="torch", device="cuda")
    assert s == kf.spec((4, 3), "float16", like="torch", device="cuda:0")
    assert hash(s) == hash(pickle.loads(pickle.dumps(s)))
    assert repr(s) == "spec((4, 3), 'float16', like='torch', device='cuda:0')"
    assert (s.ndim, s.size, s.nbytes) == (2, 12, 24)
    assert repr(kf.spec(3)) == "spec((3,), 'float32')"
    assert kf.spec((2,), "bfloat16").dtype == "bfloat16"
    assert kf.spec((2,), bool).dtype == "bool"
    assert kf.spec((), float).dtype == "float64"


def test_wrong_specs():
    def check(arguments, error, text, **more):
        with pytest.raises(error, match=f"^kfusion.spec: {text}"):
            kf.spec(*arguments, **more)

    sweep(check, [
        (((-1,),), ValueError, "an extent must be >= 0, got -1"),
        (((2.0,),), TypeError, "an extent must be an integer, got 2.0"),
        (((True,),), TypeError, "an extent must be an integer, got True"),
        (((1,) * 65,), ValueError, "shape must have at most 64 axes, got 65"),
        (((2**31, 2**31), "float32"), ValueError, r"the array must have at most 2\*\*63 - 1 bytes, got"),
        (((3,), "int8"), TypeError, "dtype must be one of bool, .* got int8"),
        (((3,), None), TypeError, "dtype must be one of bool, .* got None"),
    ])  # fmt: skip
    check((3,), ValueError, 'like must be "numpy" or "torch", got \'jax\'', like="jax")
    for device in ("gpu", "cuda:", "cuda:-1", "cpu:0"):
        check((3,), ValueError, "device must be", device=device)


def test_every_row_is_a_function_with_documentation():
    for row in _core.op_table():
        for name in (row["name"], *row["other_names"]):
            if row["kind"] in ("map", "reduce"):
                f = getattr(kf, name)
                assert name in kf.__all__
                assert f.__name__ == row["name"]
                doc = row["doc"]
                for letter, parameter in zip("xyz", inspect.signature(f).parameters, strict=False):
                    doc = re.sub(rf"\b{letter}\b", parameter, doc)
                assert doc in f.__doc__
                assert pickle.loads(pickle.dumps(f)) is f
    assert str(inspect.signature(kf.hypot)) == "(x: 'Array', y: 'Array') -> 'Array'"
    assert str(inspect.signature(kf.sum)) == "(x: 'Array', axis: 'Axes' = None, keepdims: 'bool' = False) -> 'Array'"


def test_functions_are_documented():
    functions = [f for n in kf.__all__ if inspect.isfunction(f := getattr(kf, n))]
    assert len(functions) > 100
    for f in functions:
        for part in ("Args:", "Returns:"):
            assert f.__doc__ is not None
            assert part in f.__doc__ or not inspect.signature(f).parameters, (f.__name__, part)
        for parameter in inspect.signature(f).parameters:
            assert f"{parameter}" in f.__doc__, (f.__name__, parameter)
