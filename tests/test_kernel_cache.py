"""The cache of compiled kernels on disk: damage, limits, many processes, files and folders of others."""

from __future__ import annotations

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

pytestmark = pytest.mark.native

KEY, OTHER = "0" * 31 + "1", "f" * 32
IMAGE = b"\x7fELF\n\0machine code"
MANY = 8  # processes


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where entries lie; nothing is there yet."""
    monkeypatch.setenv("KFUSION_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("KFUSION_CACHE_MB", raising=False)
    return tmp_path / "cache" / "kfusion"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def age(folder, key, seconds):
    then = time.time() - seconds
    os.utime(folder / f"{key}.kernel", (then, then))


class TestEntries:
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.binary(max_size=3000))
    def test_what_is_kept_comes_back(self, folder, image):
        _core.testing.write_kernel(KEY, image)
        assert _core.testing.read_kernel(KEY) == image
        assert _core.testing.read_kernel(OTHER) is None
        assert names(folder) == [f"{KEY}.kernel"]

    def test_the_last_one_written_counts(self, folder):
        for image in (IMAGE, b"", IMAGE * 100, b"last"):
            _core.testing.write_kernel(KEY, image)
        assert _core.testing.read_kernel(KEY) == b"last"

    @pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
    def test_what_is_new_is_the_users_own(self, folder, umask):
        before = os.umask(umask)
        try:
            _core.testing.write_kernel(KEY, IMAGE)
        finally:
            os.umask(before)
        for made in (folder, folder.parent):
            assert stat.S_IMODE(made.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / f"{KEY}.kernel").stat().st_mode) == 0o600

    def test_contents_and_clearing(self, folder):
        empty = _core.kernel_cache()
        assert (empty["entries"], empty["bytes"], empty["limit_bytes"]) == (0, 0, 256_000_000)
        _core.testing.write_kernel(KEY, IMAGE)
        _core.testing.write_kernel(OTHER, IMAGE)
        (folder / "notes.txt").write_text("somebody else's")
        size = sum((folder / f"{key}.kernel").stat().st_size for key in (KEY, OTHER))
        cache = _core.kernel_cache()
        assert (cache["directory"], cache["entries"], cache["bytes"]) == (str(folder), 2, size)
        assert _core.clear_kernel_cache() == {"entries": 2, "bytes": size}
        assert names(folder) == ["notes.txt"]
        assert _core.testing.read_kernel(KEY) is None


class TestDamage:
    @pytest.fixture
    def entry(self, folder):
        _core.testing.write_kernel(KEY, IMAGE)
        yield folder / f"{KEY}.kernel"
        _core.testing.write_kernel(KEY, b"rebuilt")
        assert _core.testing.read_kernel(KEY) == b"rebuilt"

    def test_every_truncation(self, entry):
        whole = entry.read_bytes()
        for length in range(len(whole)):
            entry.write_bytes(whole[:length])
            assert _core.testing.read_kernel(KEY) is None, length

    def test_every_bit(self, entry):
        whole = entry.read_bytes()
        for bit in range(8 * len(whole)):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            entry.write_bytes(damaged)
            assert _core.testing.read_kernel(KEY) is None, bit

    @pytest.mark.parametrize("more", [b"\0", b"\n", IMAGE])
    def test_something_behind_it(self, entry, more):
        entry.write_bytes(entry.read_bytes() + more)
        assert _core.testing.read_kernel(KEY) is None

    def test_another_keys_entry(self, entry):
        entry.rename(entry.with_name(f"{OTHER}.kernel"))
        assert _core.testing.read_kernel(OTHER) is None

    def test_a_folder_in_its_place(self, folder):
        (folder / f"{KEY}.kernel" / "inside").mkdir(parents=True)
        assert _core.testing.read_kernel(KEY) is None
        _core.testing.write_kernel(KEY, IMAGE)  # cannot replace it, and leaves nothing beside it
        assert names(folder) == [f"{KEY}.kernel"]


class TestLimit:
    def test_what_was_not_used_for_longest_goes(self, folder, monkeypatch):
        monkeypatch.setenv("KFUSION_CACHE_MB", "0.001")
        keys = [f"{i:032x}" for i in range(3)]
        for key in keys[:2]:
            _core.testing.write_kernel(key, bytes(300))
            age(folder, key, seconds=1000 - int(key, 16))
        assert _core.testing.read_kernel(keys[0]) is not None  # used: now the first is younger than the second
        _core.testing.write_kernel(keys[2], bytes(300))
        assert [_core.testing.read_kernel(key) is not None for key in keys] == [True, False, True]
        assert _core.kernel_cache()["bytes"] <= 1000

    def test_what_is_larger_than_the_limit_costs_no_other_entry(self, folder, monkeypatch):
        monkeypatch.setenv("KFUSION_CACHE_MB", "0.001")
        _core.testing.write_kernel(KEY, IMAGE)
        _core.testing.write_kernel(OTHER, bytes(1000))
        assert names(folder) == [f"{KEY}.kernel"]

    def test_the_folder_is_not_looked_through_for_each_write(self, folder, monkeypatch):
        """It holds a sixteenth more than the limit at most."""
        monkeypatch.setenv("KFUSION_CACHE_MB", "0.1")
        _core.testing.write_kernel(f"{0:032x}", b"")
        for i in range(1, 200):
            _core.testing.write_kernel(f"{i:032x}", bytes(1000))
            assert _core.kernel_cache()["bytes"] <= 100_000 * (1 + 1 / 16) + 2000
        names_now = names(folder)
        assert f"{199:032x}.kernel" in names_now
        assert 80 < len(names_now) < 105

    def test_a_smaller_limit_counts_from_the_next_write_on(self, folder, monkeypatch):
        for i in range(10):
            _core.testing.write_kernel(f"{i:032x}", bytes(1000))
        monkeypatch.setenv("KFUSION_CACHE_MB", "0.002")
        _core.testing.write_kernel(KEY, IMAGE)
        assert _core.kernel_cache()["bytes"] <= 2000

    def test_none(self, folder, monkeypatch):
        _core.testing.write_kernel(KEY, IMAGE)
        monkeypatch.setenv("KFUSION_CACHE_MB", "0")
        assert _core.testing.read_kernel(KEY) is None
        _core.testing.write_kernel(OTHER, IMAGE)
        assert names(folder) == [f"{KEY}.kernel"]
        assert "KFUSION_CACHE_MB" in _core.kernel_cache()["problem"]

    @pytest.mark.parametrize(("text", "limit"), [("1.5", 1.5e6), ("", 256e6), ("1e3", 1e9), ("0", 0)])
    def test_how_it_is_given(self, folder, monkeypatch, text, limit):
        monkeypatch.setenv("KFUSION_CACHE_MB", text)
        assert _core.kernel_cache()["limit_bytes"] == limit

    def test_files_that_a_dead_process_left(self, folder, monkeypatch):
        _core.testing.write_kernel(OTHER, IMAGE)
        monkeypatch.setenv("KFUSION_CACHE_MB", "0.001")  # or it would be long until the folder is looked through
        whole = (folder / f"{OTHER}.kernel").read_bytes()
        left = [f"{OTHER}-{i:016x}.tmp" for i in range(4)]
        for i, name in enumerate(left):
            (folder / name).write_bytes(whole[: 10 * i])
            (folder / name).chmod(0o600)
        then = time.time() - 7200
        for name in left[:3]:
            os.utime(folder / name, (then, then))
        _core.testing.write_kernel(KEY, IMAGE)
        assert names(folder) == [f"{KEY}.kernel", left[3], f"{OTHER}.kernel"]


class TestFilesOfOthers:
    """Whatever a file is called, what is no entry of ours stays as it is."""

    NAMES = (
        "probe",
        "half-of-a-download.tmp",
        "kernel.kernel",
        f"{KEY}.kernel.bak",
        f"{KEY}x.kernel",
        f"{KEY[:-1]}.kernel",
        f"{KEY[:-1]}G.kernel",
        f"{KEY}-1.tmp",
        f"{OTHER}.kernel",
        f"{OTHER}-{0:016x}.tmp",
    )

    @pytest.fixture
    def foreign(self, folder):
        """Old files with such names, where entries lie and beside that folder."""
        folder.mkdir(mode=0o700, parents=True)
        files = [place / name for name in self.NAMES for place in (folder, folder.parent)]
        for file in files:
            file.write_bytes(f"of others: {file}".encode())
            file.chmod(0o600)
            os.utime(file, (10**9, 10**9))
        yield files
        for file in files:
            assert file.read_bytes() == f"of others: {file}".encode()

    def test_the_command(self, foreign, capsys):
        assert main(["cache"]) == 0
        assert "0 kernels, " in capsys.readouterr().out
        assert main(["cache", "--clear"]) == 0

    def test_clearing(self, foreign, folder):
        _core.testing.write_kernel(KEY, IMAGE)
        assert _core.clear_kernel_cache()["entries"] == 1
        assert not (folder / f"{KEY}.kernel").exists()

    def test_what_is_beyond_the_limit(self, foreign, folder, monkeypatch):
        monkeypatch.setenv("KFUSION_CACHE_MB", "0.001")
        for i in range(1, 20):
            _core.testing.write_kernel(f"{i:032x}", bytes(600))
        assert f"{19:032x}.kernel" in names(folder) or _core.testing.read_kernel(f"{19:032x}") is None

    def test_an_entry_of_another_key(self, folder):
        """Its name says that it is ours, and what it begins with is no beginning of that entry."""
        _core.testing.write_kernel(KEY, IMAGE)
        (folder / f"{KEY}.kernel").rename(folder / f"{OTHER}.kernel")
        assert _core.clear_kernel_cache() == {"entries": 0, "bytes": 0}
        assert names(folder) == [f"{OTHER}.kernel"]


class TestFolder:
    @pytest.mark.parametrize(
        ("variables", "want"),
        [
            ({"KFUSION_CACHE_DIR": "{}/a/b", "XDG_CACHE_HOME": "{}/x", "HOME": "{}/h"}, "{}/a/b/kfusion"),
            ({"XDG_CACHE_HOME": "{}/x", "HOME": "{}/h"}, "{}/x/kfusion"),
            ({"XDG_CACHE_HOME": "relative", "HOME": "{}/h"}, "{}/h/.cache/kfusion"),
            ({"KFUSION_CACHE_DIR": "", "XDG_CACHE_HOME": "", "HOME": "{}/h"}, "{}/h/.cache/kfusion"),
            ({}, ""),
        ],
    )
    def test_which(self, tmp_path, monkeypatch, variables, want):
        for name in ("KFUSION_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value.format(tmp_path))
        cache = _core.kernel_cache()
        assert cache["directory"] == want.format(tmp_path)
        assert bool(cache["problem"]) == (not want)
        _core.testing.write_kernel(KEY, IMAGE)
        assert _core.testing.read_kernel(KEY) == (IMAGE if want else None)

    def test_a_name_that_is_no_utf8(self, tmp_path, monkeypatch):
        path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
        monkeypatch.setenv("KFUSION_CACHE_DIR", path)
        assert _core.kernel_cache()["directory"] == f"{path}/kfusion"

    def test_a_file_in_its_place(self, folder):
        folder.parent.mkdir()
        folder.write_text("no folder")
        self.check_that_nothing_is_kept("no folder")
        assert folder.read_text() == "no folder"

    def test_a_system_that_refuses(self, monkeypatch):
        if not os.path.isdir("/proc/self"):
            pytest.skip("needs /proc, where nobody can write")
        monkeypatch.setenv("KFUSION_CACHE_DIR", "/proc/self")
        self.check_that_nothing_is_kept("cannot be made")

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_permissions(self, folder):
        folder.mkdir(mode=0o500, parents=True)
        self.check_that_nothing_is_kept("cannot be written to")

    def test_entries_of_a_folder_that_cannot_be_written_to_are_read(self, folder):
        _core.testing.write_kernel(KEY, IMAGE)
        folder.chmod(0o500)
        try:
            assert _core.testing.read_kernel(KEY) == IMAGE
        finally:
            folder.chmod(0o700)

    @staticmethod
    def check_that_nothing_is_kept(why):
        _core.testing.write_kernel(KEY, IMAGE)
        assert _core.testing.read_kernel(KEY) is None
        assert _core.clear_kernel_cache() == {"entries": 0, "bytes": 0}
        assert why in _core.kernel_cache()["problem"]


class TestTrust:
    """Machine code is run as it is found: only what this user alone can have written."""

    @pytest.fixture
    def entry(self, folder):
        _core.testing.write_kernel(KEY, IMAGE)
        return folder / f"{KEY}.kernel"

    @pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777, 0o720])
    def test_a_folder_that_others_can_write_to(self, folder, entry, mode):
        folder.chmod(mode)
        assert _core.testing.read_kernel(KEY) is None
        assert "can be written to by others" in _core.kernel_cache()["problem"]
        before = entry.read_bytes()
        _core.testing.write_kernel(KEY, b"new")
        _core.testing.write_kernel(OTHER, b"new")
        assert _core.clear_kernel_cache() == {"entries": 0, "bytes": 0}
        assert names(folder) == [entry.name]
        assert entry.read_bytes() == before
        folder.chmod(0o755)  # to read it is no harm
        assert _core.testing.read_kernel(KEY) == IMAGE

    def test_the_folders_above_may_be_shared(self, folder, entry):
        folder.parent.chmod(0o1777)
        assert _core.testing.read_kernel(KEY) == IMAGE

    @pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
    def test_an_entry_that_others_can_write_to(self, entry, mode):
        entry.chmod(mode)
        assert _core.testing.read_kernel(KEY) is None
        _core.testing.write_kernel(KEY, b"new")
        assert _core.testing.read_kernel(KEY) == b"new"
        assert stat.S_IMODE(entry.stat().st_mode) == 0o600

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
    def test_what_belongs_to_another_user(self, folder, entry):
        os.chown(entry, 12345, -1)
        assert _core.testing.read_kernel(KEY) is None
        assert _core.clear_kernel_cache() == {"entries": 0, "bytes": 0}
        assert entry.exists()
        os.chown(entry, 0, -1)
        os.chown(folder, 12345, -1)
        assert _core.testing.read_kernel(KEY) is None
        assert "belongs to another user" in _core.kernel_cache()["problem"]

    def test_links(self, folder, entry, tmp_path):
        """To a folder and to entries of this user's own, which somebody else may have set."""
        elsewhere = tmp_path / "elsewhere"
        folder.rename(elsewhere)
        folder.symlink_to(elsewhere)
        assert _core.testing.read_kernel(KEY) is None
        assert "a link" in _core.kernel_cache()["problem"]
        folder.unlink()
        folder.mkdir(mode=0o700)
        entry.symlink_to(elsewhere / entry.name)
        assert _core.testing.read_kernel(KEY) is None
        assert _core.clear_kernel_cache() == {"entries": 0, "bytes": 0}
        assert entry.is_symlink()
        _core.testing.write_kernel(KEY, b"new")
        assert _core.testing.read_kernel(KEY) == b"new"
        assert IMAGE in (elsewhere / entry.name).read_bytes()

    def test_a_pipe(self, folder):
        folder.mkdir(mode=0o700, parents=True)
        os.mkfifo(folder / f"{KEY}.kernel", 0o600)
        assert _core.testing.read_kernel(KEY) is None  # and does not wait for a writer
        assert _core.kernel_cache()["entries"] == 0


