"""The CPU as LLVM sees it: what Numba compiles for."""

from __future__ import annotations

from functools import cache

import llvmlite.binding as llvm
from numba.core import codegen, config


@cache
def compiled_for() -> frozenset[str]:
    """LLVM's names of the features that Numba compiles for; NUMBA_CPU_NAME may ask for fewer."""
    asked: str | None = vars(config)["CPU_FEATURES"]
    text = codegen.get_host_cpu_features() if asked is None else asked  # type: ignore[no-untyped-call]
    return frozenset(name[1:] for name in text.split(",") if name.startswith("+"))


def cpu_name() -> str:
    """LLVM's name of the CPU that Numba compiles for."""
    asked: str | None = vars(config)["CPU_NAME"]
    return str(llvm.get_host_cpu_name() if asked is None else asked)
