"""The permission to use the matrix unit.

The CPU must have it, Numba must compile for it, and Linux must allow it: its registers are 8 KB for each
thread, which Linux only saves for processes that have asked. The permission holds for all threads and after a
fork. Linux refuses where a thread has a small stack for signals (ENOSPC).
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

from ...base.system import LINUX, MACHINE, c_library
from ..machine.features import compiled_for
from ..machine.target import AVX512, target

NEEDED = ("amx-tile", "amx-bf16", "amx-int8", "avx512bf16", "avx512vbmi")
ARCH_PRCTL, REQUEST, TILES = 158, 0x1023, 18  # Linux's numbers, on x86-64


@cache
def refused() -> str | None:
    """Ask for the unit: None if this process may use it, or the reason why not."""
    missing = [name for name in NEEDED if name not in compiled_for()]
    if missing or target() is not AVX512:
        return f"this CPU, or what Numba compiles for, has no {' '.join(missing) or 'AVX-512 VNNI'}"
    if not LINUX or MACHINE != "x86_64":
        return "the matrix unit is used on Linux on x86-64 alone"
    library = c_library(use_errno=True)
    if library.syscall(ARCH_PRCTL, REQUEST, TILES):
        return f"Linux refuses the matrix unit: {os.strerror(ctypes.get_errno())}"
    return None
