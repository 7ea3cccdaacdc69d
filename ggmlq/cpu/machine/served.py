"""The prebuilt kernels of this CPU, from the packs in ``cpu/prebuilt``; without a pack Numba compiles them.

A process has no packs if a setting makes Numba compile for another CPU, if GGMLQ_PREBUILT is off, if its CPU
has another best dot product than its level, on 32 bits, and on systems other than Linux.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ...base.system import LINUX, MACHINE, WIDE
from ...store.origin import Origin
from ...store.store import Store, uses_packs, versions
from .features import compiled_for, cpu_may_differ
from .levels import Level, best
from .loading import Loaded, load
from .target import best as best_target
from .target import target

COMPILERS = ("numba", "llvmlite")
STORE = Store(Path(__file__).parents[1] / "prebuilt", lambda: versions(*COMPILERS))


@cache
def level() -> Level | None:
    """The level that has this process's packs, or None if no pack serves it."""
    if not (LINUX and WIDE) or cpu_may_differ() or not uses_packs():
        return None
    level = best(MACHINE, compiled_for())
    return level if level and best_target(level.features) == target() else None


def content(origin: Origin) -> bytes | None:
    """A kernel's code as packs hold it; None where there is none for this CPU, or it is of other sources."""
    here = level()
    if here is None or not here.of(origin.family).needed <= compiled_for():
        return None
    return STORE.packaged(origin, here.folder)


def loaded(origin: Origin) -> Loaded | None:
    """A kernel's code from packs, in memory; None also where it is damaged."""
    packed = content(origin)
    if not packed:
        return None
    try:
        return load(str(origin), packed)
    except (RuntimeError, ValueError):  # LLVM cannot read it: it can be compiled
        return None
