"""Name and features of the CPU that Numba compiles for, read without importing Numba where that is safe."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from functools import cache
from importlib import import_module
from typing import Any

import llvmlite.binding as llvm

from ...base.system import LINUX, MACHINE, c_library
from ...base.unwinding import Whole, until_imported

SETTINGS = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_ENABLE_AVX")
FILE = ".numba_config.yaml"  # in the folder that a process was started in
HWCAP, ASIMDDP = 16, 1 << 20  # the word of Linux on arm64 about its CPU, and the bit for dot products
DOT = """
declare i32 @llvm.vector.reduce.add.v16i32(<16 x i32>)
define i32 @dot(<16 x i8> %a, <16 x i8> %b) {
  %c = sext <16 x i8> %a to <16 x i32>
  %d = sext <16 x i8> %b to <16 x i32>
  %e = mul <16 x i32> %c, %d
  %f = call i32 @llvm.vector.reduce.add.v16i32(<16 x i32> %e)
  ret i32 %f
}
"""


@cache
def cpu_may_differ() -> bool:
    """True if a setting may make Numba compile for another CPU."""
    return any(name in os.environ for name in SETTINGS) or os.path.exists(FILE)


@cache
def compiled_for() -> frozenset[str]:
    """LLVM's names of the features that Numba compiles for; NUMBA_CPU_NAME may leave some out."""
    text: str | None = _config("CPU_FEATURES")
    if text is None and cpu_may_differ():
        with until_imported("numba"):
            text = str(import_module("numba.core.codegen").get_host_cpu_features())
    if text is None:
        # Whole: an exception in LLVM's Python may free memory twice. RuntimeError: of a system where LLVM
        # cannot tell, and nothing is certain then.
        with contextlib.suppress(RuntimeError), Whole():
            text = llvm.get_host_cpu_features().flatten()
    features = frozenset(name[1:] for name in (text or "").split(",") if name.startswith("+"))
    return features | {"dotprod"} if _lacks_dotprod(features, text or "") else features


def _lacks_dotprod(features: frozenset[str], text: str) -> bool:
    """True if the CPU has arm64's dot product although LLVM's list of its features leaves it out.

    Linux has to report it, and LLVM has to emit it for a CPU of that name: for a CPU that it does not know
    LLVM would end the process over the instruction.
    """
    if "dotprod" in features or "neon" not in features or not LINUX or MACHINE != "aarch64":
        return False
    return bool(_hwcap() & ASIMDDP) and takes_dot(llvm.get_process_triple(), cpu_name(), text)


def _hwcap() -> int:
    """The features that Linux reports for this CPU, as bits."""
    tell = c_library().getauxval
    tell.argtypes, tell.restype = (ctypes.c_ulong,), ctypes.c_ulong
    return int(tell(HWCAP))


def takes_dot(triple: str, cpu: str, text: str) -> bool:
    """True if LLVM compiles a sum of products of bytes to arm64's dot product, for a CPU and features."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=text, opt=2)
    return "sdot" in machine.emit_assembly(llvm.parse_assembly(DOT))


CACHED = 2 << 20  # bytes of weights that the second cache holds: there a prefetch only takes time
RAPIDS = ("sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d")


@cache
def prefetch_distance() -> int:
    """The distance in bytes at which kernels prefetch weights; 0 where the CPU itself fetches in time.

    Intel's server CPUs from Sapphire Rapids on read half as fast again from memory this way, also where a
    virtual machine hides their matrix unit; AMD's a tenth slower.
    """
    return 16384 if "amx-tile" in compiled_for() or cpu_name() in RAPIDS else 0


def zen() -> bool:
    """True on a CPU of AMD's Zen family, on which some figures were measured."""
    return cpu_name().startswith("znver")


@cache
def cpu_name() -> str:
    """LLVM's name of the CPU that Numba compiles for."""
    name: str | None = _config("CPU_NAME")
    with Whole():
        return str(llvm.get_host_cpu_name() if name is None else name)


def _config(name: str) -> Any:
    """A setting of Numba, or None where it has its default: importing Numba takes longer than a product."""
    if not cpu_may_differ() and "numba" not in sys.modules:
        return None
    with until_imported("numba"):
        return vars(import_module("numba.core.config"))[name]
