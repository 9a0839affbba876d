"""The onnx package, which is imported when a model is read."""

from __future__ import annotations

import functools
import importlib
import warnings
from typing import Any


@functools.cache
def onnx() -> Any:
    """The package with the modules that reading needs.

    Raises:
        ImportError: it is not installed.
    """
    try:
        package = importlib.import_module("onnx")
    except ImportError as error:
        what = "kfusion.onnx: reading a model needs the onnx package: pip install 'kfusion[onnx]', or pip install onnx"
        raise ImportError(what) from error
    for module in ("checker", "defs", "external_data_helper", "helper", "numpy_helper", "shape_inference"):
        importlib.import_module(f"onnx.{module}")
    return package


@functools.cache
def reference() -> Any:
    """onnx.reference, which runs operators with NumPy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("onnx.reference")
