"""The cache of compiled kernels on disk: damage, limits, many processes, folders that cannot be used."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kfusion import _core
from kfusion._cli.main import main

KEY, OTHER = "0" * 31 + "1", "f" * 32
IMAGE = b"\x7fELF\n\0machine code"
MANY = 8  # processes


@pytest.fixture
def folder(tmp_path, monkeypatch):
    path = tmp_path / "cache"
    monkeypatch.setenv("KFUSION_CACHE_DIR", str(path))
    monkeypatch.delenv("KFUSION_CACHE_MB", raising=False)
    return path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def age(folder, key, seconds):
    then = time.time() - seconds
    os.utime(folder / f"{key}.cubin", (then, then))


class TestEntries:
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.binary(max_size=3000))
    def test_what_is_kept_comes_back(self, folder, image):
        _core.write_cubin(KEY, image)
        assert _core.read_cubin(KEY) == image
        assert _core.read_cubin(OTHER) is None
        assert names(folder) == [f"{KEY}.cubin"]

    def test_the_last_one_written_counts(self, folder):
        for image in (IMAGE, b"", IMAGE * 100, b"last"):
            _core.write_cubin(KEY, image)
        assert _core.read_cubin(KEY) == b"last"

    def test_a_new_folder_is_the_users_own(self, folder):
        _core.write_cubin(KEY, IMAGE)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    def test_contents_and_clearing(self, folder):
        empty = _core.cubin_cache()
        assert (empty["entries"], empty["bytes"], empty["limit_bytes"]) == (0, 0, 256_000_000)
        _core.write_cubin(KEY, IMAGE)
        _core.write_cubin(OTHER, IMAGE)
        (folder / "notes.txt").write_text("somebody else's")
        size = sum((folder / f"{key}.cubin").stat().st_size for key in (KEY, OTHER))
        cache = _core.cubin_cache()
        assert (cache["directory"], cache["entries"], cache["bytes"]) == (str(folder), 2, size)
        assert _core.clear_cubin_cache() == {"entries": 2, "bytes": size}
        assert names(folder) == ["notes.txt"]
        assert _core.read_cubin(KEY) is None


class TestDamage:
    @pytest.fixture
    def entry(self, folder):
        _core.write_cubin(KEY, IMAGE)
        yield folder / f"{KEY}.cubin"
        _core.write_cubin(KEY, b"rebuilt")
        assert _core.read_cubin(KEY) == b"rebuilt"

    def test_every_truncation(self, entry):
        whole = entry.read_bytes()
        for length in range(len(whole)):
            entry.write_bytes(whole[:length])
            assert _core.read_cubin(KEY) is None, length

    def test_every_bit(self, entry):
        whole = entry.read_bytes()
        for bit in range(8 * len(whole)):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            entry.write_bytes(damaged)
            assert _core.read_cubin(KEY) is None, bit

    @pytest.mark.parametrize("more", [b"\0", b"\n", IMAGE])
    def test_something_behind_it(self, entry, more):
        entry.write_bytes(entry.read_bytes() + more)
        assert _core.read_cubin(KEY) is None

    def test_another_keys_entry(self, entry):
        entry.rename(entry.with_name(f"{OTHER}.cubin"))
        assert _core.read_cubin(OTHER) is None

    def test_a_folder_in_its_place(self, folder):
        (folder / f"{KEY}.cubin" / "inside").mkdir(parents=True)
        assert _core.read_cubin(KEY) is None
        _core.write_cubin(KEY, IMAGE)  # cannot replace it, and leaves nothing beside it
        assert names(folder) == [f"{KEY}.cubin"]


class TestLimit:
    def test_what_was_not_used_for_longest_goes(self, folder, monkeypatch):
        monkeypatch.setenv("KFUSION_CACHE_MB", "0.001")
        keys = [f"{i:032x}" for i in range(3)]
        for key in keys[:2]:
            _core.write_cubin(key, bytes(300))
            age(folder, key, seconds=1000 - int(key, 16))
        assert _core.read_cubin(keys[0]) is not None  # used: now the first is younger than the second
        _core.write_cubin(keys[2], bytes(300))
        assert [_core.read_cubin(key) is not None for key in keys] == [True, False, True]
        assert _core.cubin_cache()["bytes"] <= 1000

    def test_what_is_larger_than_the_limit_costs_no_other_entry(self, folder, monkeypatch):
        monkeypatch.setenv("KFUSION_CACHE_MB", "0.001")
        _core.write_cubin(KEY, IMAGE)
        _core.write_cubin(OTHER, bytes(1000))
        assert names(folder) == [f"{KEY}.cubin"]

    def test_a_smaller_limit_counts_from_the_next_write_on(self, folder, monkeypatch):
        for i in range(10):
            _core.write_cubin(f"{i:032x}", bytes(1000))
        monkeypatch.setenv("KFUSION_CACHE_MB", "0.002")
        _core.write_cubin(KEY, IMAGE)
        assert _core.cubin_cache()["bytes"] <= 2000

    def test_none(self, folder, monkeypatch):
        _core.write_cubin(KEY, IMAGE)
        monkeypatch.setenv("KFUSION_CACHE_MB", "0")
        assert _core.read_cubin(KEY) is None
        _core.write_cubin(OTHER, IMAGE)
        assert names(folder) == [f"{KEY}.cubin"]
        assert "KFUSION_CACHE_MB" in _core.cubin_cache()["problem"]

    @pytest.mark.parametrize(
        ("text", "limit"),
        [("1.5", 1.5e6), ("", 256e6), ("much", 256e6), ("-1", 256e6), ("nan", 256e6), ("5 ", 256e6)],
    )
    def test_how_it_is_given(self, folder, monkeypatch, text, limit):
        monkeypatch.setenv("KFUSION_CACHE_MB", text)
        assert _core.cubin_cache()["limit_bytes"] == limit

    def test_files_that_a_dead_process_left(self, folder):
        folder.mkdir()
        for name in ("old-1.tmp", "new-2.tmp"):
            (folder / name).write_bytes(b"half an en")
        then = time.time() - 7200
        os.utime(folder / "old-1.tmp", (then, then))
        _core.write_cubin(KEY, IMAGE)
        assert names(folder) == [f"{KEY}.cubin", "new-2.tmp"]


class TestFolder:
    @pytest.mark.parametrize(
        ("variables", "want"),
        [
            ({"KFUSION_CACHE_DIR": "{}/a/b", "XDG_CACHE_HOME": "{}/x", "HOME": "{}/h"}, "{}/a/b"),
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
        cache = _core.cubin_cache()
        assert cache["directory"] == want.format(tmp_path)
        assert bool(cache["problem"]) == (not want)
        _core.write_cubin(KEY, IMAGE)
        assert _core.read_cubin(KEY) == (IMAGE if want else None)

    def test_a_file_in_its_place(self, folder):
        folder.write_text("no folder")
        self.check_that_nothing_is_kept()
        assert folder.read_text() == "no folder"

    def test_a_file_on_the_way_to_it(self, folder, monkeypatch):
        folder.write_text("no folder")
        monkeypatch.setenv("KFUSION_CACHE_DIR", str(folder / "deep" / "er"))
        self.check_that_nothing_is_kept()

    def test_a_system_that_refuses(self, monkeypatch):
        if not os.path.isdir("/proc/self"):
            pytest.skip("needs /proc, where nobody can write")
        monkeypatch.setenv("KFUSION_CACHE_DIR", "/proc/self")
        self.check_that_nothing_is_kept()

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_permissions(self, folder):
        folder.mkdir(mode=0o500)
        self.check_that_nothing_is_kept()

    def test_entries_of_a_folder_that_cannot_be_written_to_are_read(self, folder):
        _core.write_cubin(KEY, IMAGE)
        folder.chmod(0o500)
        try:
            assert _core.read_cubin(KEY) == IMAGE
        finally:
            folder.chmod(0o700)

    @staticmethod
    def check_that_nothing_is_kept():
        _core.write_cubin(KEY, IMAGE)
        assert _core.read_cubin(KEY) is None
        assert _core.clear_cubin_cache() == {"entries": 0, "bytes": 0}
        assert "the folder cannot be" in _core.cubin_cache()["problem"]


STRESS = """
import random, sys
from kfusion import _core
schedule = random.Random(int(sys.argv[1]))
wrong = 0
for _ in range(int(sys.argv[2])):
    i = schedule.randrange(20)
    key, image = f"{i:032x}", bytes([i]) * (200 * i)
    if schedule.random() < 0.5:
        _core.write_cubin(key, image)
    else:
        wrong += _core.read_cubin(key) not in (None, image)
