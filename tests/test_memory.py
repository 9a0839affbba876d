"""How much host memory is kept for reuse, and for how long."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import numpy as np
import pytest

import kfusion as kf
from kfusion import _core
from kinds import SANITIZED, forks_among_threads
from test_runtime import run_python

pytestmark = [pytest.mark.slow, pytest.mark.native]

MB = 2**20
V1 = "31 24 0:27 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory"
V2 = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"


def tree(root: Path, groups: str, mounts: str, limits: dict[str, int | str]) -> int | None:
    """The limit that is found where /proc and /sys are these."""
    files = {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts} | {
        f"sys/fs/cgroup/{k}": v for k, v in limits.items()
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return _core.testing.control_group_memory(str(root))


@pytest.mark.parametrize(
    ("groups", "mounts", "limits", "want"),
    [
        ("0::/", V2, {"memory.max": "max"}, None),
        ("0::/", V2, {"memory.max": 5 * MB}, 5 * MB),
        ("0::/job/step", V2, {"job/step/memory.max": 7 * MB, "job/memory.max": "max"}, 7 * MB),
        ("0::/job/step", V2, {"job/step/memory.max": "max", "job/memory.max": 3 * MB, "memory.max": 9 * MB}, 3 * MB),
        ("0::/job/step", V2, {"job/step/memory.max": 8 * MB, "job/memory.high": 2 * MB}, 2 * MB),
        ("0::/job", V2, {"other/memory.max": MB}, None),
        ("0::/../job", V2, {"memory.max": 6 * MB}, 6 * MB),
        ("0::/docker/7/job", V2.replace(" / ", " /docker/7 "), {"job/memory.max": 4 * MB}, 4 * MB),
        ("0::/docker/77", V2.replace(" / ", " /docker/7 "), {"memory.max": 4 * MB, "7/memory.max": MB}, 4 * MB),
        ("5:cpu,cpuacct:/a\n4:memory:/job", V1, {"memory/job/memory.limit_in_bytes": 5 * MB}, 5 * MB),
        ("4:memory:/a/b", V1, {"memory/a/memory.limit_in_bytes": MB, "memory/a/b/memory.limit_in_bytes": 2 * MB}, MB),
        ("4:memory:/a\n0::/a", f"{V1}\n{V2}", {"memory/a/memory.limit_in_bytes": 2 * MB, "a/memory.max": MB}, MB),
        ("4:memory:/a:b", V1, {"memory/a:b/memory.limit_in_bytes": MB}, MB),
        ("4:cpu:/job", V1, {"memory/job/memory.limit_in_bytes": MB}, None),
        ("", "", {"memory.max": MB}, None),
        ("nonsense", "- - -\n1 2 3\n" + V2, {"memory.max": MB}, None),
    ],
)  # fmt: skip
def test_control_groups(groups, mounts, limits, want, tmp_path):
    assert tree(tmp_path, groups, mounts, limits) == want


def test_no_tree_at_all(tmp_path):
    assert _core.testing.control_group_memory(str(tmp_path / "nowhere")) is None


@pytest.mark.skipif(SANITIZED, reason="AddressSanitizer maps terabytes")
@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_limits_of_the_process(limit):
    """A process that may have little keeps little, and still finds memory for results as large as it allows."""
    room = 3 << 30
    if resource.getrlimit(getattr(resource, limit))[0] != resource.RLIM_INFINITY:
        pytest.skip("the tests' own process has a limit")
    held = run_python(
        f"""
import resource
resource.setrlimit(resource.{limit}, ({room}, {room}))
import numpy as np, kfusion as kf
from kfusion import _core
assert _core.testing.pool_stats()["limit_bytes"] <= {room} // 4
x = np.ones((64, 1 << 20), np.float32)
for _ in range(4):
    y = kf.relu(x); z = kf.relu(y); del y, z
    a = np.ones((96, 1 << 20)); del a
print(_core.testing.pool_stats()["held_bytes"])
""",
        OPENBLAS_NUM_THREADS="1",
        KFUSION_NUM_THREADS="2",
    )
    assert int(held) <= room // 4


def resident() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def wait_until_idle() -> None:
    deadline = time.monotonic() + 120  # the machine may be busy
    while _core.testing.pool_stats()["held_bytes"] and time.monotonic() < deadline:
        time.sleep(0.1)


def test_what_nobody_uses_goes_back():
    kf.empty_cache()
    x = np.ones((64, 1 << 20), np.float32)
    y = kf.relu(x)
    with_result = resident()
    del y
    assert _core.testing.pool_stats()["held_bytes"] >= x.nbytes
    wait_until_idle()
    assert _core.testing.pool_stats()["held_bytes"] == 0
    assert resident() < with_result - x.nbytes // 2
    assert np.array_equal(kf.relu(x), x)  # and once more
    wait_until_idle()
    assert _core.testing.pool_stats()["held_bytes"] == 0


def test_what_is_used_stays():
    """Longer than what is idle stays."""
    kf.empty_cache()
    x = np.ones((2, 1 << 20), np.float32)
    y = kf.relu(x)
    address = y.ctypes.data
    end = time.monotonic() + 7
    while time.monotonic() < end:
        del y
        y = kf.relu(x)
        assert y.ctypes.data == address
        time.sleep(0.05)
    kf.empty_cache()


def test_no_exit_waits_for_what_is_idle():
    begin = time.monotonic()
    idle = (
        "import time, numpy as np, kfusion as kf; kf.relu(np.ones((2, 1 << 20), np.float32)); print(time.monotonic())"
    )
    assert time.monotonic() - float(run_python(idle)) < max(4, time.monotonic() - begin - 1)


@forks_among_threads
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_gives_back_too():
    run_python("""
import os, time, warnings, numpy as np, kfusion as kf
from kfusion import _core
warnings.simplefilter("ignore")
x = np.ones((2, 1 << 20), np.float32)
kf.relu(x)  # from now on a thread of the parent watches
pid = os.fork()
if pid == 0:
    kf.relu(x)
    assert _core.testing.pool_stats()["held_bytes"] > 0
    end = time.monotonic() + 60
    while _core.testing.pool_stats()["held_bytes"] and time.monotonic() < end: time.sleep(0.1)
    os._exit(_core.testing.pool_stats()["held_bytes"] != 0)
assert os.waitpid(pid, 0)[1] == 0
""")
