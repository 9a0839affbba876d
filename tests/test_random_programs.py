"""Some random programs, others in every run: tests/random_programs.py checks any number of them."""

from __future__ import annotations

import pytest

from conftest import HAVE_GPU
from host_cuda import HAVE_COMPILER
from random_programs import Failure, check_programs

SHARE, SHARES = 125, 16


def assert_none(failures: list[Failure], seed: int, backend: str) -> None:
    again = f"python tests/random_programs.py --backend {backend} --seed {seed} --only"
    assert not failures, "\n".join(f"{again} {f.number}: {f.message}\n{f.program.reproducer()}" for f in failures)


@pytest.mark.parametrize("share", range(SHARES))
def test_programs(share, seed):
    numbers = range(share * SHARE, (share + 1) * SHARE)
    assert_none(check_programs("cpu", seed, numbers), seed, "cpu")


@pytest.mark.skipif(not HAVE_COMPILER, reason="needs g++")
def test_programs_as_cuda_text(seed):
    assert_none(check_programs("text", seed, range(12)), seed, "text")


@pytest.mark.cuda
@pytest.mark.skipif(not HAVE_GPU, reason="needs an NVIDIA GPU")
def test_programs_on_a_gpu(seed):
    assert_none(check_programs("gpu", seed, range(40)), seed, "gpu")
