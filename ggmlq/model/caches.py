"""``Cache``: keys and values of all layers, for one sequence.

Keys and values in blocks are turned before they are stored, as llama.cpp does it: a Hadamard transform of 64
columns, of more for keys, if heads have a multiple of 64. Outliers then cost less. Queries are turned alike,
and results are turned back.
"""

from __future__ import annotations

from typing import Any

from ..arrays.array import QuantArray
from ..base.devices import cuda_module, is_host, namespace
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
        self.replay: Any = None  # the recorded step of one token, False where there can be none
        self.reason = ""  # why there is none
        self.layers = [
            KVCache(
                heads, config.key_width, positions, k=k, v=v, width_v=config.value_width,
                shared=config.shared, device=device,
            )
            for heads in config.kv_heads
        ]  # fmt: skip
        self._rows = [(layer.k[0], layer.v[0]) for layer in self.layers]  # [HK, positions, D]
        first = self.layers[0]
        self._shared = config.shared
        self._turned = (_columns(first.k, True), _columns(first.v, False)) if not self._shared else (0, 0)

    def __len__(self) -> int:
        """The positions of the layer that has the fewest: within a step others are ahead."""
        return min(len(layer) for layer in self.layers)

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values of all layers."""
        return sum(layer.nbytes for layer in self.layers)

    def appended(self, layer: int, q: Array, k: Array, v: Array | None) -> tuple[Array, Keys]:
        """Queries [H, T, D] as they fit the cache, and all keys and values with the new ones [T, HK, D].

        Without values these are the first columns of the keys.
        """
        cache = self.layers[layer]
        if v is None:
            q, k = (namespace(x).ascontiguousarray(x.transpose(1, 0, 2)) for x in (q, k))
            cache.append(k[None])
        else:
            q, k, v = self.turned(q, k, v)
            cache.append(k[None], v[None])
        return q, self.rows(layer, len(cache))

    def rows(self, layer: int, count: int) -> Keys:
        """The first positions of a layer."""
        k, v = self._rows[layer]
        v = k[..., : v.shape[-1]] if self._shared else v  # on a GPU such columns are a copy of that moment
        return Keys(k[:, :count], v[:, :count], self.layers[layer])

    def turned(self, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
        """Queries [H, T, D], keys and values, turned as types in blocks want it."""
        xp, (keys, values) = namespace(q), self._turned
        q, k, v = (xp.ascontiguousarray(x.transpose(1, 0, 2)) for x in (q, k, v))
        return _turn(q, keys), _turn(k, keys), _turn(v, values)

    def advance(self, count: int) -> None:
        """Count positions whose rows are there already."""
        for layer in self.layers:
            layer.advance(count)

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
    if not columns:
        return x
    rows = x.reshape(-1, columns)
    if is_host(x):
        return hadamard(rows).reshape(x.shape)
    return cuda_module("activations.layers").spread(rows).reshape(x.shape)
