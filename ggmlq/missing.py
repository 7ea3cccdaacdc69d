"""What to install for what is not on this machine: the last lines of ``ggmlq doctor``.

Nothing of it is needed by the core. An extra is told with what it is for, so that one knows what to leave
out. Which of the two for a GPU fits is up to the driver, which is asked without CuPy.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

EXTRAS = {  # package: what it is for, and what brings it
    "jinja2": ("HTML pages: report, diff --html, check --html", 'pip install "ggmlq[report]"'),
    "matplotlib": ("pictures as PNG: show --plot, error-table --plot", 'pip install "ggmlq[plot]"'),
    "argcomplete": ("completion in a shell", 'pip install "ggmlq[completion]"'),
    "ml_dtypes": ("bfloat16 arrays on the host", "pip install ml_dtypes"),
}
LIBGGML = (
    "llama.cpp's own kernels: check, trace, imatrix --model",
    'pip install "ggmlq[llama]" (compiles for minutes), or GGMLQ_LIBGGML=FOLDER for a build of yours',
)
CUPY = {12: "cupy-cuda12x", 13: "cupy-cuda13x"}
EXTRA = {12: "cuda12", 13: "cuda"}


def driver() -> int | None:
    """The CUDA version that the NVIDIA driver of this machine knows: 13000 for 13.0; None without one."""
    found = ctypes.c_int()
    try:
        cuda = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
        failed = cuda.cuDriverGetVersion(ctypes.byref(found))
    except (OSError, AttributeError):
        return None
    return None if failed or not found.value else found.value


def advice(
    packages: Mapping[str, str | None], driver: int | None, cublas: bool, libggml: bool
) -> list[dict[str, str]]:
    """``{"for": …, "install": …}`` for each thing that is missing.

    ``packages``: their versions, None where one is not installed; ``cublas``, ``libggml``: whether they load.
    """
    told = [*_gpu(packages, driver, cublas)]
    told += [] if libggml else [LIBGGML]
    told += [said for name, said in EXTRAS.items() if packages.get(name) is None]
    return [{"for": what, "install": how} for what, how in told]


def _gpu(packages: Mapping[str, str | None], driver: int | None, cublas: bool) -> list[tuple[str, str]]:
    what, install = "products on an NVIDIA GPU", 'pip install "ggmlq[{}]"'
    here = [major for major, name in CUPY.items() if packages.get(name)]
    lacking = not here or packages.get("numba-cuda") is None
    if driver is None:
        said = f"{what}; no driver for one is found here"
        return [(said, f"a driver{', then ' + install.format('cuda') if lacking else ''}")]
    if driver < 12000:
        return [(f"{what}; the driver knows CUDA {_dotted(driver)}", "a newer driver, for CUDA 12 at least")]
    fits = min(driver // 1000, max(EXTRA))
    way = install.format(EXTRA[fits])
    if here and min(here) > fits:  # it would need a newer driver
        said = f"{what}; the driver knows CUDA {_dotted(driver)}, {CUPY[min(here)]} needs a newer one"
        return [(said, f"pip uninstall {CUPY[min(here)]}, then {way}")]
    if len(here) > 1:
        both = " ".join(CUPY.values())
        return [(f"{what}; two CuPys are in each other's place", f"pip uninstall {both}, then {way}")]
    if lacking:
        return [(what, way)]
    return [] if cublas else [("cuBLAS, for products of many rows on a GPU", way)]


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
