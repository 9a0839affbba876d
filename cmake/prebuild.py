"""Compiles the kernels that are installed beside the module.

    prebuild.py MODULE PACKAGES WHICH NVCC FOLDER ARCHITECTURE...

MODULE is the extension module just built, PACKAGES the folder that has kfusion's Python, FOLDER takes the results.
WHICH is "common" or "all". Where there is no NVRTC, which would compile others when they are needed, "auto" and
"needed" are all; where there is, "auto" is "common" and "needed" none.
"""

import importlib.util
import sys
import sysconfig
from pathlib import Path

module, packages, which, nvcc, folder, *architectures = sys.argv[1:]
sys.path.append(sysconfig.get_path("platlib"))  # an isolated build does not see what is installed: NVRTC, perhaps
spec = importlib.util.spec_from_file_location("kfusion._core", module)
core = importlib.util.module_from_spec(spec)
sys.modules["kfusion._core"] = core  # this one, whatever else lies beside the package
spec.loader.exec_module(core)
sys.path.insert(0, packages)
from kfusion import _prebuilt  # noqa: E402


def have_nvrtc() -> bool:
    try:
        return bool(core.nvrtc_library())
    except core.DeviceError:
        return False


if which in ("auto", "needed") and not have_nvrtc():
    which = "all"
wanted = {"auto": _prebuilt.COMMON, "common": _prebuilt.COMMON, "all": _prebuilt.FUNCTIONS, "needed": ()}[which]
_prebuilt.build(wanted, architectures, nvcc, Path(folder), Path(folder) / "work")
