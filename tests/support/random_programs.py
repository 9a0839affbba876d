"""Checks random programs: their plans, and their results fused, unfused and in NumPy; their gradients, too.

    python tests/support/random_programs.py --programs 200000 --jobs 2

Program K of seed S is the same on every machine: `--seed S --only K` checks it again. Failures are shrunk and printed
as scripts; the exit status is 1 if there are any. `--json FILE` counts what was checked, as far as it came. Ctrl-C and
SIGTERM end all processes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.runs import facts as run_facts
from programs import apart
from programs.checks import RUNNERS, Runner, TextRunner, error_of, threads
from programs.drawing import Seeded, draw_program
from programs.profiles import CALL_PROFILES, GRAD_PROFILES, OWN_PROFILES, PROFILES, Profile
from programs.program import Program

CHUNK = {"cpu": 100, "text": 20, "gpu": 5, "grad": 50, "calls": 50, "own": 50}
TRIES = {"cpu": 400, "text": 30, "gpu": 100, "grad": 200, "calls": 200, "own": 200}  # programs that shrinking looks at
THOROUGH = 10  # one program in so many


@dataclass(frozen=True)
class Failure:
    number: int
    profile: str
    message: str
    program: Program
    script: str

    @property
    def kind(self) -> str:
        """Failures of one kind may have one cause."""
        ops = sorted({s.op for s in self.program.steps})
        return f"{without_numbers(self.message)[:60]} [{', '.join(ops)}]"


@dataclass
class Checked:
    """What was found, and how often each profile and each operation was part of it."""

    failures: list[Failure] = field(default_factory=list)
    profiles: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    alone: int = 0  # programs that torch itself cannot run there, held to its error on the CPU

    def add(self, other: Checked) -> None:
        self.failures += other.failures
        self.profiles += other.profiles
        self.operations += other.operations
        self.alone += other.alone


def without_numbers(message: str) -> str:
    return re.sub(r"-?[0-9][-+.0-9e, ]*", "#", message)


def message_of(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:400]}"


def is_run(profile: Profile, backend: str) -> bool:
    """Products of arrays that no library has made are the array library's, and a host has no tensor cores."""
    if profile.of_torch:
        return backend != "text" and find_spec("torch") is not None
    return backend not in ("text", "gpu") or profile.name not in ("products", "calls")


def profiles_of(backend: str, profile: str | None) -> list[Profile]:
    """Those that the backend runs, or the one of this name."""
    profiles = {"grad": GRAD_PROFILES, "calls": CALL_PROFILES, "own": OWN_PROFILES}.get(backend, PROFILES)
    return [p for p in profiles if profile in (None, p.name) and is_run(p, backend)]


def program_of(runner: Runner, backend: str, seed: int, number: int, profile: str | None = None) -> tuple[str, Program]:
    """The program, the first one that says something, and the name of its profile."""
    some = profiles_of(backend, profile)
    chosen = some[number % len(some)]
    for attempt in itertools.count():
        program = draw_program(Seeded(seed * 1_000_003 + number + (attempt << 64)), chosen).needed()
        if runner.says_something(program):
            break
    return chosen.name, program


def smaller(p: Program) -> Iterator[Program]:
    """The program with fewer results, with a step less, with simpler inputs."""
    n = len(p.inputs)
    if len(p.outputs) > 1:
        yield from (replace(p, outputs=[o]) for o in p.outputs)
        yield from (replace(p, outputs=[o for o in p.outputs if o != left]) for left in p.outputs)
    for k in reversed(range(len(p.steps))):
        for a in p.steps[k].arguments:
            instead = {n + k: a}
            steps = [replace(s, arguments=tuple(instead.get(x, x) for x in s.arguments)) for s in p.steps]
            outputs = list(dict.fromkeys(instead.get(o, o) for o in p.outputs))
            if all(o >= n for o in outputs):
                yield replace(p, steps=steps, outputs=outputs)
    if p.interface is not None:
        yield from (replace(p, interface=interface) for interface in p.interface.smaller())
    if any(not x.flags.c_contiguous for x in p.inputs):
        yield replace(p, inputs=[x.copy("C") for x in p.inputs])


