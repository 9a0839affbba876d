"""kfusion's functions, for rows. Those of the op table are made at run time: type checkers do not know them."""

from __future__ import annotations

from typing import Any

from .. import _functions

kf: Any = _functions
