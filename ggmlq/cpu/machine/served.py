"""Which packs serve this CPU, and when none does: the code is compiled then, as all other code.

Not where Numba was told to compile for another CPU, nor with GGMLQ_PREBUILT=off; not where kernels for this
CPU are written for another dot product than those of the level; not on systems other than Linux.
"""

from __future__ import annotations

import os
import platform
import sys
from functools import cache
from pathlib import Path

from ...store.packs import Origin, code
from .features import compiled_for, settled
from .levels import Level, best
from .loading import Loaded, load
from .target import best as best_target
from .target import target

HERE = Path(__file__).parents[1] / "prebuilt"
SWITCH = "GGMLQ_PREBUILT"


@cache
def level() -> Level | None:
    """The level of this process."""
    if sys.platform != "linux" or settled() or os.environ.get(SWITCH, "") == "off":
        return None
    if sys.maxsize < 1 << 32:  # a program of 32 bits, whatever the machine
        return None
    found = best(platform.machine(), compiled_for())
    return found if found and best_target(found.features) == target() else None


def content(origin: Origin) -> bytes | None:
    """A kernel's code as packs hold it; None where there is none for this CPU, or it is of other sources."""
    here = level()
    if here is None or not here.of(origin.family).needed <= compiled_for():
        return None
    return code(HERE / here.folder, origin)


def loaded(origin: Origin) -> Loaded | None:
    """The same in memory; None also where it is damaged."""
    found = content(origin)
    if not found:
        return None
    try:
        return load(str(origin), found)
    except (RuntimeError, ValueError):  # no object that LLVM reads: it can be compiled
        return None