class TestVariables:
    """What makes no sense is an error when the cache is used, and not before."""

    @pytest.mark.parametrize("value", ["much", "-1", "nan", "inf", "5 ", "1,5", "256MB", "1e13", " "])
    def test_megabytes(self, folder, monkeypatch, value):
        monkeypatch.setenv("KFUSION_CACHE_MB", value)
        message = f"kfusion: KFUSION_CACHE_MB must be a number of megabytes, 0 or more, got '{value}'"
        self.check(message)

    @pytest.mark.parametrize("value", ["kernels", "./kernels", "~/kernels", "{}/file", "{}/file/deep/er"])
    def test_folder(self, tmp_path, monkeypatch, value):
        (tmp_path / "file").write_text("no folder")
        value = value.format(tmp_path)
        monkeypatch.setenv("KFUSION_CACHE_DIR", value)
        self.check(f"kfusion: KFUSION_CACHE_DIR must be the absolute path of a folder, got '{value}'")
        assert (tmp_path / "file").read_text() == "no folder"

    def test_not_at_import(self):
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
        for line, variable in zip(done.stdout.splitlines(), ["CACHE_DIR", "ISA", "NUM_THREADS", "NVRTC"], strict=False):
            assert f"KFUSION_{variable} must be" in line
            assert "got " in line
        assert len(done.stdout.splitlines()) == 5

    @staticmethod
    def check(message):
        for call in (
            _core.kernel_cache,
            _core.clear_kernel_cache,
            lambda: _core.testing.read_kernel(KEY),
            lambda: _core.testing.write_kernel(KEY, IMAGE),
        ):
            with pytest.raises(ValueError, match=re.escape(message)):
                call()


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
        return subprocess.Popen(
            [sys.executable, "-c", STRESS, str(seed), str(steps)], stdout=subprocess.PIPE, text=True
        )

    @pytest.mark.slow
    def test_many_at_once(self, folder, monkeypatch):
        monkeypatch.setenv("KFUSION_CACHE_MB", "0.02")  # half of all entries: they throw each other's away
        processes = [self.start(seed, 300) for seed in range(MANY)]
        assert [p.communicate(timeout=120)[0] for p in processes] == ["0\n"] * MANY
        assert all(name.endswith(".kernel") for name in names(folder))
        cache = _core.kernel_cache()
        assert 0 < cache["bytes"] <= 20_000 * (1 + MANY / 16)

    def test_one_that_is_killed(self, folder):
        process = self.start(0, 10**9)
        while not (folder.is_dir() and names(folder)):
            time.sleep(0.01)
        process.kill()
        process.communicate()
        for i in range(20):
            assert _core.testing.read_kernel(f"{i:032x}") in (None, bytes([i]) * (200 * i))


