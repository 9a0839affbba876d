"""Fused functions in JAX's processes: with several devices, and with executables that another process kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kfusion as kf

jax = pytest.importorskip("jax")

pytestmark = [
    pytest.mark.skipif(jax.__version_info__ < (0, 8), reason="needs JAX 0.8"),
    pytest.mark.skipif(jax.default_backend() != "cpu", reason="of JAX on the CPU"),
]


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
def test_an_executable_of_another_process(tmp_path):
    """The custom call has all that it is made of."""
    for mode in ("write", "read"):
        program = f"import sys; sys.argv[1:] = [{mode!r}, {str(tmp_path / 'executable')!r}]\n" + KEPT
        said = in_a_process(program)
    assert said == "done\n"
