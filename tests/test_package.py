"""The installed package: what import costs, what help() says, that the stubs and the instruction-set levels hold."""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import pathlib
import pickle
import re
import subprocess
import sys

import pytest

import kfusion as kf
from kfusion import _core

ALLOWED = os.path.join(os.path.dirname(__file__), "stubtest_allowlist.txt")
FUNCTIONS = [
    f
    for module in (_core, _core.testing)
    for name in dir(module)
    if callable(f := getattr(module, name)) and not inspect.isclass(f)
]


def test_version_stands_in_one_place():
    assert kf.__version__ == importlib.metadata.version("kfusion")


def test_the_import_bears_a_collection_at_any_moment():
    code = "import gc, numpy\ngc.set_threshold(1)\nimport kfusion as kf\nkf.fuse(lambda x: x + 1)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_includes():
    """No file includes iostreams (cpp/kfusion/files.hpp), and platform files alone ask the operating system, so that a
    port has these files to write, and no others."""
    root = pathlib.Path(__file__).parent.parent
    files = [f for folder in ("cpp", "cuda") for f in (root / folder).rglob("*") if f.suffix in (".cpp", ".hpp", ".cu")]
    stream = re.compile(r"#include <(\w*stream|iomanip|locale|regex)>")
    assert not [f for f in files if stream.search(f.read_text())]
    posix = re.compile(
        r"#include <(sys/.*|unistd|fcntl|dirent|dlfcn|pthread|signal|sched|link|pwd|poll|netdb|spawn|execinfo)[.]h>"
        r"|#include <sys/|\bpthread_\w+\("
    )
    assert {f.name for f in files if posix.search(f.read_text())} == {"platform.cpp"}


def test_all_is_what_there_is():
    assert os.path.exists(os.path.join(os.path.dirname(kf.__file__), "py.typed"))
    assert set(kf.__all__) <= set(dir(kf))
    public = {n for n in vars(kf) if not n.startswith("_") and not inspect.ismodule(getattr(kf, n))}
    assert public == {n for n in kf.__all__ if not n.startswith("_")}


def test_signatures_and_docstrings():
    for f in FUNCTIONS:
        assert f.__text_signature__, f"{f.__name__} has no __text_signature__"
        inspect.signature(f)
        assert f.__doc__
        assert not f.__doc__.startswith(f.__name__), "the signature line was not taken off"
    text = "(x, weight=None, bias=None, *, axis=-1, eps=1e-05, out=None, stream=None)"
    assert str(inspect.signature(kf.fused_relu_layernorm)) == text
    assert str(inspect.signature(kf.unfused_relu_layernorm)) == text


def test_functions_and_errors_pickle():
    assert pickle.loads(pickle.dumps(kf.fused_relu_layernorm)) is kf.fused_relu_layernorm
    assert isinstance(pickle.loads(pickle.dumps(kf.DeviceError("x"))), kf.DeviceError)
    assert issubclass(kf.DeviceError, RuntimeError)


@pytest.mark.parametrize("has_torch", [True, False])
def test_torchs_attention_is_planned_before_torch_is_imported(has_torch):
    """From specs alone, in a process that has not imported torch, or cannot."""
    code = "import sys; sys.modules['torch'] = None\n" if not has_torch else ""
    code += """
import kfusion as kf
q = kf.spec((2, 4, 64, 16), "float16", like="torch")
assert kf.plan(kf.attention, q, q, q, device="H200").fused.launches == 1
"""
    if has_torch:
        pytest.importorskip("torch")
    subprocess.run([sys.executable, "-c", code], check=True)


def test_import_loads_no_cuda_library():
    code = (
        "import kfusion, re; maps = open('/proc/self/maps').read(); "
        "assert not re.search('libcuda|libcudart|libnvrtc|libcublas', maps), maps"
    )
    if not os.path.exists("/proc/self/maps"):
        pytest.skip("needs /proc")
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_a_device_cuda_calls_say_what_helps():
    code = """
import numpy as np, kfusion as kf
from kfusion import _core
assert _core.cuda_device_count() == 0
for call in (lambda: kf.to_device(np.ones(3, np.float32)), _core.cuda_device_info, _core.cuda_synchronize,
             lambda: _core.cuda_time(print, 1), lambda: _core.cuda_profile(print)):
    try: call()
    except kf.DeviceError as e: assert "kfusion" in str(e) and len(str(e)) > 30, e
    else: raise AssertionError("no DeviceError")
assert kf.empty_cache() >= 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})


@pytest.mark.slow
def test_stubs_match_the_module():
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "kfusion._core", "--allowlist", ALLOWED],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


USE = (
    "import kfusion as kf, numpy as np; print(kf.fuse(lambda x: kf.relu(x) + 1)(np.ones(2)), kf.fused_softmax.__name__)"
)


def test_it_runs_without_docstrings_and_asserts():
    for options in (["-OO"], ["-X", "utf8=0"]):
        ran = subprocess.run([sys.executable, *options, "-c", USE], capture_output=True, text=True, check=True)
        assert ran.stdout == "[2. 2.] fused_softmax\n"


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_paths_need_not_be_utf8(tmp_path, locale):
    odd = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(odd)
    path = odd + b":" + os.fsencode(os.path.dirname(os.path.dirname(os.path.abspath(kf.__file__))))
    environment = os.environb | {b"LC_ALL": locale.encode(), b"PYTHONPATH": path}
    ran = subprocess.run([sys.executable, "-c", USE], capture_output=True, text=True, check=True, env=environment)
    assert ran.stdout == "[2. 2.] fused_softmax\n"
