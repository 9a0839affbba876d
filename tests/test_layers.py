"""The order of the package's parts: each imports from those above it here, and from nothing below. Modules import each
other in no circle, within functions neither; what is imported for annotations alone does not count. Nor do folders of
C++ include each other in a circle."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kfusion as kf

PACKAGE = Path(kf.__file__).parent
LAYERS = (
    ("_core", "_arguments", "_backward_threads", "_donation", "_files", "_json", "_llvm", "_progress", "_schema"),
    ("_tables", "_user_code"),
    ("_arrays", "_pictures", "_times", "_timing"),
    ("_spec", "_devices"),
    ("_graph",),
    ("_environment",),
    ("_ops",),
    ("_tracing",),
    ("_functions", "_gradient_passes"),
    ("_onnx",),
    ("_plans",),
    ("_foreign",),
    ("_autograd", "_dask", "_fused_method", "_fused_module", "_jax"),
    ("_fuse",),
    ("_grad", "_named", "_compare", "_each", "_kept", "_consuming"),
    ("optim",),
    ("_torch_compile",),
    ("_torch_operators",),
    ("_library_call", "_traffic", "_tune", "_prebuilt"),
    ("_cli",),
    ("__init__", "__main__"),
)


# Imports by name of what calls with arrays of another library need, from below: only where that library is there.
BY_NAME = {
    ("_tracing.through_jax", "_jax.jaxprs"),
    ("_foreign.calls", "_dask.arrays"),
    ("_foreign.calls", "_foreign.labelled"),
    ("_foreign.calls", "_foreign.sharded"),
}
MOST_MODULES = 203  # of the package, that `import kfusion` imports


def module_of(path: tuple[str, ...]) -> str:
    return ".".join(path).removesuffix(".__init__")


MODULES = {module_of(f.relative_to(PACKAGE).with_suffix("").parts): f for f in sorted(PACKAGE.rglob("*.py"))}


def imports(file: Path, *, annotations: bool = False) -> Iterator[tuple[str, ...]]:
    """The paths within the package that a file imports from, wherever it does, by import_module("kfusion._jax") too."""
    folder = file.relative_to(PACKAGE).parent.parts
    text = file.read_text()
    nodes = list(ast.walk(tree := ast.parse(text)))
    blocks = [n for n in nodes if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    left_out = set() if annotations else {id(n) for block in blocks for n in ast.walk(block)}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level and id(node) not in left_out:
            start = (*folder[: len(folder) - node.level + 1], *(node.module or "").split("."))
            yield from ((*filter(None, start), name.name) for name in node.names)
    if "import_module(" in text:
        texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        yield from (tuple(t.split(".")[1:]) for t in texts if re.fullmatch(r"kfusion(\.\w+)+", t))


def test_imports_go_down():
    row = {part: i for i, layer in enumerate(LAYERS) for part in layer}
    wrong, seen = [], {"_core"}
    for name, file in MODULES.items():
        part = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        seen.add(part)
        for path in imports(file, annotations=True):
            if path[0] in row and path[0] != part and row[path[0]] >= row[part]:
                wrong += [f"{name}: {'.'.join(path)}"] if (name, ".".join(path)) not in BY_NAME else []
    assert not wrong
    assert seen == set(row)


def imported() -> dict[str, set[str]]:
    """By module, the modules of the package that it imports."""
    known: dict[str, set[str]] = {}
    for name, file in MODULES.items():
        paths = [(path, path[:-1]) for path in imports(file)]
        found = {next((m for m in map(module_of, pair) if m in MODULES), "_core") for pair in paths}
        known[name] = found - {name, "_core", *(b for a, b in BY_NAME if a == name)}
    return known


def test_modules_import_in_no_circle():
    try:
        graphlib.TopologicalSorter(imported()).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"modules that import each other: {error.args[1]}")


ROOT = Path(__file__).parents[1]


def included() -> dict[Path, set[Path]]:
    """By folder of C++ and CUDA, the folders that its files include."""
    roots = (ROOT / "cpp", ROOT / "cuda")
    known: dict[Path, set[Path]] = {}
    for file in (f for root in roots for f in root.rglob("*") if re.fullmatch(r"\.(cpp|hpp|cu|cuh|def)", f.suffix)):
        names = re.findall(r'^ *#include "(.*)"', file.read_text(), re.MULTILINE)
        folders = {(root / name).parent for name in names for root in roots if (root / name).exists()}
        known.setdefault(file.parent, set()).update(folders - {file.parent})
    return known


def test_folders_include_each_other_in_no_circle():
    try:
        graphlib.TopologicalSorter(included()).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"folders that include each other: {[str(f.relative_to(ROOT)) for f in error.args[1]]}")


CALLS = """
kf.layernorm(numpy.ones((3, 4)), numpy.ones(4))
kf.trace(lambda x: numpy.exp(x), kf.spec((3,), "bfloat16"))
"""


def test_an_import_takes_few_modules():
    """Each takes some 0.3 ms, and 0.15 s beside NumPy's are to be enough; few are of other packages, in calls too."""
    code = "import sys, numpy; before = set(sys.modules); import kfusion as kf; print(*(set(sys.modules) - before))"
    code += f"\n{CALLS}\nprint(*(set(sys.modules) - before))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported, in_calls = (line.split() for line in ran.stdout.splitlines())
    assert len([n for n in imported if n.startswith("kfusion")]) <= MOST_MODULES
    heavy = {"torch", "jax", "dask", "pandas", "matplotlib", "rich", "onnx", "ml_dtypes", "cupy", "scipy"}
    assert [n for n in imported if n.partition(".")[0] in heavy | {"llvmlite"}] == []
    assert [n for n in in_calls if n.partition(".")[0] in heavy] == []
