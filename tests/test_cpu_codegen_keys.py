"""Keys of forms (cpp/cpu/codegen/form/form_key.hpp): kernels of other sizes find code without a text: the right one."""

import hypothesis
import numpy as np
import pytest

import kfusion as kf
from graph_strategies import cases
from kfusion import _core

DEVICE = kf.device("cpu").to_dict()
TARGETS = ("avx512", "avx2", "aarch64")
FUNCTIONS = {
    "map": lambda x: kf.exp(x) * 2 + x[..., :1],
    "transposed": lambda x: x.swapaxes(-1, -2) + kf.iota((x.shape[-1], x.shape[-2]), 1),
    "softmax": kf.softmax,
    "layernorm": kf.layernorm,
    "columns": lambda x: (x - x.max(-2, keepdims=True)).sum(-2),
    "argmax": lambda x: (kf.argmax(x, -1), kf.argmin(x, -2)),
    "loss": lambda x: kf.cross_entropy(
        x.reshape(-1, x.shape[-1]), kf.iota(x.shape[:-1], dtype="int64").reshape(-1) % 2
    ),
    "taken": lambda x: kf.take(x, kf.iota((5,), dtype="int64") % 2, -2).sum(-1),
    "dropped": lambda x: kf.layernorm(kf.where(kf.philox(kf.iota(x.shape), 1, 7) < 2**31, x, 0)),
}
SHAPES = [(a, b) for a in (2, 3, 17, 60, 5000) for b in (2, 3, 5, 8, 31, 33, 65, 256, 300, 1000, 5000, 70_000)]
SHAPES += [(3, 40, 7), (3, 40, 70), (2, 6, 3000), (20_000, 20), (9000, 2000)]


class Texts:
    """By key, the text that it must have."""

    def __init__(self):
        self.found = {}
        self.kernels = 0

    def add(self, graph):
        for target in TARGETS:
            for kernel in _core.testing.cpu_kernel_texts(graph, DEVICE, target):
                self.kernels += 1
                assert self.found.setdefault(kernel["key"], kernel["text"]) == kernel["text"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_one_key_is_one_text(dtype):
    texts = Texts()
    for f in FUNCTIONS.values():
        for shape in SHAPES:
            texts.add(kf.trace(lambda x, f=f: f(x), kf.spec(shape, dtype)))
    assert len(texts.found) < texts.kernels / 3, "sizes share texts"


RANDOM = Texts()  # of all graphs


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(cases())
def test_of_random_graphs(case):
    RANDOM.add(case.graph)


@pytest.mark.native
def test_a_new_size_finds_code(rng):
    """Whose key it shares; and results are its own."""
    f = kf.fuse(lambda x: kf.softmax(x))
    keys = set()
    for cols in range(256, 300):
        [kernel] = _core.testing.cpu_kernel_texts(kf.trace(lambda x: kf.softmax(x), kf.spec((9, cols))), DEVICE, "avx2")
        keys.add(kernel["key"])
        x = rng.standard_normal((9, cols)).astype(np.float32)
        e = np.exp(x.astype(float) - x.max(-1, keepdims=True))
        np.testing.assert_allclose(f(x), e / e.sum(-1, keepdims=True), rtol=1e-5)
    assert len(keys) == 1


def test_what_is_in_caches_has_one_key():
    """Nothing is fetched ahead, whatever the first-level cache has room for."""
    graphs = [kf.trace(lambda x: kf.layernorm(x), kf.spec((16, cols))) for cols in (1000, 5000)]
    one, other = (_core.testing.cpu_kernel_texts(graph, DEVICE, "avx512")[0]["key"] for graph in graphs)
    assert one == other
