"""Functions that call JAX's own functions, which take no values of ours: JAX traces them (`kfusion._jax.jaxprs`)."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from .. import _arrays
from .._graph.source import RandomDraw
from .._graph.structure import leaves
from .._graph.values import Argument
from .._spec import Spec, is_array

_Made = TypeVar("_Made")
_Self = TypeVar("_Self", bound="Differentiates")


class Differentiates:
    """A function of traced values that adds the gradients of another one, `__wrapped__`, to the graph. Where JAX is to
    trace that one, it traces no gradients.
    """

    __wrapped__: Callable[..., Any]

    def with_function(self: _Self, function: Callable[..., Any]) -> _Self:
        """The object for another function."""
        made = copy.copy(self)
        made.__wrapped__ = function
        return made


def attempted(
    function: Callable[..., Any],
    arguments: Any,
    attempt: Callable[[Callable[..., Any]], _Made],
    *,
    is_differentiated: bool = False,
) -> _Made:
    """What `attempt` gives of a function; where that fails and its arguments may be JAX's, through JAX's trace of it.

    Args:
        function: of traced values.
        arguments: what it is called with, in any structure.
        attempt: traces the function that it is given.
        is_differentiated: whether `attempt` asks for gradients of what the function computes.

    Raises:
        Exception: the first one, unless JAX has traced the function and a part of it has no nodes.
    """
    try:
        return attempt(function)
    except (RecursionError, RandomDraw):  # JAX would change nothing
        raise
    except Exception as error:
        if not _may_be_jaxs(arguments):
            raise
        try:
            jaxprs = importlib.import_module("kfusion._jax.jaxprs")
        except ImportError:  # an old JAX
            raise error from None
        made: _Made = jaxprs.through_jax(function, attempt, error, is_differentiated=is_differentiated)[0]
        return made


def _may_be_jaxs(arguments: Any) -> bool:
    """Whether there is an array of JAX, or there are only specs that follow NumPy while JAX is in use."""
    found = [leaf.array if isinstance(leaf, Argument) else leaf for leaf in leaves(arguments)]
    arrays = [x for x in found if isinstance(x, Spec) or is_array(x)]
    if any(not isinstance(x, Spec) and _arrays.kind(x) == "jax" for x in arrays):
        return True
    return "jax" in sys.modules and bool(arrays) and all(isinstance(x, Spec) and x.like == "numpy" for x in arrays)
