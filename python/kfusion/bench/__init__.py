"""kfusion.bench: suites of measurements of fused kernels, beside a copy of the same bytes and other libraries.

From a shell `kfusion bench`; from Python

    from kfusion import bench
    results = bench.run(["chains"], bench.Options(device="cuda", peers=("torch",)))
    results.save("chains.json")

In reading order: functions (what is measured), inputs, suites (on which shapes), throughput, host and cold_start (how),
rivals (peers by hand), runner, results (the JSON), and what is made of it: show, compare, targets, plots, readme.
"""

from .options import DTYPES, PEERS, Options
from .results import Measured, Results, Row
from .runner import run
from .suites import SUITES

__all__ = ["DTYPES", "PEERS", "SUITES", "Measured", "Options", "Results", "Row", "run"]
