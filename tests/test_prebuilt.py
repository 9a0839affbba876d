"""Kernels that are compiled when the package is built: which texts they are, and that calls ask for no others."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kfusion import _core, _prebuilt

ROWS = [pytest.param(row, id=f"{row.name}-{i}") for i, row in enumerate(_prebuilt.FUNCTIONS)]
CHOICES = (_prebuilt.COMMON, _prebuilt.FUNCTIONS)
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
needs_prebuilt = pytest.mark.skipif(not _core.testing.prebuilt_keys(), reason="nothing was prebuilt for sm_90")


def some_lengths(rng):
    """Lengths of all magnitudes."""
    return [int(n) // 8 * 8 for n in np.exp2(rng.uniform(4, 22, 24))]


def first_text():
    return next(_prebuilt.texts(_prebuilt.FUNCTIONS, [1024]))


@pytest.mark.parametrize("row", ROWS)
def test_the_walk_meets_every_class_of_lengths(row, rng):
    known = {t.key for t in _prebuilt.texts([row], _prebuilt.LENGTHS)}
    lengths = some_lengths(rng)
    assert known
    for length in lengths:
        missing = [t for t in _prebuilt.texts([row], [length]) if t.key not in known]
        assert not missing, f"rows of {length}: {missing[0].source}"


@needs_prebuilt
def test_all_of_them_were_built():
    common, every = ({t.key for t in _prebuilt.texts(rows, _prebuilt.LENGTHS)} for rows in CHOICES)
    assert set(_core.testing.prebuilt_keys()) in (common, every)


@needs_prebuilt
def test_they_run_where_their_architecture_says():
    assert _core.testing.prebuilt_keys((9, 0)) == _core.testing.prebuilt_keys((9, 9))
    assert not _core.testing.prebuilt_keys((5, 0))


def test_the_key_is_of_text_and_name():
    text = first_text()
    others = {_core.prebuilt_key(text.source + " ", text.entry), _core.prebuilt_key(text.source, text.entry + "_")}
    assert text.key == _core.prebuilt_key(text.source, text.entry)
    assert len({text.key, *others}) == 3


def test_a_unit_has_every_kernel_once():
    kernels = list(_prebuilt.texts([r for r in _prebuilt.FUNCTIONS if r.name == "fused_rmsnorm"], [16, 1024]))
    text = _prebuilt.unit_text(kernels)
    entries = re.findall(r"^    (kf_\w+)\(const __grid_constant__", text, re.MULTILINE)
    assert entries == [_prebuilt.numbered(k.entry, i) for i, k in enumerate(kernels)]
    assert text.count("#include") == len({i for k in kernels for i in re.findall("#include.*", k.source)})


@needs_nvcc
def test_building_makes_code_that_a_second_build_uses_again(tmp_path, monkeypatch):
    wanted = [_prebuilt.Row("fused_softmax", ("float32",), ((),), 4096)]
    monkeypatch.setattr(_prebuilt, "LENGTHS", [64, 1024])
    _prebuilt.build(wanted, ["90-real"], str(shutil.which("nvcc")), tmp_path, tmp_path / "work")
    file = tmp_path / "90-real.kernels"
    keys = [line.split()[0].decode() for line in file.read_bytes().split(b"\n")[1:3]]
    assert keys == [t.key for t in _prebuilt.texts(wanted, [64, 1024])]
    first = file.read_bytes()
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("compiled again"))
    _prebuilt.build(wanted, ["90-real"], str(shutil.which("nvcc")), tmp_path, tmp_path / "work")
    assert file.read_bytes() == first


def test_none_is_a_choice(tmp_path):
    _prebuilt.build((), ["80-real", "90"], "no nvcc is needed", tmp_path, tmp_path / "work")
    assert [f.read_bytes() for f in sorted(tmp_path.glob("*.kernels"))] == [b"kfusion-prebuilt-1 0\n"] * 2


@pytest.mark.cuda
@needs_prebuilt
def test_calls_need_no_nvrtc(tmp_path):
    """In a process of its own, which has compiled nothing."""
    code = """
import numpy as np, kfusion as kf
for cols in (16, 64, 1000, 1024, 4096):
    x = np.random.default_rng(0).standard_normal((3, cols)).astype(np.float32)
    p = np.ones(cols, np.float32)
    calls = [(kf.fused_layernorm, (p, p)), (kf.fused_rmsnorm, (p,)), (kf.fused_softmax, ())]
    for f, given in [(kf.fused_relu_layernorm, (p, p)), (kf.fused_relu_layernorm, ()), *calls]:
        got = f(kf.to_device(x), *map(kf.to_device, given)).numpy()
        assert np.allclose(got, f(x, *given), atol=1e-4), (f, cols)
"""
    environment = {**os.environ, "KFUSION_NVRTC": str(Path(__file__)), "KFUSION_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
