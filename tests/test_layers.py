"""The order of the package's parts: each imports from those above it here, and from nothing below."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import kfusion as kf

PACKAGE = Path(kf.__file__).parent
LAYERS = (
    (
        "_core",
        "_arguments",
        "_backward_threads",
        "_donation",
        "_files",
        "_json",
        "_llvm",
        "_progress",
        "_schema",
        "_tables",
        "_user_code",
    ),
    ("_arrays", "_pictures", "_times", "_timing"),
    ("_spec", "_devices"),
    ("_graph",),
    ("_ops",),
    ("_tracing",),
    ("_functions",),
    ("_onnx",),
    ("_plans",),
    ("_foreign",),
    ("_autograd", "_dask", "_fused_module", "_jax"),
    ("_fuse",),
    ("_grad", "_named", "_compare", "_each", "_kept", "_consuming"),
    ("optim",),
    ("_torch_compile",),
    ("_torch_operators",),
    ("_library_call", "_traffic", "_tune", "_prebuilt"),
    ("_cli",),
    ("__init__", "__main__"),
)


def parts(file: Path) -> Iterator[str]:
    """The package's parts, folders and modules at its top, that a file imports from."""
    folder = file.relative_to(PACKAGE).parent.parts
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            path = [*folder[: len(folder) - node.level + 1], *(node.module or "").split(".")]
            yield from [path[0]] if path[0] else [name.name for name in node.names]


def test_imports_go_down():
    row = {part: i for i, layer in enumerate(LAYERS) for part in layer}
    wrong, seen = [], {"_core"}
    for file in PACKAGE.rglob("*.py"):
        part = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        seen.add(part)
        wrong += [f"{file.name} of {part}: {p}" for p in parts(file) if p != part and row[p] >= row[part]]
    assert not wrong
    assert seen == set(row)
