"""Programs whose error ends all use of a GPU: every later call of CUDA in that process fails, whoever makes it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

is_lost = False  # whether this process can check nothing any more


def lose() -> None:
    """This process is done: a worker of a pool hands what it is given later to new processes."""
    global is_lost
    is_lost = True


def in_new_process(function: Callable[..., T], *args: Any) -> T:
    """function(*args) in a process in which nothing has happened.

    Raises:
        BrokenExecutor: that process died.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()
