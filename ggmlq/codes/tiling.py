"""Tiles of rows × columns that share a scale: the arithmetic that finds the scale of each element.

Element (i, j) of [rows, columns] has scale (i // r, j // c). None is a whole axis. The usual tiles are
(None, None) a tensor, (1, None) a token or a channel, (1, 128) a group, (128, 128) a block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..errors import ShapeError

Tile = tuple[int | None, int | None]


class Tiling(NamedTuple):
    """A tile laid over [rows, columns]."""

    rows: int
    columns: int
    r: int
    c: int

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the scales; an empty axis has none."""
        return -(-self.rows // self.r), -(-self.columns // self.c)


def checked_tile(call: str, tile: Any) -> Tile:
    """A tile as a pair of positive integers or None."""
    pair = tuple(tile) if isinstance(tile, tuple | list) else ()
    if len(pair) != 2 or not all(n is None or (_is_length(n) and n > 0) for n in pair):
        raise ShapeError(
            f"{call}: tile={tile!r}; a tile is (rows, columns) that share a scale, each a positive "
            "integer or None for the whole axis; pass (1, 128), (128, 128), (1, None) or (None, None)"
        )
    rows, columns = (n if n is None else int(n) for n in pair)
    return rows, columns


def _is_length(n: Any) -> bool:
    return isinstance(n, int | np.integer) and not isinstance(n, bool)


def tiling(tile: Tile, rows: int, columns: int) -> Tiling:
    """A tile over so many rows and columns; whole axes, and longer tiles, become their length."""
    (r, c), most_r, most_c = tile, rows or 1, columns or 1
    r = most_r if r is None or r > most_r else r
    c = most_c if c is None or c > most_c else c
    return Tiling(rows, columns, r, c)


def expanded(xp: Any, values: Any, over: Tiling) -> Any:
    """Scales of tiles as an array that broadcasts over [rows, columns]."""
    if values.shape[0] > 1 and over.r > 1:
        values = xp.repeat(values, over.r, axis=0)[: over.rows]
    if values.shape[1] > 1 and over.c > 1:
        values = xp.repeat(values, over.c, axis=1)[:, : over.columns]
    return values