class TestCommand:
    def test_text(self, folder, capsys):
        _core.testing.write_kernel(KEY, bytes(5000))
        assert main(["cache"]) == 0
        out = capsys.readouterr().out
        assert str(folder) in out
        assert "1 kernel," in out
        assert "256.0 MB" in out
        assert "Nothing is kept" not in out
        assert main(["cache", "--clear"]) == 0
        out = capsys.readouterr().out
        assert "Removed 1 kernel" in out
        assert "0 kernels" in out

    def test_json(self, folder, capsys):
        _core.testing.write_kernel(KEY, IMAGE)
        assert main(["cache", "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown.pop("nvrtc", "absent") != "absent"
        assert shown.pop("llvmlite", "absent") != "absent"
        assert shown == _core.kernel_cache()
        assert main(["cache", "--json", "--clear"]) == 0
        assert json.loads(capsys.readouterr().out)["removed"]["entries"] == 1

    def test_a_folder_that_cannot_be_used(self, folder, capsys):
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        assert main(["cache"]) == 0
        assert f"Nothing is kept: {folder} can be written to by others" in capsys.readouterr().out

    def test_a_variable_that_makes_no_sense(self, folder, monkeypatch, capsys):
        monkeypatch.setenv("KFUSION_CACHE_MB", "much")
        assert main(["cache"]) == 2
        assert "KFUSION_CACHE_MB must be a number of megabytes" in capsys.readouterr().err
