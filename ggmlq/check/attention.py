"""The arithmetics in which a library may have computed an attention, the likely ones first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..base.indices import evenly_spaced

ON_CPU = ("ggml-cpu-attention", "f32")
IN_LANES = "ggml-cpu-attention-fp16"  # another one where rows fill the lanes of halves of AVX512-FP16
LANES = 128
ON_CUDA = ("ggml-cuda-vec", "ggml-cuda-mma")
TILED = 64  # rows from which llama.cpp's code for CPUs computes in tiles, in float32
SPLIT = 512  # positions from which its threads share those of one row
TELLING = 48  # positions that tell arithmetics from each other
LENGTHY = 1 << 21  # elements of a result times positions, for which sums of halves are followed in one node
MOST = 1 << 24  # the same of one row, beyond which none is
USUAL = (2, 4, 8, 16)  # numbers of threads
MANY = 8  # threads up to which fewer may have come than were wanted
FEW = 2  # rows up to which CUDA takes the vec kernel, for keys in blocks
Kinds = tuple[str, str]  # types of keys and values
Key = tuple[str, str, bool]  # these, and True where rows fill those lanes


@dataclass(frozen=True)
class Way:
    """One arithmetic to try on an attention."""

    name: str
    kinds: Kinds
    parts: int = 1  # of the positions, which a program added up apart
    rows: NDArray[np.intp] | None = None  # of the queries, that are judged; None: all

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the oracle."""
        return {"arithmetic": self.name, "kinds": self.kinds, "parts": self.parts}


class Habits:
    """Kinds of keys and values whose attention a library has computed in a known arithmetic.

    It is held to that: another result is wrong, even within the bound of kernels that are not known.
    """

    def __init__(self) -> None:
        self._names: dict[Key, set[str]] = {}
        self._parts = 1

    def names(self, inputs: list[Any], kinds: Kinds) -> set[str]:
        """The arithmetics in which such attention was computed before."""
        return self._names.get((*kinds, _is_wide(inputs)), set())

    def learn(self, inputs: list[Any], way: Way, on_cpu: bool) -> None:
        """Note an attention that fits a known arithmetic; on a GPU kernels differ by shape too much."""
        if on_cpu and inputs[1].shape[-2] >= TELLING:
            self._names.setdefault((*way.kinds, _is_wide(inputs)), set()).add(way.name)
        if way.parts > 1:
            self._parts = way.parts

    def parts(self, threads: int | None) -> list[int]:
        """Numbers of parts to try, into which threads may have divided positions; None: it is not known."""
        every = {1, self._parts, *(range(2, min(threads, MANY) + 1) if threads else USUAL), threads or 1}
        return sorted(every, key=lambda n: (n != self._parts, -n))


def _is_wide(inputs: list[Any]) -> bool:
    return bool(max(inputs[0].shape[-1], inputs[2].shape[-1]) >= LANES)


def followed(inputs: list[Any]) -> NDArray[np.intp] | None:
    """The rows of queries whose sums of halves are followed; None: all."""
    rows, work = inputs[0].shape[-2], max(_work(inputs), 1)
    return None if work * rows <= LENGTHY else evenly_spaced(rows, max(1, LENGTHY // work))


def _work(inputs: list[Any]) -> int:
    """Weighted values of one row."""
    return int(math.prod(inputs[0].shape[:-2]) * inputs[2].shape[-1] * inputs[1].shape[-2])


def ways(
    inputs: list[Any], kinds: Kinds, on_cpu: bool, habits: Habits, threads: int | None, named: str = ""
) -> tuple[list[Way], bool]:
    """Parameters of the oracle for each arithmetic to try, and True where these are all that are known.

    They are not where one would cost too much, or depends on a number of threads that is not known.
    ``named``: of this arithmetic alone.
    """
    rows, positions = inputs[0].shape[-2], inputs[1].shape[-2]
    order: tuple[str, ...] = ON_CPU if on_cpu else ON_CUDA if rows <= FEW else ON_CUDA[::-1]
    if on_cpu and rows >= TILED and kinds[0] == kinds[1] and not isinstance(inputs[1], QuantArray):
        order = ON_CPU[::-1]
    if on_cpu and "f16" in kinds and _is_wide(inputs):
        order = (*order, IN_LANES)
    halves = kinds[1] == "f16"
    costly = halves and not named and _work(inputs) > MOST
    some = None if named else followed(inputs)
    shared = halves and rows == 1 and positions >= SPLIT
    every: list[Way] = []
    for name in (named,) if named else order:
        if name.startswith("ggml-cpu") and halves:
            parts = habits.parts(threads) if shared else [1]
            every += [] if costly else [Way(name, kinds, n, some) for n in parts]
        else:
            every.append(Way(name, kinds))
    return every, not costly and not (shared and threads is None)
