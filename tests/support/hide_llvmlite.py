"""A plugin of pytest's (`-p hide_llvmlite`): tests run as where llvmlite is not installed."""

import sys

sys.modules["llvmlite"] = None  # type: ignore[assignment]
