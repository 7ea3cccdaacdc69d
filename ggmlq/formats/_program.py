"""The language of encoders that treat many blocks side by side, one block a lane.

A *vector* holds one number of every block; a *tile* holds the vectors of all places in a block:
``tile[i]`` is element i of every block. An encoder written with these words does for each lane what
ggml does for one block, in ggml's order: sums have the same rounding, and an ``if`` becomes a
``where``. Here a vector is a NumPy array of any length. ``ggmlq/cpu/encode/program.py`` gives the same
words the meaning of a machine register, and the same text compiles to that.

Vectors are float32, int32 or bool; a plain number beside a vector takes its type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .format import Blocks, Floats

Vector = Any  # an array here, a register when compiled
Tile = Any  # [places, lanes]


def floats(like: Tile, places: int) -> Tile:
    """An unset tile of float32 with the lanes of another."""
    return np.empty((places, *like.shape[1:]), np.float32)


def small(like: Tile, places: int) -> Tile:
    """An unset tile of bytes with the lanes of another."""
    return np.empty((places, *like.shape[1:]), np.uint8)


def at_once(count: int) -> Any:
    """A loop over runs or places that do not depend on each other. Here one step takes all of them."""
    return (slice(None),)


def part(tile: Tile, run: Any, size: int) -> Tile:
    """The places of a run; here [size, runs, lanes]."""
    return tile.reshape(-1, size, *tile.shape[1:]).swapaxes(0, 1)


def get(tile: Tile, i: int) -> Vector:
    """The vector of a place; bytes come as int32."""
    return tile[i] if tile.dtype == np.float32 else tile[i].astype(np.int32)


def put(tile: Tile, i: int, vector: Vector) -> None:
    """Set the vector of a place; a tile of bytes keeps the low eight bits."""
    tile[i] = vector


def zeros(like: Tile) -> Vector:
    """A vector of float zeros with the lanes of a tile."""
    return np.zeros(like.shape[1:], np.float32)


def where(mask: Vector, yes: Vector, no: Vector) -> Vector:
    """Lane by lane one or the other; of two plain integers as int32."""
    if type(yes) is int and type(no) is int:
        yes, no = np.int32(yes), np.int32(no)
    if np.asarray(no).dtype == np.int32:
        return no + mask * (yes - no)  # np.where takes long where a mask has no pattern
    return np.where(mask, yes, no)


def some(mask: Vector) -> bool:
    """True where a mask holds in any lane."""
    return bool(mask.any())


def absolute(v: Vector) -> Vector:
    return np.abs(v)


def with_sign(size: np.float32, v: Vector) -> Vector:
    """A magnitude with the sign of each lane."""
    return np.copysign(size, v)


def smaller(a: Vector, b: Vector) -> Vector:
    """Lane by lane the smaller one; none is NaN."""
    return np.minimum(a, b)


def larger(a: Vector, b: Vector) -> Vector:
    """Lane by lane the larger one; none is NaN."""
    return np.maximum(a, b)


def root(v: Vector) -> Vector:
    return np.sqrt(v)


def real(codes: Vector) -> Vector:
    """Integers converted to float32."""
    return codes.astype(np.float32)


def whole(v: Vector) -> Vector:
    """Floats within the range of int32 as that, towards zero."""
    return v.astype(np.int32)


def bits(v: Vector) -> Vector:
    """The 32 bits of floats."""
    return v.view(np.int32)


def log2(v: Vector) -> Vector:
    """The logarithm, computed in double precision and rounded: C's ``log2f``."""
    return np.log2(v.astype(np.float64)).astype(np.float32)


def entry(table: Floats, at: Vector) -> Vector:
    """Entries of a table of floats at places that are not negative."""
    return table[at]


def clamp(codes: Vector, low: int, high: int) -> Vector:
    """Integers limited to a range."""
    return np.minimum(np.maximum(codes, low), high)


def nearest(v: Vector) -> Vector:
    """Ggml's ``nearest_int``: ties to even, and beyond 2**22, infinity and NaN its wrapped bits."""
    return ((v + np.float32(12582912)).view(np.int32) & 0x7FFFFF) - 0x400000


def rank(v: Vector, edges: Floats) -> Vector:
    """The number of rising edges that are not above a value; NaN is above all."""
    return np.searchsorted(edges, v, side="right").astype(np.int32)


def pick(v: Vector, edges: Floats, values: Floats) -> Vector:
    """The value of a rank, for values that are small integers."""
    return values[np.searchsorted(edges, v, side="right")]


def to_half(v: Vector) -> Vector:
    """The 16 bits of the nearest half."""
    return v.astype(np.float16).view(np.uint16).astype(np.int32)


def from_half(bits: Vector) -> Vector:
    """The value of a half's 16 bits."""
    return bits.astype(np.uint16).view(np.float16).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Packer:
    """A format's ``pack``: an encoder in lanes, run with every block as a lane.

    Whoever compiles encoders takes ``encode`` from here, and needs no other file for the format.
    """

    encode: Callable[[Tile, Tile | None, Tile | None, Tile], None]
    # encode(x, importance, mean_square, out): values, the importance matrix, the bytes to fill
    dtype: np.dtype[Any]
    needs_mean_square: bool = False  # beside importance, the mean square of the row: mean_square[0]

    def __call__(self, x: Floats, imatrix: Floats | None) -> Blocks:
        rows, n, size = x.shape
        lanes = np.ascontiguousarray(x.reshape(rows * n, size).T)
        importance = None if imatrix is None else np.tile(imatrix.reshape(n, size).T, (1, rows))
        mean_square = None
        if self.needs_mean_square and imatrix is not None:
            mean_square = mean_squares(x.reshape(rows, -1)).repeat(n)[None]
        out = np.empty((self.dtype.itemsize, rows * n), np.uint8)
        self.encode(lanes, importance, mean_square, out)
        return np.ascontiguousarray(out.T).view(self.dtype).reshape(rows, n)


def mean_squares(rows: Floats) -> Floats:
    """The mean of the squares of each row, summed in order."""
    with np.errstate(over="ignore"):
        total: Floats = np.cumsum(rows * rows, axis=1, dtype=np.float32)[:, -1]
    return total / np.float32(rows.shape[1])
