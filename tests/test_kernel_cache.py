"""The cache of compiled kernels on disk: damage, limits, many processes, files and folders of others."""

import json
import os
import re
import stat
import subprocess
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kfusion import _core
from kfusion._cli.main import main
from sweeps import sweep

pytestmark = pytest.mark.native

read, write, clear = _core.testing.read_kernel, _core.testing.write_kernel, _core.clear_kernel_cache
KEY, OTHER = "0" * 31 + "1", "f" * 32
IMAGE = b"\x7fELF\n\0machine code"
MANY = 8  # processes
NOTHING = {"entries": 0, "bytes": 0}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where entries lie; nothing is there yet."""
    monkeypatch.setenv("KFUSION_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("KFUSION_CACHE_MB", raising=False)
    return tmp_path / "cache" / "kfusion"


@pytest.fixture
def entry(folder):
    write(KEY, IMAGE)
    return folder / f"{KEY}.kernel"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


class TestEntries:
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.binary(max_size=3000))
    def test_what_is_kept_comes_back(self, folder, image):
        write(KEY, image)
        assert read(KEY) == image
        assert read(OTHER) is None
        assert names(folder) == [f"{KEY}.kernel"]

    @pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
    def test_what_is_new_is_the_users_own(self, folder, umask):
        before = os.umask(umask)
        try:
            write(KEY, IMAGE)
        finally:
            os.umask(before)
        modes = [stat.S_IMODE(made.stat().st_mode) for made in (folder, folder.parent, folder / f"{KEY}.kernel")]
        assert modes == [0o700, 0o700, 0o600]

    def test_contents_and_clearing(self, folder):
        empty = _core.kernel_cache()
        assert (empty["entries"], empty["bytes"], empty["limit_bytes"]) == (0, 0, 256_000_000)
        write(KEY, IMAGE)
        write(OTHER, IMAGE)
        (folder / "notes.txt").write_text("somebody else's")
        size = sum((folder / f"{key}.kernel").stat().st_size for key in (KEY, OTHER))
        cache = _core.kernel_cache()
        assert (cache["directory"], cache["entries"], cache["bytes"]) == (str(folder), 2, size)
        assert clear() == {"entries": 2, "bytes": size}
        assert names(folder) == ["notes.txt"]
        assert read(KEY) is None


def test_damage(entry):
    """Every truncation, every bit, and something behind it: nothing is read, and it is replaced."""
    whole = entry.read_bytes()
    damaged = [whole[:length] for length in range(len(whole))]
    damaged += [whole + more for more in (b"\0", b"\n", IMAGE)]
    for bit in range(8 * len(whole)):
        other = bytearray(whole)
        other[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(other))
    for bad in damaged:
        entry.write_bytes(bad)
        assert read(KEY) is None, bad
    write(KEY, b"rebuilt")
    assert read(KEY) == b"rebuilt"


def test_another_keys_entry(entry, folder):
    """Its name says that it is ours, and what it begins with is no beginning of that entry."""
    entry.rename(entry.with_name(f"{OTHER}.kernel"))
    assert read(OTHER) is None
    assert clear() == NOTHING
    assert names(folder) == [f"{OTHER}.kernel"]


def test_a_folder_in_its_place(folder):
    (folder / f"{KEY}.kernel" / "inside").mkdir(parents=True)
    assert read(KEY) is None
    write(KEY, IMAGE)  # cannot replace it, and leaves nothing beside it
    assert names(folder) == [f"{KEY}.kernel"]


class TestLimit:
    def test_what_was_not_used_for_longest_goes(self, folder, monkeypatch):
        monkeypatch.setenv("KFUSION_CACHE_MB", "0.001")
        keys = [f"{i:032x}" for i in range(3)]
        for i, key in enumerate(keys[:2]):
            write(key, bytes(300))
            then = time.time() - 1000 + i
            os.utime(folder / f"{key}.kernel", (then, then))
        assert read(keys[0]) is not None  # used: now the first is younger than the second
        write(keys[2], bytes(300))
        assert [read(key) is not None for key in keys] == [True, False, True]
        assert _core.kernel_cache()["bytes"] <= 1000
        write(OTHER, bytes(1000))  # larger than the limit: it costs no other entry
        assert len(names(folder)) == 2

    def test_the_folder_is_not_looked_through_for_each_write(self, folder, monkeypatch):
        """It holds a sixteenth more than the limit at most."""
        monkeypatch.setenv("KFUSION_CACHE_MB", "0.1")
        write(f"{0:032x}", b"")
        for i in range(1, 200):
            write(f"{i:032x}", bytes(1000))
            assert _core.kernel_cache()["bytes"] <= 100_000 * (1 + 1 / 16) + 2000
        names_now = names(folder)
        assert f"{199:032x}.kernel" in names_now
        assert 80 < len(names_now) < 105
        monkeypatch.setenv("KFUSION_CACHE_MB", "0.002")  # a smaller limit counts from the next write on
        write(KEY, IMAGE)
        assert _core.kernel_cache()["bytes"] <= 2000

    def test_none(self, folder, entry, monkeypatch):
        monkeypatch.setenv("KFUSION_CACHE_MB", "0")
        assert read(KEY) is None
        write(OTHER, IMAGE)
        assert names(folder) == [f"{KEY}.kernel"]
        assert "KFUSION_CACHE_MB" in _core.kernel_cache()["problem"]

    def test_files_that_a_dead_process_left(self, folder, monkeypatch):
        write(OTHER, IMAGE)
        monkeypatch.setenv("KFUSION_CACHE_MB", "0.001")  # or it would be long until the folder is looked through
        whole = (folder / f"{OTHER}.kernel").read_bytes()
        left = [f"{OTHER}-{i:016x}.tmp" for i in range(4)]
        for i, name in enumerate(left):
            (folder / name).write_bytes(whole[: 10 * i])
            (folder / name).chmod(0o600)
            if i < 3:
                os.utime(folder / name, (time.time() - 7200,) * 2)
        write(KEY, IMAGE)
        assert names(folder) == [f"{KEY}.kernel", left[3], f"{OTHER}.kernel"]


def test_files_of_others(folder, monkeypatch, capsys):
    """Whatever a file is called, what is no entry of ours stays as it is: where entries lie, and beside that folder."""
    called = ["probe", "half-of-a-download.tmp", "kernel.kernel", f"{KEY}.kernel.bak", f"{KEY}x.kernel"]
    called += [f"{KEY[:-1]}.kernel", f"{KEY[:-1]}G.kernel", f"{KEY}-1.tmp", f"{OTHER}.kernel", f"{OTHER}-{0:016x}.tmp"]
    folder.mkdir(mode=0o700, parents=True)
    files = [place / name for name in called for place in (folder, folder.parent)]
    for file in files:
        file.write_bytes(f"of others: {file}".encode())
        file.chmod(0o600)
        os.utime(file, (10**9, 10**9))
    assert main(["cache"]) == 0
    assert "0 kernels, " in capsys.readouterr().out
    assert main(["cache", "--clear"]) == 0
    write(KEY, IMAGE)
    assert clear()["entries"] == 1
    assert not (folder / f"{KEY}.kernel").exists()
    monkeypatch.setenv("KFUSION_CACHE_MB", "0.001")
    for i in range(1, 20):
        write(f"{i:032x}", bytes(600))
    assert f"{19:032x}.kernel" in names(folder) or read(f"{19:032x}") is None
    for file in files:
        assert file.read_bytes() == f"of others: {file}".encode()


def check_that_nothing_is_kept(why):
    write(KEY, IMAGE)
    assert read(KEY) is None
    assert clear() == NOTHING
    assert why in _core.kernel_cache()["problem"]


class TestFolder:
    def test_which(self, tmp_path, monkeypatch):
        def check(variables, want):
            for name in ("KFUSION_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
                monkeypatch.delenv(name, raising=False)
            for name, value in variables.items():
                monkeypatch.setenv(name, value.format(tmp_path))
            cache = _core.kernel_cache()
            assert cache["directory"] == want.format(tmp_path)
            assert bool(cache["problem"]) == (not want)
            write(KEY, IMAGE)
            assert read(KEY) == (IMAGE if want else None)

        rows = [
            ({"KFUSION_CACHE_DIR": "{}/a/b", "XDG_CACHE_HOME": "{}/x", "HOME": "{}/h"}, "{}/a/b/kfusion"),
            ({"XDG_CACHE_HOME": "{}/x", "HOME": "{}/h"}, "{}/x/kfusion"),
            ({"XDG_CACHE_HOME": "relative", "HOME": "{}/h"}, "{}/h/.cache/kfusion"),
            ({"KFUSION_CACHE_DIR": "", "XDG_CACHE_HOME": "", "HOME": "{}/h"}, "{}/h/.cache/kfusion"),
            ({}, ""),
        ]
        sweep(check, rows)

    def test_a_file_in_its_place(self, folder):
        folder.parent.mkdir()
        folder.write_text("no folder")
        check_that_nothing_is_kept("no folder")
        assert folder.read_text() == "no folder"

    @pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc, where nobody can write")
    def test_a_system_that_refuses(self, monkeypatch):
        monkeypatch.setenv("KFUSION_CACHE_DIR", "/proc/self")
        check_that_nothing_is_kept("cannot be made")

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_permissions(self, folder):
        folder.mkdir(mode=0o500, parents=True)
        check_that_nothing_is_kept("cannot be written to")

    def test_entries_of_a_folder_that_cannot_be_written_to_are_read(self, folder, entry):
        folder.chmod(0o500)
        try:
            assert read(KEY) == IMAGE
        finally:
            folder.chmod(0o700)


class TestTrust:
    """Machine code is run as it is found: only what this user alone can have written."""

    def test_a_folder_that_others_can_write_to(self, folder, entry, capsys):
        before = entry.read_bytes()
        for mode in (0o770, 0o707, 0o777, 0o1777, 0o720):
            folder.chmod(mode)
            assert read(KEY) is None
            assert "can be written to by others" in _core.kernel_cache()["problem"]
            write(KEY, b"new")
            write(OTHER, b"new")
            assert clear() == NOTHING
            assert names(folder) == [entry.name]
            assert entry.read_bytes() == before
        assert main(["cache"]) == 0
        assert f"Nothing is kept: {folder} can be written to by others" in capsys.readouterr().out
        folder.chmod(0o755)  # to read it is no harm
        assert read(KEY) == IMAGE
        folder.parent.chmod(0o1777)  # folders above may be shared
        assert read(KEY) == IMAGE

    def test_an_entry_that_others_can_write_to(self, entry):
        for mode in (0o620, 0o602, 0o666):
            entry.chmod(mode)
            assert read(KEY) is None
            write(KEY, b"new")
            assert read(KEY) == b"new"
            assert stat.S_IMODE(entry.stat().st_mode) == 0o600

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
    def test_what_belongs_to_another_user(self, folder, entry):
        os.chown(entry, 12345, -1)
        assert read(KEY) is None
        assert clear() == NOTHING
        assert entry.exists()
        os.chown(entry, 0, -1)
        os.chown(folder, 12345, -1)
        assert read(KEY) is None
        assert "belongs to another user" in _core.kernel_cache()["problem"]

    def test_links(self, folder, entry, tmp_path):
        """To a folder and to entries of this user's own, which somebody else may have set."""
        elsewhere = tmp_path / "elsewhere"
        folder.rename(elsewhere)
        folder.symlink_to(elsewhere)
        assert read(KEY) is None
        assert "a link" in _core.kernel_cache()["problem"]
        folder.unlink()
        folder.mkdir(mode=0o700)
        entry.symlink_to(elsewhere / entry.name)
        assert read(KEY) is None
        assert clear() == NOTHING
        assert entry.is_symlink()
        write(KEY, b"new")
        assert read(KEY) == b"new"
        assert IMAGE in (elsewhere / entry.name).read_bytes()

    def test_a_pipe(self, folder):
        folder.mkdir(mode=0o700, parents=True)
        os.mkfifo(folder / f"{KEY}.kernel", 0o600)
        assert read(KEY) is None  # and does not wait for a writer
        assert _core.kernel_cache()["entries"] == 0


