"""Known causes of crashes of a user's libggml, for the errors of checks and traces."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

COMPILER = re.compile(rb"GCC: \([^)]*\) (\d+)\.[\d.]+")
SIGNALS = ("SIGSEGV", "SIGILL")
GCC_OF_AMX = 12  # it drops stores to the tile configuration at -O3; 13 keeps them


def cause_of(how: str, layouts: Iterable[str | bool], libraries: Iterable[Path]) -> str:
    """A sentence on the cause of a crash if a known mistake of a compiler explains it; else empty."""
    amx = any(layout is True or str(layout).upper() == "AMX" for layout in layouts)
    if not amx or not any(signal in how for signal in SIGNALS):
        return ""
    if GCC_OF_AMX not in {version for path in libraries for version in _compilers(path)}:
        return ""
    return (
        f"This build is of gcc {GCC_OF_AMX}, which at -O3 drops stores to AMX's tile configuration, so it "
        "may not be the kernel: build with -fno-tree-dse -fno-dse, with -O2 or with gcc 13 (docs/check.md)"
    )


def _compilers(path: Path) -> set[int]:
    """Major versions of gcc that a library names."""
    with suppress(OSError):
        return {int(version) for version in COMPILER.findall(path.read_bytes())}
    return set()
