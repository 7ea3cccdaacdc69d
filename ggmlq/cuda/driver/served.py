"""The store of kernels for GPUs, and the code that comes with the package for each of them.

That is machine code for a GPU's own capability, otherwise PTX, which the driver translates for any GPU from
the capability on that the kernel declares.
"""

from __future__ import annotations

import re
from pathlib import Path

from ...base import missing
from ...store.origin import Origin
from ...store.store import Store, versions
from ..intrinsics.hopper import GUARDED

COMPILERS = (  # packages whose versions are part of a kernel's key
    "numba", "numba-cuda", "llvmlite", "cuda-core",
    "nvidia-nvjitlink", "nvidia-nvvm", "nvidia-nvjitlink-cu12", "nvidia-cuda-nvcc-cu12",
)  # fmt: skip
STORE = Store(Path(__file__).parents[1] / "prebuilt", lambda: versions(*COMPILERS))
PTX, FIRST_EARLY = "ptx", (9, 0)  # the machine that PTX is for; the lowest capability with dependent launches
TARGET = ".target sm_90"
VERSION = b".version 7.8"  # as it is written
# Versions of later instructions: products of floats of 8 bits, and conversions to them before 9.0.
NEEDS = {
    b"barrier.cluster.arrive.relaxed": b".version 8.0",
    b"e4m3": b".version 8.4",
    b"e5m2": b".version 8.4",
}
# From here on assemblers spill where they are told how many blocks a multiprocessor is to hold, and take far
# fewer registers where they are not. A block of so many threads may have as many registers as a thread can.
UNTOLD, FEW = (12, 0), 256
# Before this capability no instruction rounds to bfloat16: integers do, which are exact; NaN becomes one NaN.
FIRST_BFLOAT = (8, 0)
BFLOAT = re.compile(r"(@!?%?\w+ )?cvt\.rn\.bf16\.f32 (%?\w+), (%\w+);")
ROUNDING = (
    r"{.reg .b32 bits_, up_; .reg .pred nan_; mov.b32 bits_, \3; bfe.u32 up_, bits_, 16, 1; "
    r"add.u32 up_, up_, 32767; add.u32 up_, up_, bits_; shr.u32 up_, up_, 16; "
    r"setp.nan.f32 nan_, \3, \3; selp.b32 up_, 32767, up_, nan_; "
    r"\1cvt.u16.u32 \2, up_;}"
)
LIMITS = re.compile(r"\.maxntid (\d+), 1, 1\s*\.minnctapersm ([2-9])\b")


def machine_of(capability: tuple[int, int]) -> str:
    """The name of a GPU's capability in the store; kernels whose waits are watched are other kernels."""
    return f"sm_{capability[0]}{capability[1]}" + "-guarded" * GUARDED


def code_of(origin: Origin, capability: tuple[int, int], exact: bool) -> bytes | None:
    """The package's code of a kernel for a GPU; None where it has none."""
    code = STORE.packaged(origin, machine_of(capability))
    if code is None and not (exact or GUARDED):
        code = STORE.packaged(origin, PTX)
        return None if code is None else for_driver(code, capability)
    return code


def is_served(origin: Origin, capability: tuple[int, int], exact: bool) -> bool:
    """True if :func:`code_of` would return code; nothing is unpacked here."""
    machines = [machine_of(capability), *([] if exact or GUARDED else [PTX])]
    return any(STORE.has_packaged(origin, machine) for machine in machines)


def is_to_be_had(origin: Origin, capability: tuple[int, int], exact: bool) -> bool:
    """True if the package has code for a kernel, or there is a compiler of it here."""
    return is_served(origin, capability, exact) or missing.has("numba_cuda")


def for_driver(code: bytes, capability: tuple[int, int]) -> bytes:
    """The package's PTX, which was written for 9.0, changed so that a driver takes it for another GPU."""
    code = code.replace(VERSION, max((NEEDS[word] for word in NEEDS if word in code), default=VERSION))
    if capability >= UNTOLD:
        return LIMITS.sub(_untold, code.decode()).encode()
    if capability >= FIRST_EARLY:
        return code
    text = for_early(code.decode(), capability)
    for word in ("launch_dependents", "wait"):
        text = text.replace(f"griddepcontrol.{word};", "")
    return text.replace(TARGET, f".target sm_{capability[0]}{capability[1]}").encode()


def _untold(limits: re.Match[str]) -> str:
    return "" if int(limits[1]) <= FEW else limits[0]


def for_early(text: str, capability: tuple[int, int]) -> str:
    """PTX for GPUs without clusters: each block is alone there, and code for others is never reached."""
    text = re.sub(r"barrier\.cluster\.[\w.]+;|mapa\.[^;]*;", "", text)
    text = text.replace("%cluster_nctarank", "1").replace("%cluster_ctarank", "0")
    text = text.replace(".shared::cluster", ".shared")
    return BFLOAT.sub(ROUNDING, text) if capability < FIRST_BFLOAT else text