def test_variables_that_make_no_sense(tmp_path, monkeypatch, capsys):
    """They are an error when the cache is used."""
    (tmp_path / "file").write_text("no folder")
    texts = {
        "KFUSION_CACHE_DIR": "KFUSION_CACHE_DIR must be the absolute path of a folder",
        "KFUSION_CACHE_MB": "KFUSION_CACHE_MB must be a number of megabytes, 0 or more",
    }

    def check(variable, value):
        monkeypatch.setenv("KFUSION_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setenv(variable, value := value.format(tmp_path))
        for call in (_core.kernel_cache, clear, lambda: read(KEY), lambda: write(KEY, IMAGE)):
            with pytest.raises(ValueError, match=re.escape(f"kfusion: {texts[variable]}, got '{value}'")):
                call()
        assert main(["cache"]) == 2
        assert texts[variable] in capsys.readouterr().err

    folders = ["kernels", "./kernels", "~/kernels", "{}/file", "{}/file/deep/er"]
    sizes = ["much", "-1", "nan", "inf", "5 ", "1,5", "256MB", "1e13", " "]
    sweep(check, [*(("KFUSION_CACHE_DIR", v) for v in folders), *(("KFUSION_CACHE_MB", v) for v in sizes)])
    assert (tmp_path / "file").read_text() == "no folder"


def test_variables_are_not_read_at_import():
    bad = {"KFUSION_CACHE_DIR": "relative", "KFUSION_CACHE_MB": "much", "KFUSION_NVRTC": "none",
           "KFUSION_ISA": "none", "KFUSION_NUM_THREADS": "none"}  # fmt: skip
    code = """
import kfusion as kf, numpy as np
from kfusion import _core
for call in (_core.kernel_cache, _core.isa, kf.get_num_threads, _core.nvrtc_library, lambda: kf.relu(np.ones(3))):
    try: call()
    except (ValueError, kf.DeviceError) as e: print(e)
"""
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **bad}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 5
    for line, variable in zip(lines, ["CACHE_DIR", "ISA", "NUM_THREADS", "NVRTC"], strict=False):
        assert f"KFUSION_{variable} must be" in line
        assert "got " in line


