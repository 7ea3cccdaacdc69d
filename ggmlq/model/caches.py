"""``Cache``: keys and values of all layers, for one sequence.

Keys and values in blocks are turned before they are stored, as llama.cpp does it: a Hadamard transform of 64
columns, of more for keys, if heads have a multiple of 64. Outliers then cost less. Queries are turned alike,
and results are turned back.
"""

from __future__ import annotations

from typing import Any

from ..arrays.array import QuantArray
from ..base.devices import namespace
from ..errors import BlockIndexError
from ..ops.cache import KVCache
from ..ops.rotation import hadamard
from .arithmetic.kernels import Keys
from .config import Config

Array = Any  # an array of the arithmetic's type
LEAST = 64  # columns that are turned together


class Cache:
    """Caches of a model's layers for ``positions`` positions."""

    def __init__(self, config: Config, positions: int, types: tuple[str, str], device: str = "cpu") -> None:
        k, v = types
        self.positions = positions
        self.layers = [
            KVCache(heads, config.key_width, positions, k=k, v=v, width_v=config.value_width, device=device)
            for heads in config.kv_heads
        ]
        first = self.layers[0]
        self._turned = (_columns(first.k, True), _columns(first.v, False))

    def __len__(self) -> int:
        """The positions of the layer that has the fewest: within a step others are ahead."""
        return min(len(layer) for layer in self.layers)

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values of all layers."""
        return sum(layer.nbytes for layer in self.layers)

    def appended(self, layer: int, q: Array, k: Array, v: Array) -> tuple[Array, Keys]:
        """Queries [H, T, D] as they fit the cache, and all keys and values with the new ones [T, HK, D]."""
        cache = self.layers[layer]
        xp = namespace(q)
        q, k, v = (xp.ascontiguousarray(x.transpose(1, 0, 2)) for x in (q, k, v))
        keys, values = self._turned
        cache.append(_turn(k, keys)[None], _turn(v, values)[None])
        n = len(cache)
        return _turn(q, keys), Keys(cache.k[0][:, :n], cache.v[0][:, :n], cache)

    def back(self, layer: int, y: Array) -> Array:
        """Results of attention [H, T, DV] as they were before values were turned."""
        return _turn(y, self._turned[1])

    def truncate(self, n: int) -> None:
        """Forget all but the first ``n`` positions."""
        for layer in self.layers:
            layer.truncate(n)

    def reserve(self, count: int) -> None:
        """Refuse more positions than there are."""
        if len(self) + count > self.positions:
            raise BlockIndexError(
                f"model: {count} tokens behind {len(self)} need more than the {self.positions} positions of "
                "the context; it is full; begin anew with fewer tokens, or load with a larger context="
            )


def _columns(rows: QuantArray, most: bool) -> int:
    """Columns that are turned together; 0 for none."""
    width = rows.shape[-1]
    if rows.format.block_size == 1 or width % LEAST:
        return 0
    columns = LEAST
    while most and width % (2 * columns) == 0:
        columns *= 2
    return columns


def _turn(x: Array, columns: int) -> Array:
    return hadamard(x.reshape(-1, columns)).reshape(x.shape) if columns else x