def shrunk(runner: Runner, program: Program, error: Exception, tries: int, *, thorough: bool) -> Program:
    """A program that fails in the same words."""
    words = without_numbers(message_of(error))[:40]

    def fails(p: Program) -> bool:
        e = error_of(runner.check, p, thorough=thorough)
        return e is not None and without_numbers(message_of(e))[:40] == words

    while tries > 0:
        for candidate in map(Program.needed, smaller(program)):
            tries -= 1
            if tries == 0 or fails(candidate):
                break
        else:
            break
        program = candidate if tries else program
    return program


Make = Callable[[], Runner]


def check_programs(
    backend: str, seed: int, numbers: Sequence[int], profile: str | None = None, make: Make | None = None
) -> Checked:
    """Checks the programs of these numbers by the backend's runner, or what `make` gives. After one that leaves its
    process without a GPU, the others are checked in a new one, and that one alone in another.
    """
    if not numbers:
        return Checked()
    asked = backend, seed, numbers, profile, make or RUNNERS[backend]
    return apart.in_new_process(_checked, *asked) if apart.is_lost else _checked(*asked)


def _checked(backend: str, seed: int, numbers: Sequence[int], profile: str | None, make: Make) -> Checked:
    checked = Checked()
    with threads(1):
        runner = make()
        names, programs = zip(*(program_of(runner, backend, seed, n, profile) for n in numbers), strict=True)
        errors = errors_of(runner, programs, numbers)
        for i, (number, name, program, error) in enumerate(zip(numbers, names, programs, errors, strict=True)):
            checked.add(Checked(profiles=Counter([name]), operations=Counter(s.op for s in program.steps)))
            if is_lost := runner.is_lost():
                checked.add(_checked_alone(backend, seed, number, profile, make, error))
            elif error is not None:
                tries = TRIES[backend] if len(checked.failures) < 3 else 0
                checked.failures.append(_failure(runner, number, name, program, error, tries))
            if is_lost or (error is not None and runner.is_lost()):  # by a smaller program
                apart.lose()
                checked.add(check_programs(backend, seed, numbers[i + 1 :], profile, make))
                break
    return checked


def errors_of(runner: Runner, programs: Sequence[Program], numbers: Sequence[int]) -> Iterator[Exception | None]:
    if isinstance(runner, TextRunner):
        yield from runner.errors(programs)
        return
    for program, number in zip(programs, numbers, strict=True):
        yield error_of(runner.check, program, thorough=number % THOROUGH == 0)


def _failure(runner: Runner, number: int, name: str, program: Program, error: Exception, tries: int) -> Failure:
    thorough = number % THOROUGH == 0
    small = shrunk(runner, program, error, tries, thorough=thorough)
    error = error_of(runner.check, small, thorough=thorough) or error
    return Failure(number, name, message_of(error), small, runner.script(small))


def _checked_alone(
    backend: str, seed: int, number: int, profile: str | None, make: Make, error: Exception | None
) -> Checked:
    """What is to be said of a program after which its process could run nothing more."""
    asked = backend, seed, number, profile, make
    try:
        is_torchs = not apart.in_new_process(_runs_eagerly, *asked)
    except BrokenExecutor:
        is_torchs = True
    try:
        message = apart.in_new_process(_alone, *asked, is_torchs)
    except BrokenExecutor:
        message = "its process died"
    if is_torchs and not message:
        return Checked(alone=1)
    runner = Runner()  # which draws the same program
    name, program = program_of(runner, backend, seed, number, profile)
    seen = message_of(error) if error is not None else "its process can run nothing more"
    message = message or f"{seen}; alone in a process it is right"
    return Checked([Failure(number, name, message, program, runner.script(program))], alone=int(is_torchs))


def _runs_eagerly(backend: str, seed: int, number: int, profile: str | None, make: Make) -> bool:
    runner = make()
    return runner.runs_eagerly(program_of(runner, backend, seed, number, profile)[1])