STRESS = """
import random, sys
from kfusion import _core
schedule = random.Random(int(sys.argv[1]))
wrong = 0
for _ in range(int(sys.argv[2])):
    i = schedule.randrange(20)
    key, image = f"{i:032x}", bytes([i]) * (200 * i)
    if schedule.random() < 0.5:
        _core.testing.write_kernel(key, image)
    else:
        wrong += _core.testing.read_kernel(key) not in (None, image)
print(wrong)
"""


class TestProcesses:
    def start(self, seed, steps):
        command = [sys.executable, "-c", STRESS, str(seed), str(steps)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    @pytest.mark.slow
    def test_many_at_once(self, folder, monkeypatch):
        monkeypatch.setenv("KFUSION_CACHE_MB", "0.02")  # half of all entries: they throw each other's away
        processes = [self.start(seed, 300) for seed in range(MANY)]
        assert [p.communicate(timeout=120)[0] for p in processes] == ["0\n"] * MANY
        assert all(name.endswith(".kernel") for name in names(folder))
        assert 0 < _core.kernel_cache()["bytes"] <= 20_000 * (1 + MANY / 16)

    def test_one_that_is_killed(self, folder):
        process = self.start(0, 10**9)
        while not (folder.is_dir() and names(folder)):
            time.sleep(0.01)
        process.kill()
        process.communicate()
        for i in range(20):
            assert read(f"{i:032x}") in (None, bytes([i]) * (200 * i))


def test_the_command(folder, capsys):
    write(KEY, bytes(5000))
    assert main(["cache"]) == 0
    out = capsys.readouterr().out
    assert all(text in out for text in (str(folder), "1 kernel,", "256.0 MB"))
    assert "Nothing is kept" not in out
    assert main(["cache", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown.pop("nvrtc", "absent") != "absent"
    assert shown.pop("llvmlite", "absent") != "absent"
    assert shown == _core.kernel_cache()
    assert main(["cache", "--clear"]) == 0
    out = capsys.readouterr().out
    assert "Removed 1 kernel" in out
    assert "0 kernels" in out
    write(KEY, IMAGE)
    assert main(["cache", "--json", "--clear"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"]["entries"] == 1
