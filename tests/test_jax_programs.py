"""What JAX's transformations make of random programs, other ones in every run, against the programs themselves."""

from __future__ import annotations

import numpy as np
import pytest

import kfusion as kf
from kfusion import _core
from programs.drawing import PROFILES, Seeded, draw_program

jax = pytest.importorskip("jax")
if jax.__version_info__ < (0, 8):
    pytest.skip("needs JAX 0.8", allow_module_level=True)

from kfusion._jax.jaxprs import inlined  # noqa: E402
from kfusion._jax.nodes import built  # noqa: E402
from kfusion._jax.program import Program  # noqa: E402
from kfusion._jax.sharding import factors  # noqa: E402

COUNT = 60  # of each test


OF_ARRAYS = [p for p in PROFILES if not p.of_torch]  # which JAX runs, too


def drawn(seed):
    """Programs that write to no input, with their arrays in C order."""
    for number in range(COUNT):
        made = draw_program(Seeded(seed + number), OF_ARRAYS[number % len(OF_ARRAYS)])
        arrays = [np.array(x, order="C") for x in made.inputs]
        graph = kf.trace(made.function(), *arrays)
        nodes = graph.to_dict()["nodes"]
        inputs = [n for n in nodes if n["op"] == "input"]
        if len(inputs) == len(arrays) and not any(n["op"] == "library_call" for n in nodes):
            yield number, Program.of(graph), arrays


def computed(program, arrays):
    with np.errstate(all="ignore"):
        return [np.asarray(y) for y in _core.run_graph(built(program.graph), list(arrays), "test")]


def same(got, want, what):
    assert got.shape == want.shape, what
    wide = [a.astype(np.float64) if a.dtype.kind not in "bi" else a for a in (got, want)]
    np.testing.assert_allclose(*wide, rtol=1e-6, err_msg=what)


def test_mapped(seed):
    rng = np.random.default_rng(seed)
    checked = 0
    for number, program, arrays in drawn(seed):
        flags = tuple(bool(f) for f in rng.integers(0, 2, len(arrays)))
        if not any(flags):
            flags = (True, *flags[1:])
        several = [np.stack([x, np.roll(x, 1)]) if f else x for x, f in zip(arrays, flags, strict=True)]
        mapped, has_axis = program.batched(flags, 2)
        got = computed(mapped, several)
        for k in range(2):
            want = computed(program, [x[k] if f else x for x, f in zip(several, flags, strict=True)])
            for y, w, has in zip(got, want, has_axis, strict=True):
                same(y[k] if has else y, w, f"program {number}, mapped {flags}")
        checked += 1
    assert checked > COUNT / 2


def test_cut(seed):
    """A part of the arrays along a free factor gives that part of the results."""
    checked = 0
    for number, program, arrays in drawn(seed):
        found = factors(program)
        whole = computed(program, arrays)
        for factor in found.free:
            extents = {
                s
                for its, node in zip([*found.inputs, *found.outputs], [*program.inputs, *program.outputs], strict=True)
                for f, s in zip(its, node["shape"], strict=True)
                if f == factor
            }
            (extent,) = extents
            start, stop = extent // 3, extent - extent // 4

            def part(x, its, factor=factor, start=start, stop=stop):
                return np.array(x[tuple(slice(start, stop) if f == factor else slice(None) for f in its)], order="C")

            smaller = found.resized({factor: stop - start})
            got = computed(smaller, [part(x, its) for x, its in zip(arrays, found.inputs, strict=True)])
            for y, w, its in zip(got, whole, found.outputs, strict=True):
                same(y, part(w, its), f"program {number}, factor {factor}")
            checked += 1
    assert checked > COUNT / 4


def test_inside_of_others(seed):
    """A program whose nodes become those of another trace."""
    for number, program, arrays in drawn(seed):
        if arrays:
            graph = kf.trace(lambda *xs, program=program: tuple(inlined(xs[0]._tracer, program, xs)), *arrays)
            for y, w in zip(computed(Program.of(graph), arrays), computed(program, arrays), strict=True):
                same(y, w, f"program {number}")
