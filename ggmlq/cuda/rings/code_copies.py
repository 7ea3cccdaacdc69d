"""Copies of code tiles into a ring's stages, for ``mma`` of bytes, and the tiles of products on them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from ..activations.code_tiles import EIGHT, eight_bytes
from ..intrinsics import ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, uint32, uint64
from ..packed.layout import FRAGMENT_ROWS, PackedLayout
from .mma_tile import MmaTile

CHUNK = 16  # bytes of a copy


@dataclass(frozen=True)
class CodeTile(MmaTile):
    """128 rows of weights times some rows of activations as bytes."""

    def stage(self, layout: PackedLayout) -> int:
        """Bytes of a stage: weights, then activations with their scales and sums."""
        return FRAGMENT_ROWS * layout.fragment_bytes + self.eights * eight_bytes(sum_run(layout))

    def sums_bytes(self, layout: PackedLayout) -> int:
        """Nothing: sums come with the activations."""
        return 0

    @property
    def eights(self) -> int:
        """Rows of activations, counted in eights."""
        return self.columns // EIGHT


def sum_run(layout: PackedLayout) -> int:
    """The columns whose activations are summed; 0 where weights have no offsets."""
    return layout.run if layout.has_offset else 0


@cache
def code_fetcher(layout: PackedLayout, tile: CodeTile) -> Any:
    """The device function that starts the copies of a stage's activations: one piece of memory."""
    length, weights_at, threads = eight_bytes(sum_run(layout)), FRAGMENT_ROWS * layout.fragment_bytes, tile.threads
    chunks, copy16 = tile.eights * length // CHUNK, ptx.copy16

    @inlined
    def fetch(at: Any, x: Any, m0: Any, step: Any, m: Any, k: Any) -> None:
        """``m``: rows of the code tiles, filled up."""
        thread = uint32(cuda.threadIdx.x)
        first_eight = uint32(uint32(step * uint32(m // uint32(EIGHT))) + uint32(m0 // uint32(EIGHT)))
        source = x + uint64(first_eight) * uint64(length)
        for first in range(0, chunks, threads):
            chunk = uint32(thread + uint32(first))
            if chunk < uint32(chunks):
                copy16(uint32(at + uint32(weights_at) + chunk * uint32(CHUNK)), source + uint64(chunk * uint32(CHUNK)))

    return fetch


CODE_TILES = CodeTile(16, 4), CodeTile(32, 4), CodeTile(64, 3)
