"""The CPU as LLVM sees it: what Numba compiles for."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from numba.core import codegen, config

# Instruction sets that decide which integer dot product a kernel can use.
MATTERING = {
    "x86": ("avx2", "fma", "f16c", "avxvnni", "avx512f", "avx512bw", "avx512vnni", "amx-int8"),
    "arm": ("neon", "dotprod", "i8mm", "sve", "sve2"),
}


def examine() -> dict[str, Any]:
    """Name, threads, the features that matter for quantized products, and where compiled code is kept."""
    features = llvm.get_host_cpu_features()
    family = "arm" if "neon" in features else "x86"
    return {
        "name": cpu_name(),
        "threads": available(),
        "features": {name: bool(features.get(name)) for name in MATTERING[family]},
        "dot": target().dot,
        "compiled": kept.examine(),
    }


@cache
def compiled_for() -> frozenset[str]:
    """LLVM's names of the features that Numba compiles for; NUMBA_CPU_NAME may ask for fewer."""
    asked: str | None = vars(config)["CPU_FEATURES"]
    text = codegen.get_host_cpu_features() if asked is None else asked  # type: ignore[no-untyped-call]
    return frozenset(name[1:] for name in text.split(",") if name.startswith("+"))
