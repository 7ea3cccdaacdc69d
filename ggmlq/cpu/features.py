"""The CPU as LLVM sees it: what Numba compiles for."""

from __future__ import annotations

import os
from typing import Any

import llvmlite.binding as llvm

# Instruction sets that decide which integer dot product a kernel can use.
MATTERING = {
    "x86": ("avx2", "fma", "f16c", "avxvnni", "avx512f", "avx512bw", "avx512vnni", "amx-int8"),
    "arm": ("neon", "dotprod", "i8mm", "sve", "sve2"),
}


def examine() -> dict[str, Any]:
    """Name, threads and the features that matter for quantized products."""
    features = llvm.get_host_cpu_features()
    family = "arm" if "neon" in features else "x86"
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "name": llvm.get_host_cpu_name(),
        "threads": len(affinity(0)) if affinity else os.cpu_count(),
        "features": {name: bool(features.get(name)) for name in MATTERING[family]},
    }
