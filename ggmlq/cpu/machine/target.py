"""The facts about the CPU that vector kernels are written for, from the features that Numba compiles for.

``NUMBA_CPU_NAME`` and ``NUMBA_CPU_FEATURES`` choose another CPU. Code is chosen by the features that are
left: a feature that Numba's own list does not name counts as absent, which is slower but never wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .features import compiled_for


@dataclass(frozen=True)
class Target:
    """The facts about a CPU that vector kernels are written for."""

    dot: str  # the integer dot product, by its name in simd.DOTS
    shuffles: bool  # looks up 64 bytes in a table of 16
    halves: bool  # converts 16-bit floats
    fma: bool
    registers: int  # of 64 bytes
    unsigned: bool  # the dot product takes any unsigned byte of a weight


AVX512 = Target("vnni512", shuffles=True, halves=True, fma=True, registers=32, unsigned=True)
VNNI = Target("vnni256", shuffles=True, halves=True, fma=True, registers=8, unsigned=True)
AVX2 = Target("avx2", shuffles=True, halves=True, fma=True, registers=8, unsigned=False)
DOTPROD = Target("sdot", shuffles=True, halves=True, fma=True, registers=8, unsigned=False)
PLAIN = Target("plain", shuffles=False, halves=False, fma=False, registers=4, unsigned=False)

# From the best: the features each needs.
NEEDS = {
    AVX512: {"avx512f", "avx512bw", "avx512vl", "avx512vnni", "f16c", "fma"},
    VNNI: {"avxvnni", "avx2", "f16c", "fma"},
    AVX2: {"avx2", "f16c", "fma"},
    DOTPROD: {"neon", "dotprod"},
    PLAIN: set(),
}


@cache
def target() -> Target:
    """The best target for the features that this process compiles for."""
    return best(compiled_for())


def best(has: frozenset[str]) -> Target:
    """The best target that a set of features allows."""
    return next(kind for kind, needs in NEEDS.items() if needs <= has)
