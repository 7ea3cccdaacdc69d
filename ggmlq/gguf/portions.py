"""Division of tensors of all sizes into portions that each fill one buffer, for loading a model to a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from math import lcm
from typing import NamedTuple

from .header import aligned

ALIGN = 256  # bytes: a GPU's copy engine works in runs of that size


class Piece(NamedTuple):
    """A run of bytes of one tensor."""

    tensor: int  # which one, counted from 0
    start: int  # in the tensor
    nbytes: int
    at: int  # in the buffer


Portion = list[Piece]  # what goes through a buffer at a time


def portions(sizes: Iterable[tuple[int, int]], room: int) -> list[Portion]:
    """Portions of at most ``room`` bytes that hold all bytes of the tensors, in order.

    ``sizes`` are pairs of the bytes of a tensor and of its block. Small tensors share a buffer; a large
    one is cut between blocks, at multiples of ``ALIGN``.
    """
    portions: list[Portion] = [[]]
    at = 0
    for tensor, (nbytes, block) in enumerate(sizes):
        step = lcm(block, ALIGN)
        assert step <= room
        start = 0
        while start < nbytes:
            at = aligned(at, ALIGN)
            n = nbytes - start if nbytes - start <= room - at else (room - at) // step * step
            if n > 0:
                portions[-1].append(Piece(tensor, start, n, at))
                start, at = start + n, at + n
            else:
                portions.append([])
                at = 0
    return [portion for portion in portions if portion]