def _alone(backend: str, seed: int, number: int, profile: str | None, make: Make, is_torchs: bool) -> str:
    """What is wrong with a program in a process of its own; without torch's own there, where that is what fails."""
    with threads(1):
        runner = make()
        if is_torchs:
            runner.eager_device = "cpu"
        _, program = program_of(runner, backend, seed, number, profile)
        error = error_of(runner.check, program, thorough=number % THOROUGH == 0)
        lost = "its process can run nothing more" if runner.is_lost() else ""
        return message_of(error) if error is not None else lost


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=2000, help="how many (2000)")
    parser.add_argument("--seed", type=int, help="a new one where none is given")
    parser.add_argument("--only", type=int, help="the number of the only program to check")
    names = dict.fromkeys(p.name for p in PROFILES + GRAD_PROFILES + CALL_PROFILES + OWN_PROFILES)
    parser.add_argument("--profile", choices=names, help="only programs of this kind")
    parser.add_argument(
        "--backend",
        choices=list(RUNNERS),
        default="cpu",
        help="text: CUDA on the host; grad: gradients; calls: with other sizes, of containers",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (as many as CPU cores)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where a summary goes, while it runs as well")
    parser.add_argument("--commit", metavar="ID", help="what is checked, where git cannot say")
    args = parser.parse_args()
    if not profiles_of(args.backend, args.profile):
        names = ", ".join(p.name for p in profiles_of(args.backend, None))
        parser.error(f"backend {args.backend} has no profile {args.profile!r}; it has {names}")
    return args


def report(args: argparse.Namespace, failures: Sequence[Failure], kinds: Counter[str]) -> None:
    """The first failure of each kind as a script, and the numbers of the others."""
    for f in failures:
        kinds[f.kind] += 1
        again = f"--backend {args.backend} --seed {args.seed} --only {f.number}"
        again += f" --profile {args.profile}" if args.profile else ""
        script = f"\n{f.script}\n" if kinds[f.kind] == 1 else ""
        print(f"\n# {again}  ({f.profile})\n# {f.message}{script}", flush=True)


def result_of(future: Future[Checked], futures: Mapping[Future[Checked], range]) -> Checked:
    try:
        return future.result()
    except BrokenExecutor:
        left = [f"{c.start} to {c.stop - 1}" for f, c in futures.items() if not f.done() or f.exception() is not None]
        sys.exit(f"a process died while it checked some of the programs {', '.join(left[:8])}")


def write(args: argparse.Namespace, facts: Mapping[str, Any], checked: Checked, seconds: float) -> None:
    """The summary."""
    if args.json is None:
        return
    failed = [{"number": f.number, "profile": f.profile, "message": f.message} for f in checked.failures]
    counts = {"backend": args.backend, "seed": args.seed, "programs": checked.profiles.total(), "failed": failed}
    some = {"profiles": dict(checked.profiles.most_common()), "operations": dict(checked.operations.most_common())}
    plain = {**facts, **counts, "alone": checked.alone, "seconds": round(seconds), "processes": args.jobs, **some}
    written = args.json.with_name(args.json.name + ".part")
    written.write_text(json.dumps(plain, indent=1) + "\n")
    written.replace(args.json)


def main() -> int:
    args = arguments()
    if args.seed is None:
        args.seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {args.seed}", flush=True)
    RUNNERS[args.backend]()  # imports the libraries whose versions are told
    facts = run_facts(" ".join(["python", *sys.argv]), args.commit, ["torch"], gpu=args.backend == "gpu")
    numbers = range(args.programs) if args.only is None else range(args.only, args.only + 1)
    size = CHUNK[args.backend]
    chunks = [numbers[i : i + size] for i in range(0, len(numbers), size)]
    kinds: Counter[str] = Counter()
    checked = Checked()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    start = said = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.jobs, context, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        try:
            futures = {pool.submit(check_programs, args.backend, args.seed, c, args.profile): c for c in chunks}
            for future in as_completed(futures):
                found = result_of(future, futures)
                checked.add(found)
                report(args, found.failures, kinds)
                if time.perf_counter() - said > 10:
                    said = time.perf_counter()
                    print(
                        f"{checked.profiles.total()} programs, {said - start:.0f} s, {kinds.total()} failed", flush=True
                    )
                    write(args, facts, checked, said - start)
        except BaseException as e:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.kill()
            if isinstance(e, (KeyboardInterrupt, SystemExit)):
                write(args, facts, checked, time.perf_counter() - start)
                os._exit(130 if isinstance(e, KeyboardInterrupt) else int(e.code or 0))  # no wait for a GPU's driver
            raise
        finally:
            seconds = time.perf_counter() - start
            write(args, facts, checked, seconds)
    done = checked.profiles.total()
    print(f"{done} programs in {seconds:.0f} s ({done / seconds:.0f} a second), {kinds.total()} failed")
    print(f"{checked.alone} held to torch's error on the CPU, as it cannot run them here") if checked.alone else None
    for kind, count in kinds.most_common():
        print(f"{count:6}  {kind}")
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
