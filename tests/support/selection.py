"""Which cases a run of pytest takes, the seed that it draws from, and its progress by files.

The whole suite, `pytest`, takes one case of each test function that is not slow, the same ones in every run;
`--fresh` draws others and other values; `--all`, or naming files, takes every case.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis.internal.conjecture import providers

from kinds import HAVE_GPU

SEED = 0


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("kfusion")
    group.addoption("--all", action="store_true", help="every case, with values drawn from a new seed")
    group.addoption("--fresh", action="store_true", help="cases and values drawn from a new seed")
    group.addoption("--seed", type=int, metavar="N", help=f"the seed that cases and values are drawn from ({SEED})")
    group.addoption("--cases", type=int, metavar="N", help="at most N cases of each test function")
    group.addoption("--one-in", type=int, metavar="N", default=1, help="about one in N test functions, drawn (all)")


def resolve(config: pytest.Config) -> None:
    """Fills in the options."""
    option = config.option
    is_whole = not option.file_or_dir and not option.all
    if hasattr(config, "workerinput"):  # pytest-xdist gives its processes the command line alone
        option.seed = config.workerinput["seed"]
    elif option.seed is None:
        option.seed = int.from_bytes(os.urandom(4), "little") if option.fresh or option.all else SEED
    if option.cases is None:
        option.cases = 1 if is_whole else 0
    if is_whole and not option.markexpr:
        option.markexpr = "not slow"
    option.hypothesis_seed = option.seed
    if option.seed == SEED:
        with contextlib.suppress(AttributeError):  # else numbers of imported modules are drawn, too
            providers._get_local_constants = providers.Constants
    is_one = bool(option.file_or_dir) or HAVE_GPU or "PYTEST_XDIST_WORKER" in os.environ
    if not is_one and getattr(option, "numprocesses", 0) is None:  # pytest-xdist is installed
        option.numprocesses, option.dist = "auto", "worksteal"


def header(config: pytest.Config) -> str:
    how = "" if config.option.fresh or config.option.all else ", the same in every run"
    return f"seed: {config.option.seed}{how} (--seed {config.option.seed} repeats it)"


def number_of(seed: int, text: str) -> int:
    """A number drawn for a text: on every machine the same one."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {text}".encode(), digest_size=4).digest(), "little")


def chosen(names: Iterable[str], seed: int, cases: int, one_in: int = 1) -> set[str]:
    """Names of tests: at most so many (0: all) of each function, and one in so many functions."""
    of_function = defaultdict(list)
    for name in names:
        of_function[name.partition("[")[0]].append(name)
    kept = (some for function, some in of_function.items() if number_of(seed, function) % one_in == 0)
    return {name for some in kept for name in sorted(some, key=lambda n: number_of(seed, n))[: cases or None]}


def lacks_mark(path: Path, markexpr: str) -> bool:
    """Whether `-m` asks for tests of one mark that no test of this file has: it need not be imported then."""
    mark = markexpr.partition(" and ")[0]
    return mark.isidentifier() and path.name.startswith("test_") and f"mark.{mark}" not in path.read_text()


class ByFile:
    """A line for each file when its last test has ended, where several processes run them."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.left: Counter[str] = Counter()
        self.outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        self.total = 0

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        if not self.total:
            self.total = len(ids)
            self.left = Counter(name.partition("::")[0] for name in ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """No letters."""
        return (report.outcome, "", report.outcome.upper()) if report.when == "call" and report.passed else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        if report.when == "call" or not report.passed:
            self.outcomes[file][report.outcome] += 1
        if report.when == "teardown":
            self.left[file] -= 1
            if not self.left[file]:
                done = 1 - self.left.total() / self.total
                counts = ", ".join(f"{n} {outcome}" for outcome, n in self.outcomes[file].items())
                self.config.pluginmanager.get_plugin("terminalreporter").write_line(f"[{done:4.0%}] {file}: {counts}")
