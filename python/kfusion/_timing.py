"""Timing that survives a noisy machine: variants in random order, with a copy of the same bytes in between.

Absolute times drift while a benchmark runs; the ratio of a sample to the copy measured right before it does not.
So every sample carries both, and all variants are sampled all through the run rather than one after the other.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from . import _core

Progress = Callable[[float, str], None]

_MIN_SAMPLES, _MAX_SAMPLES = 5, 60
_MIN_PEER_SAMPLES = 3
_HOT_SAMPLE_US = 200.0  # shorter calls are repeated within a sample, so that the clock's own cost vanishes
_CUDA_BATCH = 5
_SETTLE_S = 0.01  # other libraries' threads go on waiting busily for work that long


@dataclass(frozen=True)
class Variant:
    """Something to time: `run()` computes once; peers may be slow and get by with fewer samples."""

    name: str
    run: Callable[[], Any]
    is_peer: bool = False


@dataclass
class Samples:
    """What was measured of one variant."""

    times_us: list[float] = field(default_factory=list)
    copy_ratios: list[float] = field(default_factory=list)  # copy time / time, 1.0 = the copy's speed

    def percentile_us(self, percent: float) -> float:
        return float(np.percentile(self.times_us, percent))


class Clock(Protocol):
    """Times a call, on one device and in one state of its caches."""

    def sample(self, run: Callable[[], Any]) -> list[float]:
        """Microseconds per call, one number or several."""
        ...


class CpuClock:
    """Wall time. Cold: the caches are flushed before each sample; hot: the call has just run on the same data."""

    def __init__(self, *, flush: bool) -> None:
        self._flush = flush

    def sample(self, run: Callable[[], Any]) -> list[float]:
        if self._flush:
            _core.flush_cpu_cache()
            return [_wall_us(run, 1)]
        once = _wall_us(run, 1)
        calls = max(1, math.ceil(_HOT_SAMPLE_US / max(once, 0.1)))
        return [_wall_us(run, calls)]


class CudaClock:
    """CUDA events around each call; cold flushes the L2 before it."""

    def __init__(self, *, flush: bool, device: int) -> None:
        self._flush, self._device = flush, device

    def sample(self, run: Callable[[], Any]) -> list[float]:
        return _core.cuda_time(run, _CUDA_BATCH, cold=self._flush, device=self._device)


def _wall_us(run: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(calls):
        run()
    return (time.perf_counter_ns() - start) / 1e3 / calls


def measure(
    variants: Sequence[Variant],
    copy: Variant,
    clock: Clock,
    *,
    repeats: int | None,
    budget_s: float,
    seed: int,
    progress: Progress,
) -> dict[str, Samples]:
    """Samples every variant and the copy.

    Args:
        variants: what to time, already warm and checked.
        copy: the copy of the same bytes, timed before every sample.
        clock: how to time.
        repeats: samples of each variant, or None to divide budget_s between them.
        budget_s: seconds to spend, roughly, when repeats is None.
        seed: of the random order.
        progress: called with the fraction done and the variant's name.

    Returns:
        Samples by variant name, the copy's under its own.
    """
    schedule = random.Random(seed)
    samples = {v.name: Samples() for v in (*variants, copy)}

    def take(variant: Variant) -> None:
        copy_us, own_us = clock.sample(copy.run), clock.sample(variant.run)
        samples[copy.name].times_us += copy_us
        samples[copy.name].copy_ratios.append(1.0)
        samples[variant.name].times_us += own_us
        samples[variant.name].copy_ratios.append(float(np.median(copy_us) / np.median(own_us)))
        if variant.is_peer:
            time.sleep(_SETTLE_S)

    order: list[Variant] = []
    for i, variant in enumerate(schedule.sample(variants, len(variants))):
        progress(0.2 * i / len(variants), variant.name)
        start = time.perf_counter()
        take(variant)
        share_s = budget_s / len(variants)
        order += [variant] * ((repeats or _count(variant, share_s / (time.perf_counter() - start))) - 1)
    schedule.shuffle(order)
    for i, variant in enumerate(order):
        progress(0.2 + 0.8 * i / len(order), variant.name)
        take(variant)
    return samples


def _count(variant: Variant, affordable: float) -> int:
    least = _MIN_PEER_SAMPLES if variant.is_peer else _MIN_SAMPLES
    return int(min(max(affordable, least), _MAX_SAMPLES))