print(wrong)
"""


class TestProcesses:
    def start(self, seed, steps):
        return subprocess.Popen(
            [sys.executable, "-c", STRESS, str(seed), str(steps)], stdout=subprocess.PIPE, text=True
        )

    def test_many_at_once(self, folder, monkeypatch):
        monkeypatch.setenv("KFUSION_CACHE_MB", "0.02")  # half of all entries: they throw each other's away
        processes = [self.start(seed, 300) for seed in range(MANY)]
        assert [p.communicate(timeout=120)[0] for p in processes] == ["0\n"] * MANY
        assert all(name.endswith(".cubin") for name in names(folder))
        cache = _core.cubin_cache()
        assert 0 < cache["bytes"] <= 20_000

    def test_one_that_is_killed(self, folder):
        process = self.start(0, 10**9)
        while not (folder.is_dir() and names(folder)):
            time.sleep(0.01)
        process.kill()
        process.communicate()
        for i in range(20):
            assert _core.read_cubin(f"{i:032x}") in (None, bytes([i]) * (200 * i))


class TestCommand:
    def test_text(self, folder, capsys):
        _core.write_cubin(KEY, bytes(5000))
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
        _core.write_cubin(KEY, IMAGE)
        assert main(["cache", "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown.pop("nvrtc", "absent") != "absent"
        assert shown == _core.cubin_cache()
        assert main(["cache", "--json", "--clear"]) == 0
        assert json.loads(capsys.readouterr().out)["removed"]["entries"] == 1

    def test_a_folder_that_cannot_be_used(self, folder, capsys):
        folder.write_text("no folder")
        assert main(["cache"]) == 0
        assert "Nothing is kept: the folder cannot be made" in capsys.readouterr().out
