"""The CPU as LLVM sees it: what Numba compiles for."""

from __future__ import annotations

import contextlib
from functools import cache

import llvmlite.binding as llvm
from numba.core import codegen, config


@cache
def compiled_for() -> frozenset[str]:
    """LLVM's names of the features that Numba compiles for; NUMBA_CPU_NAME may ask for fewer."""
    asked: str | None = vars(config)["CPU_FEATURES"]
    text = codegen.get_host_cpu_features() if asked is None else asked  # type: ignore[no-untyped-call]
    return frozenset(name[1:] for name in text.split(",") if name.startswith("+"))


@cache
def model_name() -> str | None:
    """What the maker calls this CPU, where Linux says so: LLVM's name can be that of a lesser one."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return " ".join(value.split())
    return None


def cpu_name() -> str:
    """LLVM's name of the CPU that Numba compiles for."""
    asked: str | None = vars(config)["CPU_NAME"]
    return str(llvm.get_host_cpu_name() if asked is None else asked)
