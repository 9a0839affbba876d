"""Numbers for the sizes that specs name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .._environment import modules
from .._graph.structure import walk
from .._spec import Spec, SymbolicSpec, require_sizes
from .._tracing.trace import without_partial


def filled(
    function: Any, arguments: Any, keywords: Any, sizes: Mapping[str, int], who: str = "kfusion.plan"
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with numbers for named sizes; specs of a module's follow torch."""
    specs: list[SymbolicSpec] = []
    walk((arguments, keywords), lambda _, leaf: _met(specs, leaf), is_leaf=_is_no_structure)
    named = frozenset().union(*(s.names for s in specs))
    if unknown := sorted(sizes.keys() - named):
        known = f"; they name {', '.join(sorted(named))}" if named else ""
        which = f"size{'s' * (len(unknown) > 1)} {', '.join(map(repr, unknown))}"
        raise ValueError(f"{who}: no spec names the {which}{known}")
    require_sizes(specs, sizes, who)
    is_torchs = modules.is_module(modules.unfused(without_partial(function)))

    def number(_: str, leaf: Any) -> Any:
        if isinstance(leaf, SymbolicSpec):
            leaf = leaf.filled(sizes)
        return dataclasses.replace(leaf, like="torch") if is_torchs and isinstance(leaf, Spec) else leaf

    made: tuple[Any, Any] = walk((arguments, keywords), number, is_leaf=_is_no_structure)
    return made


def _met(specs: list[SymbolicSpec], leaf: Any) -> Any:
    if isinstance(leaf, SymbolicSpec):
        specs.append(leaf)
    return leaf


def _is_no_structure(value: Any) -> bool:
    return type(value) not in (tuple, list, dict)
