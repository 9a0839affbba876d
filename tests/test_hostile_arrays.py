"""Arrays that export what no memory has, other than what they say, or something else each time: refused, never read
or written out of bounds."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from capsules import Changing, Producer
from sweeps import sweep

pytestmark = pytest.mark.native

X = np.arange(32, dtype=np.float32).reshape(4, 8) - 9
FUNCTIONS = {"named": kf.fused_relu_layernorm, "eager": kf.relu, "fused": kf.fuse(lambda x: kf.relu(x) * 2)}

REFUSED: dict[str, dict[str, Any]] = {
    "fewest axes": {"ndim": -(2**31)},
    "an axis less than none": {"ndim": -1},
    "many axes": {"ndim": 65},
    "most axes": {"ndim": 2**31 - 1},
    "no shape": {"shape": None, "ndim": 2},
    "negative extent": {"shape": (4, -8)},
    "least extent": {"shape": (-(2**63), 8)},
    "extents beyond 64 bits": {"shape": (2**32, 2**32)},
    "long strides": {"strides": (2**61, 1)},
    "long strides back": {"strides": (-(2**61), 1)},
    "longest strides": {"strides": (2**63 - 1, 1)},
    "longest strides back": {"strides": (8, -(2**63))},
    "strides beyond the address space": {"strides": (2**60, 2**58)},
    "strides below the address space": {"strides": (-(2**50), 1)},
    "long offset": {"byte_offset": 2**63},
    "longest offset": {"byte_offset": 2**64 - 4},
    "no memory": {"data": None},
    "no memory with an offset": {"data": None, "byte_offset": 64},
    "the end of memory": {"data": 2**64 - 8},
    "no lanes": {"dtype": (2, 32, 0)},
    "several lanes": {"dtype": (2, 32, 4)},
    "odd bits": {"dtype": (2, 31, 1)},
    "unknown code": {"dtype": (250, 32, 1)},
    "another device": {"device": (2, 0)},
    "an unknown device": {"device": (-7, 3)},
}


def test_exports_that_no_memory_has():
    def check(what, function):
        with pytest.raises((ValueError, TypeError), match=r"^kfusion[.\w<>]*: "):
            FUNCTIONS[function](Producer(X, **REFUSED[what]))

    sweep(check, itertools.product(REFUSED, FUNCTIONS))


HARMLESS: dict[str, dict[str, Any]] = {
    "plain": {},
    "an axis of one element, whatever its stride": {"shape": (4, 1, 8), "strides": (8, 2**62, 1)},
    "nothing, whatever the strides": {"shape": (0, 3), "strides": (2**62, -(2**63))},
    "nothing of nowhere": {"shape": (3, 0), "data": None, "byte_offset": 8},
    "reversed": {"strides": (-8, 1), "byte_offset": 3 * 32},
    "broadcast": {"strides": (0, 1)},
}


def view_of(export: dict[str, Any]) -> np.ndarray:
    shape = export.get("shape", X.shape)
    if 0 in shape:
        return np.empty(shape, np.float32)
    strides = [4 * (s if n > 1 else 0) for s, n in zip(export.get("strides", (8, 1)), shape, strict=True)]
    first = X.reshape(-1)[export.get("byte_offset", 0) // 4 :]
    return np.lib.stride_tricks.as_strided(first, shape, strides)


def test_exports_that_are_odd_and_right():
    def check(what, function):
        x = view_of(HARMLESS[what])
        y = FUNCTIONS[function](Producer(X, {"shape": x.shape}, **HARMLESS[what]))
        assert y.shape == x.shape
        assert np.array_equal(y, FUNCTIONS[function](np.ascontiguousarray(x)))

    sweep(check, itertools.product(HARMLESS, FUNCTIONS))


def test_what_says_one_thing_and_exports_another():
    for says in ({"shape": (4, 4000)}, {"shape": (4, 4)}, {"dtype": np.dtype("float64")}):
        for function in (kf.fuse(lambda x: kf.relu(x) * 2), kf.fuse(lambda x: x - x.mean(-1)[:, None])):
            with pytest.raises(ValueError, match="x must export the memory that its shape and dtype say"):
                function(Producer(X, says))
        captured = Producer(X, says)
        with pytest.raises((ValueError, TypeError), match="captured"):
            kf.fuse(lambda x: kf.sum(x) + captured)(X)  # noqa: B023


def test_what_changes_between_exports_is_exported_once():
    for function in FUNCTIONS.values():
        want = function(X)
        for _ in range(2):
            x = Changing(X, {"shape": (4, 8)}, {"shape": (4, 8000)})
            assert np.array_equal(function(x), want)
            assert x.exports == 1


def test_a_result_that_overlaps_its_input_is_exported_once():
    memory = np.zeros(64, np.float32)
    memory[:32] = X.reshape(-1)
    shifted = memory[1:33]  # what is written is read later, so that the result goes through a copy
    f = kf.fuse(lambda x: kf.relu(x) * 2)
    for _ in range(2):
        memory[:32] = X.reshape(-1)
        x = Changing(memory, {"shape": (32,)}, {"shape": (32000,)}, says={"shape": (32,)})
        out = Changing(shifted, {"shape": (32,)}, {"shape": (32000,)}, says={"shape": (32,)})
        assert f(x, out=out) is out
        assert np.array_equal(shifted, np.maximum(X.reshape(-1), 0) * 2)
        assert x.exports == out.exports == 1


def test_a_captured_array_that_never_stays_the_same():
    layouts = [{"shape": (n,)} for n in range(1, 32)]
    captured = Changing(X, *layouts, says={"shape": (1,)})
    with pytest.raises(ValueError, match=r"captured must|an array that the function names"):
        kf.fuse(lambda x: kf.sum(x) + captured)(Producer(X))


def test_devices_that_are_none():
    for device in ((), (1,), (1, 0, 0), ("cpu", 0), None, (2**40, 0)):
        with pytest.raises(TypeError, match="__dlpack_device__ must return two integers"):
            kf.fused_relu_layernorm(Producer(X, {"device": device}))


class Interface:
    """An array by the CUDA array interface."""

    def __init__(self, **fields: Any) -> None:
        plain = {"shape": (4, 8), "typestr": "<f4", "data": (2**40, False), "strides": None, "version": 3}
        self.fields = plain | fields

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.fields


FIELDS: list[dict[str, Any]] = [
    *({"shape": shape} for shape in (None, (4, -8), (1,) * 65, (2**70,), (2**32, 2**32))),
    *({"strides": strides} for strides in ((4,), (2**62, 4), (-(2**50), 4))),
    *({"typestr": text} for text in (None, ">f4")),
    *({"data": data} for data in (None, (0, False), (2**40,))),
    {"mask": 1},
]


def test_the_cuda_array_interface():
    def check(fields):
        with pytest.raises((ValueError, TypeError), match=r"^kfusion(.relu_layernorm: x|: an array) "):
            kf.fused_relu_layernorm(Interface(**fields))

    sweep(check, [(fields,) for fields in FIELDS])
