"""Suites of measurements of fused kernels, beside a copy of the same bytes and other libraries. No part of the package.

From a shell `kfusion bench`; from Python, in the folder above

    import benchmarks
    results = benchmarks.run(["chains"], benchmarks.Options(device="cuda", peers=("torch",)))
    results.save("chains.json")

In reading order: functions (what is measured), inputs, suites (on which shapes), throughput, host and cold_start
(how), rivals (peers by hand), warm (results to write into), runner, runs and results (the JSON), and what is made of
it: show, changes, targets, plots, readme. traffic_suite is what `kfusion traffic --suite` runs.
"""

from .options import DTYPES, PEERS, Options
from .results import Measured, Results, Row
from .runner import run
from .suites import SUITES

__all__ = ["DTYPES", "PEERS", "SUITES", "Measured", "Options", "Results", "Row", "run"]
