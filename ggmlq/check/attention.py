"""The arithmetics in which a library may have computed an attention, the likely ones first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..arrays.array import QuantArray

Way = dict[str, Any]  # parameters of the oracle: the arithmetic's name, and parts of the positions
ON_CPU = ("ggml-cpu-attention", "f32")
ON_CUDA = ("ggml-cuda-vec", "ggml-cuda-mma")
TILED = 64  # rows from which llama.cpp's code for CPUs computes in tiles, in float32
SPLIT = 512  # positions from which its threads share those of one row
TELLING = 48  # positions that tell arithmetics from each other
FEW = 2  # rows up to which CUDA takes the vec kernel, for keys in blocks
Kinds = tuple[str, str]


class Habits:
    """Kinds of keys and values whose attention a library has computed in a known arithmetic.

    It is held to that: another result is wrong, even within the bound of kernels that are not known.
    """

    def __init__(self) -> None:
        self._names: dict[Kinds, set[str]] = {}

    def names(self, kinds: Kinds) -> set[str]:
        """The arithmetics in which such kinds were computed before."""
        return self._names.get(kinds, set())

    def learn(self, kinds: Kinds, name: str, positions: int, on_cpu: bool) -> None:
        """Note an attention that fits a known arithmetic; on a GPU kernels differ by shape too much."""
        if on_cpu and positions >= TELLING:
            self._names.setdefault(kinds, set()).add(name)


def ways(
    inputs: list[Any], kinds: Kinds, on_cpu: bool, threads: Iterable[int], named: str = ""
) -> Iterator[Way]:
    """Parameters of the oracle for each arithmetic to try; ``named``: of this one alone."""
    rows, positions = inputs[0].shape[-2], inputs[1].shape[-2]
    halves = kinds[1] == "f16"
    order = ON_CPU if on_cpu else ON_CUDA if rows <= FEW else ON_CUDA[::-1]
    if on_cpu and rows >= TILED and kinds[0] == kinds[1] and not isinstance(inputs[1], QuantArray):
        order = ON_CPU[::-1]
    for name in (named,) if named else order:
        if name == "ggml-cpu-attention" and halves and rows == 1 and positions >= SPLIT:
            yield from (_way(name, kinds, count) for count in sorted({1, *threads}, reverse=True))
        else:
            yield _way(name, kinds)


def _way(name: str, kinds: Kinds, parts: int = 1) -> Way:
    return {"arithmetic": name, "kinds": kinds, "parts": parts}
