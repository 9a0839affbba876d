"""Random arrays of any layout, on the device and of the library that the kernels are measured with."""

from __future__ import annotations

import importlib.util
from typing import Any

from kfusion import _core
from kfusion._cli.demo import numpy_dtype, random_array
from kfusion._compare.compare import copied_elements

PAD = 64  # elements between the rows of a strided array
LAYOUTS = ("dense", "strided", "transposed")


class Inputs:
    """NumPy's arrays on the CPU; on CUDA torch's where it is installed, because it makes them there, else kfusion's."""

    def __init__(self, device: str, library: str | None = None) -> None:
        self.device = device
        self.library = library or ("numpy" if device == "cpu" else "torch" if _has_cuda_torch() else "kfusion")
        self._copied: tuple[Any, Any] | None = None

    def random(self, shape: tuple[int, ...], dtype: str, seed: int, layout: str = "dense", scale: float = 1.0) -> Any:
        """Normal numbers of mean 0.

        Args:
            shape: any; of two axes where the layout is not dense.
            dtype: a float type.
            seed: other numbers for another seed.
            layout: "dense", "strided" (rows with a gap behind each) or "transposed" (columns are contiguous).
            scale: their standard deviation.

        Raises:
            TypeError: the library has no arrays of that layout.
        """
        if layout == "strided":
            return self._dense((shape[0], shape[1] + PAD), dtype, seed, scale)[:, : shape[1]]
        if layout == "transposed":
            return self._dense(shape[::-1], dtype, seed, scale).T
        return self._dense(shape, dtype, seed, scale)

    def _dense(self, shape: tuple[int, ...], dtype: str, seed: int, scale: float = 1.0) -> Any:
        if self.library == "torch":
            import torch

            numbers = torch.Generator("cuda").manual_seed(seed)
            return torch.randn(shape, device="cuda", dtype=getattr(torch, dtype), generator=numbers).mul_(scale)
        host = random_array(shape, numpy_dtype(dtype), seed)
        host *= host.dtype.type(scale)
        return host if self.library == "numpy" else _core.to_device(host)

    def integers(self, numbers: Any) -> Any:
        """A NumPy array of integers as an array of the library's."""
        if self.library == "torch":
            import torch

            return torch.from_numpy(numbers).cuda()
        return numbers if self.library == "numpy" else _core.to_device(numbers)

    def copy_of(self, nbytes: int) -> tuple[int, Any, Any]:
        """Two arrays of their own for the copy that moves this many bytes: (bytes moved, source, target).

        Their own, so that a copy between two samples also takes the case's arrays out of the caches.
        """
        elements = copied_elements(nbytes)
        has_parts = self.library != "kfusion"
        if self._copied is None or self._copied[0].shape[0] < elements or not has_parts:
            self._copied = None  # first, so that there is room
            self._copied = self._dense((elements,), "float32", 101), self._dense((elements,), "float32", 102)
        source, target = (x[:elements] if has_parts else x for x in self._copied)
        return 8 * elements, source, target


def _has_cuda_torch() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())
