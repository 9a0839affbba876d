"""Losses that are computed without the product that they are of: which these are in a trace, and who else reads it.

Such a loss is built when it is called, without the product's node. Whether something else reads the product is known
when the function has returned. Then it is traced again, and the loss reads the product, too.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

_as_written: contextvars.ContextVar[bool] = contextvars.ContextVar("kfusion_as_written", default=False)


class WholeProduct(BaseException):
    """Something else reads a product without which a loss is computed: the function is to be traced again. No code of
    the user's is to handle it.
    """

    def __init__(self, number: int) -> None:
        self.number = number


class Heads:
    """The products of losses in a trace, numbered as they are met. `whole` are those that are read otherwise, too."""

    def __init__(self, whole: Sequence[int] = ()) -> None:
        self._whole = whole
        self._numbers: dict[int, int] = {}  # by node of the product
        self._views: dict[int, tuple[int, str, Any]] = {}  # by node: of which one, and how
        self._constants: set[int] = set()
        self.claims = 0

    def claim(self, product: int) -> bool:
        """Whether a loss may be computed without this product.

        Raises:
            WholeProduct: another loss of it is.
        """
        known = self._numbers.get(product)
        number = self._numbers.setdefault(product, len(self._numbers))
        if number in self._whole:
            return False
        if known is not None:
            raise WholeProduct(number)
        self.claims += 1
        return True

    def require_unread(self, graph: Any, nodes: Iterable[int]) -> None:
        """Before a trace ends: of the nodes that are read, none may be computed of a claimed product.

        Raises:
            WholeProduct: one is.
        """
        claimed = {node: number for node, number in self._numbers.items() if number not in self._whole}
        first, pending, seen = min(claimed, default=0), list(nodes) if claimed else [], set()
        while pending:
            node = pending.pop()
            if node in claimed:
                raise WholeProduct(claimed[node])
            if node > first and node not in seen:
                seen.add(node)
                pending += graph.node(node)["arguments"]

    def add_view(self, made: int, of: int, kind: str, argument: Any) -> None:
        """A node is a view of another one."""
        self._views[made] = of, kind, argument

    def forget_view(self, made: int) -> None:
        """A node is to be taken for another value than what it is a view of."""
        self._views.pop(made, None)

    def add_constant(self, node: int) -> None:
        """Gradients take a node for a constant."""
        self._constants.add(node)

    def view(self, node: int) -> tuple[int, str, Any] | None:
        """The node of which it is a view that gradients pass, and how; None where it is none."""
        return self._views.get(node) if node not in self._constants else None

    def passes(self, node: int) -> bool:
        """Whether gradients pass through a node."""
        return node not in self._constants


@contextlib.contextmanager
def of_options(options: Mapping[str, Any]) -> Iterator[None]:
    """What is traced inside is planned by these options: as it is written, where they speak of its kernels."""
    is_so = not options.get("fuse", True) or bool(options.get("allow")) or bool(options.get("forbid"))
    token = _as_written.set(is_so)
    try:
        yield
    finally:
        _as_written.reset(token)


def are_sought() -> bool:
    """Whether losses may be computed otherwise than they are written."""
    return not _as_written.get()
