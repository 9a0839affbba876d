"""Checks random programs: their plans, and their results fused, unfused and in NumPy.

    python tests/random_programs.py --programs 200000 --jobs 2

Program k of a seed is the same everywhere: `--seed S --only K` runs it again. Failures are shrunk and printed as scripts.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import kfusion as kf
from program_checks import Cpu, check_program
from programs import PROFILES, Program, Seeded, Unfit, draw_program

_CHUNK = 100


@dataclass(frozen=True)
class Failure:
    number: int
    profile: str
    message: str
    ops: str
    script: str

    @property
    def kind(self) -> str:
        """Failures of one kind probably have one cause."""
        return f"{re.sub(r'[-0-9.+]+(e[-+][0-9]+)?', '#', self.message)[:50]} [{self.ops}]"


def program_of(seed: int, number: int, only: str | None = None) -> tuple[str, Program]:
    some = [p for p in PROFILES if only in (None, p.name)]
    profile = some[number % len(some)]
    return profile.name, draw_program(Seeded(seed * 1_000_003 + number), profile)


def kind_of(error: BaseException) -> str:
    """What stays of a message while a program shrinks."""
    return type(error).__name__ + re.sub(r"[-\d.+]+(e[-+]\d+)?", "#", str(error))[:24]


def failure_of(check: Callable[[Program], None], program: Program) -> BaseException | None:
    try:
        check(program)
    except Unfit:
        return None
    except Exception as e:
        return e
    return None


def smaller(p: Program) -> Iterator[Program]:
    for o in p.outputs:
        if len(p.outputs) > 1:
            yield replace(p, outputs=[o])
    for o in p.outputs:
        if len(p.outputs) > 2:
            yield replace(p, outputs=[other for other in p.outputs if other != o])
    n = len(p.inputs)
    for k in reversed(range(len(p.steps))):
        for a in p.steps[k].arguments:
            instead = {n + k: a}
            steps = [replace(s, arguments=tuple(instead.get(x, x) for x in s.arguments)) for s in p.steps]
            outputs = list(dict.fromkeys(instead.get(o, o) for o in p.outputs))
            if all(o >= n for o in outputs):
                yield replace(p, steps=steps, outputs=outputs)
    if any(not x.flags.c_contiguous for x in p.inputs):
        yield replace(p, inputs=[np.ascontiguousarray(x).reshape(x.shape) for x in p.inputs])


def shrunk(check: Callable[[Program], None], program: Program, kind: str, tries: int = 400) -> Program:
    left = tries
    while left > 0:
        for candidate in smaller(program):
            left -= 1
            try:
                candidate = candidate.needed()
            except (ValueError, IndexError):
                continue
            error = failure_of(check, candidate)
            if error is not None and kind_of(error) == kind:
                program = candidate
                break
            if left <= 0:
                break
        else:
            return program
    return program


def check_chunk(seed: int, numbers: list[int], only: str | None, most: int = 3) -> list[Failure]:
    warnings.simplefilter("ignore")
    kf.set_num_threads(1)
    backend, failures = Cpu(), []
    for number in numbers:
        name, program = program_of(seed, number, only)
        check = lambda p, n=number: check_program(p, backend, thorough=n % 10 == 0)  # noqa: E731
        error = failure_of(check, program)
        if error is None:
            continue
        if len(failures) < most:
            program = shrunk(check, program.needed(), kind_of(error))
            error = failure_of(check, program) or error
        where = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {str(error)[:400]} ({os.path.basename(where.filename)}:{where.lineno})"
        ops = ', '.join(sorted({s.op for s in program.needed().steps}))
        failures.append(Failure(number, name, message, ops, program.reproducer()))
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", type=int, default=None)
    parser.add_argument("--profile", choices=[p.name for p in PROFILES])
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--most", type=int, default=20)
    args = parser.parse_args()
    seed = args.seed if args.seed is not None else int(np.random.SeedSequence().entropy % 2**32)  # type: ignore[operator]
    print(f"--seed {seed}", flush=True)
    start = time.perf_counter()
    numbers = [args.only] if args.only is not None else list(range(args.programs))
    chunks = [numbers[i : i + _CHUNK] for i in range(0, len(numbers), _CHUNK)]
    counts: Any = collections.Counter()
    done = 0
    with concurrent.futures.ProcessPoolExecutor(args.jobs) as pool:
        futures = {pool.submit(check_chunk, seed, c, args.profile): c for c in chunks}
        for future in concurrent.futures.as_completed(futures):
            done += len(futures[future])
            for f in future.result():
                counts[f.kind] += 1
                if counts[f.kind] <= 1:
                    print(f"\n--only {f.number}  # {f.profile}: {f.message}\n{f.script}\n", flush=True)
            if time.perf_counter() - start > 5 and done % 1000 == 0:
                print(f"{done} programs, {sum(counts.values())} failed, {time.perf_counter() - start:.0f} s", flush=True)
    seconds = time.perf_counter() - start
    print(f"{done} programs in {seconds:.1f} s ({done / seconds:.0f} a second), {sum(counts.values())} failed")
    for key, count in counts.most_common():
        print(f"  {count:6} {key}")
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main())
