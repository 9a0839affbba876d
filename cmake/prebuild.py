"""Compiles the kernels that are installed beside the module: prebuild.py MODULE PACKAGES NVCC FOLDER ARCHITECTURE...

MODULE is the extension module just built, PACKAGES the folder that has kfusion's Python, FOLDER takes the results.
"""

import importlib.util
import sys
from pathlib import Path

module, packages, nvcc, folder, *architectures = sys.argv[1:]
spec = importlib.util.spec_from_file_location("kfusion._core", module)
core = importlib.util.module_from_spec(spec)
sys.modules["kfusion._core"] = core  # this one, whatever else lies beside the package
spec.loader.exec_module(core)
sys.path.insert(0, packages)
from kfusion import _prebuilt  # noqa: E402

_prebuilt.build(architectures, nvcc, Path(folder), Path(folder) / "work")
