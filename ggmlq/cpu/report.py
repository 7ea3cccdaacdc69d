"""The CPU's part of the report of ``ggmlq doctor``."""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm

from ..base.system import cpu_model
from ..base.threads import available
from ..store import disk, store
from .amx.permission import refused
from .machine import served
from .machine.features import compiled_for, cpu_name
from .machine.target import target

# Instruction sets that decide how a kernel can multiply.
MATTERING = {
    "x86": ("avx2", "fma", "f16c", "avxvnni", "avx512f", "avx512bw", "avx512vnni", "avx512bf16", "amx-bf16"),
    "arm": ("neon", "dotprod", "sve", "sve2"),
}


def examine() -> dict[str, Any]:
    """Name, threads, the features that matter for quantized products, and the folder of compiled code."""
    features = llvm.get_host_cpu_features()
    family = "arm" if "neon" in features else "x86"
    return {
        "name": cpu_model() or cpu_name(),
        "compiled_for": cpu_name(),
        "threads": available(),
        "features": {name: bool(features.get(name) or name in compiled_for()) for name in MATTERING[family]},
        "dot": target().dot,
        "matrix_unit": (refused() or "amx") if features.get("amx-bf16") else None,
        "prebuilt": store.examine(served.STORE.prebuilt, level.folder) if (level := served.level()) else None,
        "compiled": disk.here().examine()._asdict(),
    }
