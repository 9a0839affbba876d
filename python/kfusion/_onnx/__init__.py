"""ONNX models as functions of arrays: read, traced operator by operator, planned and run like any other function."""

from .function import FusedModel, is_model, traced

__all__ = ["FusedModel", "is_model", "traced"]
