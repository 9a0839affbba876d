"""Kernels of the CPU as machine code: compiling LLVM's language, and loading the objects."""

import os
import random
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time
from importlib.util import find_spec

import pytest

from kfusion import _core, _llvm
from kinds import SANITIZED
from small_kernels import ARM, TEXT, add, call, check, check_add
from sweeps import sweep

pytestmark = [pytest.mark.native, pytest.mark.skipif(find_spec("llvmlite") is None, reason="needs llvmlite")]

PRELUDE = """
import ctypes, sys
import numpy as np
from kfusion import _core
import small_kernels as t
"""


def run_python(code, *, returns=0, **environment):
    """What a fresh process prints, and what it says on stderr."""
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == returns, done.stderr
    return done.stdout, done.stderr


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where compiled kernels are kept; nothing is there yet."""
    monkeypatch.setenv("KFUSION_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("KFUSION_CACHE_MB", raising=False)
    return tmp_path / "cache" / "kfusion"


def host_object():
    facts = _core.testing.host_facts()
    return _llvm.compile_object(TEXT, facts["triple"], facts["cpu"], facts["features"])


class TestCompiling:
    def test_runs(self, isa):
        code = _core.testing.machine_code(TEXT)
        check(lambda *a: call(code, *a))

    @pytest.mark.skipif("aarch64" in _core.testing.host_facts()["triple"], reason="has one level")
    def test_target(self, isa):
        facts = _core.testing.host_facts()
        assert facts["vector_bytes"] == {"avx512": 64, "avx2": 32, "baseline": 16}[isa]

    def test_refused(self):
        def check(text, message):
            with pytest.raises(RuntimeError, match=message):
                _core.testing.machine_code(text)

        loop = "br label %a\na:\n  %y = add i32 %z, 1\n  %z = add i32 %y, 1"  # parses, and is no function
        rows = [
            (TEXT.replace("fmul <8 x float>", "fmul <9 x float>"),
             r"LLVM refuses the text of a kernel(.|\n)*define void @scale(.|\n)*\.\.\.$"),
            (f"define void @f(i32 %x) {{\n  {loop}\n  ret void\n}}", "LLVM refuses"),
            ("declare void @other()\ndefine void @f() {\n  call void @other()\n  ret void\n}",
             "object code is refused: it refers to other"),
            ("@n = global i64 3\ndefine void @f() {\n  store i64 4, ptr @n\n  ret void\n}",
             "object code is refused: it has data that is written"),
            ("@n = external global i64\ndefine void @f() {\n  store i64 4, ptr @n\n  ret void\n}",
             "object code is refused: it refers to n"),
        ]  # fmt: skip
        sweep(check, rows)
        with pytest.raises(IndexError, match="no function nothing"):
            _core.testing.machine_code(TEXT).address("nothing")


class TestObjects:
    def test_loads(self):
        code = _core.testing.load_object(host_object())
        check(lambda *a: call(code, *a))

    def test_of_another_processor(self):
        with pytest.raises(RuntimeError, match="another processor"):
            _core.testing.load_object(_llvm.compile_object(TEXT, *ARM))

    def test_code_that_is_not_in_memory(self):
        """Its functions have no addresses; constants are there."""
        text = "@c = constant i32 7\n" + TEXT
        facts = _core.testing.host_facts()
        whole = bytearray(_llvm.compile_object(text, facts["triple"], facts["cpu"], facts["features"]))
        (sections_at,), (count,) = struct.unpack_from("<Q", whole, 40), struct.unpack_from("<H", whole, 60)
        in_memory, executable = 2, 4
        for flags_at in (sections_at + 64 * i + 8 for i in range(count)):
            (flags,) = struct.unpack_from("<Q", whole, flags_at)
            struct.pack_into("<Q", whole, flags_at, flags & ~in_memory if flags & executable else flags)
        with pytest.raises(RuntimeError, match="a function is not in memory"):
            _core.testing.load_object(bytes(whole))

    def test_truncations_and_mutations(self, rng):
        """Each is refused or loads; sanitizers see what is read or written outside of it."""
        whole = host_object()
        for length in range(len(whole)):
            with pytest.raises(RuntimeError, match="refused"):
                _core.testing.load_object(whole[:length])
        refused = 0
        for _ in range(20000):
            damaged = bytearray(whole)
            for _ in range(rng.integers(1, 4)):
                at = rng.integers(len(whole)) if rng.random() < 0.5 else rng.integers(64)
                damaged[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.integers(256)])
            try:
                _core.testing.load_object(bytes(damaged))
            except RuntimeError as error:
                assert "object code is refused" in str(error)  # noqa: PT017
                refused += 1
        assert refused > 1000


class TestDisk:
    def test_another_process_needs_no_compiler(self, folder):
        check(lambda *a: call(_core.testing.machine_code(TEXT), *a))
        out, _ = run_python("""
            code = _core.testing.machine_code(t.TEXT)
            t.check(lambda *a: t.call(code, *a))
            print("llvmlite" in sys.modules, _core.testing.can_compile())
            _core.testing.machine_code(t.add(1))
            print("llvmlite" in sys.modules)
        """)
        assert out.split() == ["False", "True", "True"]

    def test_what_makes_another_entry(self, folder):
        before = _core.isa()
        try:
            for level in _core.available_isas():
                _core.testing.set_isa(level)
                kept = [_core.testing.machine_code(text) for text in (add(1), add(2), add(1))]
            assert len(list(folder.iterdir())) == 2 * len(_core.available_isas())
            del kept
        finally:
            _core.testing.set_isa(before)
        run_python("""
            from kfusion import _llvm
            _core.set_compiler(_llvm.compile_object, lambda: "another version")
            _core.testing.machine_code(t.add(1))
        """)
        assert len(list(folder.iterdir())) == 2 * len(_core.available_isas()) + 1

    @pytest.mark.parametrize("damage", ["cut", "bit", "image", "empty"])
    def test_damage(self, folder, damage):
        """What does not load is compiled anew, and replaced."""
        number = random.SystemRandom().randrange(10**9)
        check_add(_core.testing.machine_code(add(number)), number)
        (entry,) = folder.iterdir()
        whole = entry.read_bytes()
        if damage == "cut":
            entry.write_bytes(whole[:-1])
        elif damage == "bit":
            entry.write_bytes(whole[:-100] + bytes([whole[-100] ^ 4]) + whole[-99:])
        else:  # the cache finds nothing wrong with it
            image = b"" if damage == "empty" else _llvm.compile_object(add(number), *ARM)
            _core.testing.write_kernel(entry.stem, image)
        check_add(_core.testing.machine_code(add(number)), number)
        assert entry.read_bytes() == whole

    def test_where_nothing_can_be_kept(self, folder):
        """A folder that cannot be used, a full disk, no megabytes: said once, or not at all."""
        code = """
            for number in range(3):
                t.check_add(_core.testing.machine_code(t.add(number)), number)
        """
        _, err = run_python(code, KFUSION_CACHE_DIR="/proc/self")
        assert err.count("compiled kernels are not kept on disk: /proc/self") == err.count("\n") == 1
        _, err = run_python(code, KFUSION_CACHE_MB="0")
        assert err == ""
        assert not folder.exists()
        no_bytes = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"  # in any file
        _, err = run_python(no_bytes + textwrap.dedent(code))
        assert err.count("cannot be written to") == 1
        assert list(folder.iterdir()) == []


class TestRefusals:
    """Where nothing can be compiled or run, that is said once and clearly."""

    def test_no_llvmlite(self, folder):
        """Kernels are interpreted then."""
        out, err = run_python("""
            sys.modules["llvmlite"] = None
            import kfusion as kf
            print([_core.testing.can_compile() for _ in range(3)])
            try: _core.testing.machine_code(t.add(1))
            except RuntimeError as error: print(error)
            _core.testing.set_loops_by("generated")
            x = np.arange(6, dtype=np.float32).reshape(2, 3)
            print(kf.fuse(lambda x: (x * 2 + 1).sum(0))(x), kf.fuse(lambda x: kf.exp(x @ x.T) * 0)(x).sum())
            print(_core.testing.left_to_interpreter())
        """)
        first, refused, *results = out.splitlines()
        assert first == "[False, False, False]"
        assert refused.startswith("kfusion: kernels of the CPU are compiled by llvmlite")
        assert results == ["[ 8. 12. 16.] 0.0", "{}"]
        assert err.startswith("kfusion: kernels of the CPU are interpreted, which is slow: llvmlite")
        assert err.count("pip install llvmlite") == err.count("\n") == 1

    def test_no_memory_to_execute(self, folder):
        """Hardened systems have none: pages that were written to are never executable (Linux 6.3)."""
        out, err = run_python("""
            libc = ctypes.CDLL(None, use_errno=True)
            print(libc.prctl(65, 1, 0, 0, 0))
            print([_core.testing.can_compile() for _ in range(3)])
            try: _core.testing.machine_code(t.add(1))
            except RuntimeError as error: print(error)
        """)
        if not out.startswith("0\n"):
            pytest.skip("this system has no such limit")
        assert out.splitlines()[1] == "[False, False, False]"
        assert "the system gives no memory for machine code: mprotect" in out.splitlines()[2]
        assert err.count("the system gives no memory for machine code") == 1


class TestThreads:
    def test_a_caller_with_little_stack(self):
        """LLVM recurses along chains: 1000 operations take more than 128 KB."""
        out, _ = run_python("""
            import threading
            lines = [f"%v{i + 1} = fmul <64 x double> %v{i}, %v0" for i in range(2000)]
            text = "\\n".join(["define void @scale(ptr %p) {", "%v0 = load <64 x double>, ptr %p", *lines,
                              "store <64 x double> %v2000, ptr %p", "ret void", "}"])
            before = threading.stack_size(128 << 10)
            thread = threading.Thread(target=lambda: print(_core.testing.machine_code(text).bytes > 2000))
            thread.start()
            thread.join()
            print(threading.stack_size(before) == 128 << 10)
        """, KFUSION_CACHE_MB="0")  # fmt: skip
        assert out == "True\nTrue\n"

    def test_children_of_a_process_that_compiles(self):
        """Forked at any moment of a compilation, a child compiles, too, and so does its parent."""
        out, _ = run_python("""
            import os, signal, threading, time
            done = threading.Event()
            def busy():
                number = 0
                while not done.is_set():
                    _core.testing.machine_code(t.add(number))
                    _core.testing.machine_code(t.TEXT + f"; {number}")
                    number += 1
            thread = threading.Thread(target=busy)
            thread.start()
            time.sleep(0.2)
            failed = 0
            for n in range(20):
                time.sleep(0.003 * n)
                child = os.fork()
                if child == 0:
                    signal.alarm(30)
                    t.check_add(_core.testing.machine_code(t.add(10**6 + n)), 10**6 + n)
                    os._exit(0)
                failed += os.waitpid(child, 0)[1] != 0
            done.set()
            thread.join()
            t.check_add(_core.testing.machine_code(t.add(7)), 7)
            print(failed)
        """, KFUSION_CACHE_MB="0")  # fmt: skip
        assert out == "0\n"

    @pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="has no timers")
    def test_interrupts(self, folder, rng):
        """Ctrl-C at any moment: the same thread compiles afterwards, and other threads do."""

        def raise_interrupt(*_):
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, raise_interrupt)
        interrupted = 0
        try:
            for number in range(60):
                signal.setitimer(signal.ITIMER_REAL, float(rng.uniform(1e-4, 4e-3)))
                try:
                    for i in range(100):
                        _core.testing.machine_code(add(10**7 + 1000 * number + i))
                except KeyboardInterrupt:
                    interrupted += 1
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                check_add(_core.testing.machine_code(add(number)), number)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert interrupted > 30
        thread = threading.Thread(target=lambda: check_add(_core.testing.machine_code(add(-1)), -1), daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs Linux")
@pytest.mark.skipif(SANITIZED, reason="AddressSanitizer keeps freed memory")
class TestMemory:
    def resident_and_maps(self):
        with open("/proc/self/statm") as statm, open("/proc/self/maps") as maps:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"), len(maps.readlines())

    def test_what_is_dropped_goes(self, monkeypatch):
        monkeypatch.setenv("KFUSION_CACHE_MB", "0")
        start = time.monotonic_ns()
        for number in range(50):
            _core.testing.machine_code(add(start + number))
        resident, maps = self.resident_and_maps()
        for number in range(50, 550):
            check_add(_core.testing.machine_code(add(start + number)), start + number)
        resident_after, maps_after = self.resident_and_maps()
        assert maps_after <= maps + 5
        assert resident_after - resident < 4e6

    def test_what_is_kept_takes_few_maps(self):
        """Neighbouring pages of code are one map: a process may have some 65,000."""
        code = host_object()
        _, maps = self.resident_and_maps()
        kept = [_core.testing.load_object(code) for _ in range(2000)]
        assert self.resident_and_maps()[1] - maps < 500
        assert len({c.address("scale") for c in kept}) == 2000
        del kept
        assert self.resident_and_maps()[1] - maps < 50
