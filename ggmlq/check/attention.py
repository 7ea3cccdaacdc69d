"""The arithmetics in which a library may have computed an attention, the likely ones first."""

from __future__ import annotations

import math
from typing import Any

from ..arrays.array import QuantArray

Way = dict[str, Any]  # parameters of the oracle: the arithmetic's name, and parts of the positions
ON_CPU = ("ggml-cpu-attention", "f32")
ON_CUDA = ("ggml-cuda-vec", "ggml-cuda-mma")
TILED = 64  # rows from which llama.cpp's code for CPUs computes in tiles, in float32
SPLIT = 512  # positions from which its threads share those of one row
TELLING = 48  # positions that tell arithmetics from each other
COSTLY = 1 << 24  # elements of a result times positions, beyond which sums of halves are not followed
USUAL = (2, 4, 8, 16)  # numbers of threads
FEW = 2  # rows up to which CUDA takes the vec kernel, for keys in blocks
Kinds = tuple[str, str]


class Habits:
    """Kinds of keys and values whose attention a library has computed in a known arithmetic.

    It is held to that: another result is wrong, even within the bound of kernels that are not known.
    """

    def __init__(self) -> None:
        self._names: dict[Kinds, set[str]] = {}
        self._parts = 1

    def names(self, kinds: Kinds) -> set[str]:
        """The arithmetics in which such kinds were computed before."""
        return self._names.get(kinds, set())

    def learn(self, kinds: Kinds, way: Way, positions: int, on_cpu: bool) -> None:
        """Note an attention that fits a known arithmetic; on a GPU kernels differ by shape too much."""
        if on_cpu and positions >= TELLING:
            self._names.setdefault(kinds, set()).add(way["arithmetic"])
        if way["parts"] > 1:
            self._parts = way["parts"]

    def parts(self, threads: int | None) -> list[int]:
        """Numbers of parts to try, into which threads may have divided positions; None: it is not known."""
        every = {1, self._parts, threads} if threads else {1, self._parts, *USUAL}
        return sorted(every, key=lambda n: (n != self._parts, -n))


def ways(
    inputs: list[Any], kinds: Kinds, on_cpu: bool, habits: Habits, threads: int | None, named: str = ""
) -> tuple[list[Way], bool]:
    """Parameters of the oracle for each arithmetic to try, and True where these are all that are known.

    They are not where one would cost too much, or depends on a number of threads that is not known.
    ``named``: of this arithmetic alone.
    """
    rows, positions = inputs[0].shape[-2], inputs[1].shape[-2]
    order = ON_CPU if on_cpu else ON_CUDA if rows <= FEW else ON_CUDA[::-1]
    if on_cpu and rows >= TILED and kinds[0] == kinds[1] and not isinstance(inputs[1], QuantArray):
        order = ON_CPU[::-1]
    halves = kinds[1] == "f16"
    size = math.prod(inputs[0].shape[:-1]) * inputs[2].shape[-1]
    costly = not named and halves and size * positions > COSTLY
    shared = halves and rows == 1 and positions >= SPLIT
    every: list[Way] = []
    for name in (named,) if named else order:
        if name == "ggml-cpu-attention" and halves:
            parts = habits.parts(threads) if shared else [1]
            every += [] if costly else [_way(name, kinds, n) for n in parts]
        else:
            every.append(_way(name, kinds))
    return every, not costly and not (shared and threads is None)


def _way(name: str, kinds: Kinds, parts: int = 1) -> Way:
    return {"arithmetic": name, "kinds": kinds, "parts": parts}
