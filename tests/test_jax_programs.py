"""What JAX's transformations make of random programs, other ones in every run, against the programs themselves; fused
functions in JAX's processes: with several devices, and with executables that another process kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kfusion as kf
from kfusion import _core
from programs.drawing import Seeded, draw_program
from programs.profiles import PROFILES

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


# ---- processes ----

of_the_cpu = pytest.mark.skipif(jax.default_backend() != "cpu", reason="of JAX on the CPU")
SEVERAL = """
import jax, jax.numpy as jnp, numpy as np, kfusion as kf
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

def plain(x, b, w): return jax.nn.softmax(x + b) @ w * 2
f = kf.fuse(lambda x, b, w: np.matmul(kf.softmax(x + b), w) * 2)
rng = np.random.default_rng(1)
x, b, w = (jnp.asarray(rng.normal(size=s), "float32") for s in ((8, 6), (6,), (6, 5)))
close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
loss = lambda f: jax.jit(jax.grad(lambda *a: (f(*a) ** 2).sum(), (0, 1, 2)))
mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))
for checks in (True, False):
    mapped = jax.shard_map(f, mesh=mesh, in_specs=(P("i"), P(), P()), out_specs=P("i"), check_vma=checks)
    close(jax.jit(mapped)(x, b, w), plain(x, b, w))
    for got, want in zip(loss(mapped)(x, b, w), loss(plain)(x, b, w), strict=True):
        close(got, want)

cut = jax.device_put(x, NamedSharding(mesh, P("i", None)))
compiled = jax.jit(f).lower(cut, b, w).compile()
assert "all-gather" not in compiled.as_text(), compiled.as_text()
assert "[2,6]" in compiled.as_text()  # a device's own rows
y = compiled(cut, b, w)
assert y.sharding.spec == P("i", None), y.sharding
close(y, plain(x, b, w))
across = jax.device_put(x, NamedSharding(mesh, P(None, None)))
close(jax.jit(f)(across, b, w), plain(x, b, w))
for got, want in zip(loss(f)(cut, b, w), loss(plain)(x, b, w), strict=True):
    close(got, want)
columns = jax.device_put(jnp.tile(x, (1, 2)), NamedSharding(mesh, P(None, "i")))  # what rows are reduced over
g = jax.jit(kf.fuse(lambda x: x - np.max(x, axis=1, keepdims=True)))
close(g(columns), jnp.tile(x, (1, 2)) - x.max(1, keepdims=True))
counted = jax.jit(kf.fuse(lambda x: x + kf.iota((8, 6), 0, "float32")))
close(counted(cut), x + jnp.arange(8.0)[:, None])
odd = jax.device_put(x[:4], NamedSharding(mesh, P("i", None)))
close(jax.jit(f)(odd, b, w), plain(x[:4], b, w))
with jax.set_mesh(jax.make_mesh((4,), ("i",), axis_types=(AxisType.Explicit,))):
    y = jax.jit(f)(jax.device_put(x, P("i", None)), jax.device_put(b, P()), jax.device_put(w, P()))
    assert jax.typeof(y).sharding.spec == P("i", None), jax.typeof(y)
    close(np.asarray(y), plain(x, b, w))
square = jax.device_put(x[:4, :4], NamedSharding(mesh, P("i", None)))  # a factor twice in an array
for twice in (lambda x: x @ x.T, lambda x: x + x.T, lambda x: x.T @ x):
    close(jax.jit(kf.fuse(twice))(square), twice(x[:4, :4]))
    total = lambda f: jax.jit(jax.grad(lambda x: (f(x) ** 2).sum()))
    close(total(kf.fuse(twice))(square), total(twice)(x[:4, :4]))
added = lambda x, b, w: jnp.tanh(x + b) * x
with jax.set_mesh(jax.make_mesh((4,), ("i",), axis_types=(AxisType.Explicit,))):
    given = [jax.device_put(a, P(*c)) for a, c in ((x, ("i", None)), (b, ()), (w, ()))]
    made = [np.asarray(g) for g in loss(kf.fuse(lambda x, b, w: np.tanh(x + b) * x))(*given)[:2]]
for got, want in zip(made, loss(added)(x, b, w)):
    close(got, want)
one = jax.device_put(x, jax.devices()[2])
assert jax.jit(lambda x: f(x, np.asarray(b), np.asarray(w)))(one).devices() == {jax.devices()[2]}
print("done")
"""


def in_a_process(program, **environment):
    path = os.pathsep.join([str(Path(kf.__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"} | environment,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


@pytest.mark.slow
@of_the_cpu
def test_several_devices():
    assert in_a_process(SEVERAL, XLA_FLAGS="--xla_force_host_platform_device_count=4") == "done\n"


KEPT = """
import sys, jax, jax.numpy as jnp, numpy as np, pickle
from jax.experimental import serialize_executable as kept
import kfusion as kf
x = jnp.arange(12.0).reshape(3, 4)
if sys.argv[1] == "write":
    f = kf.fuse(lambda x: np.exp(-x) @ np.ones((4, 2), "float32"))
    made = kept.serialize(jax.jit(lambda x: f(x)).lower(x).compile())
    open(sys.argv[2], "wb").write(pickle.dumps(made))
else:
    from kfusion._jax import primitive  # which tells XLA of the handler
    f = kept.deserialize_and_load(*pickle.loads(open(sys.argv[2], "rb").read()))
    np.testing.assert_allclose(f(x), np.exp(-np.asarray(x)) @ np.ones((4, 2)), rtol=1e-5)
    print("done")
"""


@pytest.mark.slow
@of_the_cpu
def test_an_executable_of_another_process(tmp_path):
    """The custom call has all that it is made of."""
    for mode in ("write", "read"):
        program = f"import sys; sys.argv[1:] = [{mode!r}, {str(tmp_path / 'executable')!r}]\n" + KEPT
        said = in_a_process(program)
    assert said == "done\n"
