"""Crashes whose cause is known."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from ..llama import Bridge

COMPILER = re.compile(rb"GCC: \([^)]*\) (\d+)\.[\d.]+")
SIGNALS = ("SIGSEGV", "SIGILL")
GCC_OF_AMX = 12  # it drops stores to the tile configuration at -O3; 13 keeps them


def cause_of(how: str, layout: str | bool, bridge: Bridge) -> str:
    """A sentence about a death that a compiler is known to make, else nothing."""
    if not any(signal in how for signal in SIGNALS) or (layout is not True and str(layout).upper() != "AMX"):
        return ""
    compilers = {version for path in bridge.libraries for version in _compilers(path)}
    if GCC_OF_AMX not in compilers:
        return ""
    return (
        f". This build is of gcc {GCC_OF_AMX}, which at -O3 drops stores to AMX's tile configuration, so it "
        "may not be the kernel: build with -fno-tree-dse -fno-dse, with -O2 or with gcc 13 (docs/check.md)"
    )


def _compilers(path: Path) -> set[int]:
    """Major versions of gcc that a library names."""
    with suppress(OSError):
        return {int(version) for version in COMPILER.findall(path.read_bytes())}
    return set()
