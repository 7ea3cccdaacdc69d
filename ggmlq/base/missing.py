"""Packages to install for features that this machine lacks: the last lines of ``ggmlq doctor``.

The core needs none of them. Each extra is listed with its purpose, so that a reader can leave it out. The
driver decides which of the two extras for a GPU fits; it is asked without CuPy.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from importlib.util import find_spec
from pathlib import Path

from .system import CUDA

EXTRAS = {  # package: what it is for, and the extra that brings it
    "jinja2": ("HTML pages: report, trace --html", "report"),
    "matplotlib": ("pictures as PNG: show --plot, error-table --plot", "plot"),
    "argcomplete": ("completion in a shell", "completion"),
    "ml_dtypes": ("bfloat16 arrays on the host", "bfloat16"),
}
LIBGGML = "llama.cpp's own kernels: check, trace, imatrix --model"
CUPY = {12: "cupy-cuda12x", 13: "cupy-cuda13x"}
EXTRA = {12: "cuda12", 13: "cuda"}
SETUP = Path(__file__).parents[2] / "setup.cfg"  # in a clone and where pip installed one with -e


def install(extra: str, beside: str = "") -> str:
    """The command that installs the packages of an extra, by their own names.

    ``beside``: another extra, whose packages are there already. The command does not name ggmlq, which is on
    no index: ``pip install "ggmlq[extra]"`` would install whatever has that name there.
    """
    here = requirements(beside) if beside else []
    names = [name for name in requirements(extra) if name not in here]
    if not names:  # of a copy of the package without its metadata
        return f"install the packages of its extra {extra}"
    quoted = (f'"{name}"' if re.search(r"[^\w.-]", name) else name for name in names)
    return " ".join(["pip install", *quoted])


def install_for_gpu() -> str:
    """The command that installs the packages for GPUs, for this driver's version of CUDA, or for 13."""
    return install(_for_gpu(driver()))


def arrays_for_gpu() -> str | None:
    """The reason why no array can lie on a GPU: neither CuPy nor torch. None beside numba-cuda, too, which
    compiles and simulates kernels without them.
    """
    if "torch" in sys.modules or has("cupy") or has("numba_cuda"):
        return None
    return f"CUDA: CuPy is not installed; arrays on a GPU are CuPy's; {install_for_gpu()}"


def install_compiler() -> str:
    """The command that installs the compiler of kernels that do not come with the package, beside CuPy; and
    the name of the extra that has these packages.
    """
    extra = _for_gpu(driver())
    return f"{install(f'{extra}-compile', beside=extra)} (the extra {extra}-compile)"


def requirements(extra: str = "") -> list[str]:
    """The packages of an extra, or of the core, with bounds; from setup.cfg or the installed metadata."""
    if SETUP.is_file():
        setup = ConfigParser()
        setup.read(SETUP, encoding="utf-8")
        if setup.get("metadata", "name", fallback="") == "ggmlq":
            extras = setup["options.extras_require"]
            text = extras[extra] if extra else setup["options"]["install_requires"]
            return [line for line in text.split("\n") if line]
    from importlib import metadata  # with a parser of e-mail, a tenth of a start

    try:
        lines = [line.partition(";") for line in metadata.requires("ggmlq") or ()]
    except metadata.PackageNotFoundError:
        return []
    marker = f"extra=='{extra}'" if extra else ""
    return [name.strip() for name, _, of in lines if marker in _plain(of) and bool(of) == bool(extra)]


def _plain(marker: str) -> str:
    return marker.replace(" ", "").replace('"', "'")


def _for_gpu(driver: int | None) -> str:
    return EXTRA[max(min(EXTRA), min((driver or 13000) // 1000, max(EXTRA)))]


def has(package: str) -> bool:
    """True where a package can be imported; it is not imported."""
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # of a finder that hides it, or None in sys.modules
        return False


def driver() -> int | None:
    """The CUDA version that the NVIDIA driver of this machine knows: 13000 for 13.0; None without one."""
    version = ctypes.c_int()
    try:
        cuda = ctypes.CDLL(CUDA)
        failed = cuda.cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if failed or not version.value else version.value


def advice(
    packages: Mapping[str, str | None], driver: int | None, cublas: bool, libggml: bool
) -> list[dict[str, str]]:
    """``{"for": …, "install": …}`` for each thing that is missing.

    ``packages``: their versions, None where one is not installed; ``cublas``, ``libggml``: whether they load.
    """
    missing = [*_gpu(packages, driver, cublas)]
    if not libggml:
        missing.append((LIBGGML, f"{install('llama')} (compiles for minutes), or GGMLQ_LIBGGML=FOLDER"))
    missing += [
        (what, install(extra)) for name, (what, extra) in EXTRAS.items() if packages.get(name) is None
    ]
    return [{"for": what, "install": how} for what, how in missing]


def _gpu(packages: Mapping[str, str | None], driver: int | None, cublas: bool) -> Iterator[tuple[str, str]]:
    what, here = "products on an NVIDIA GPU", [major for major, name in CUPY.items() if packages.get(name)]
    if driver is None:
        way = "a driver" if here else f"a driver, then {install('cuda')}"
        yield f"{what}; no driver for one is found here", way
        return
    if driver < 12000:
        yield f"{what}; the driver knows CUDA {_dotted(driver)}", "a newer driver, for CUDA 12 at least"
        return
    way = install(_for_gpu(driver))
    if here and min(here) > driver // 1000:
        purpose = f"{what}; the driver knows CUDA {_dotted(driver)}, {CUPY[min(here)]} needs a newer one"
        yield purpose, f"pip uninstall {CUPY[min(here)]}, then {way}"
        return
    if len(here) > 1:
        both = " ".join(CUPY.values())
        yield f"{what}; two CuPys are in each other's place", f"pip uninstall {both}, then {way}"
        return
    if not here:
        yield what, way
    elif not cublas:
        yield "cuBLAS, for products of many rows on a GPU", way
    if packages.get("numba-cuda") is None:
        extra = EXTRA[here[0]] if here else _for_gpu(driver)
        what = "kernels for a GPU that do not come with the package, compiled when first used"
        yield what, install(f"{extra}-compile", beside=extra)


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
