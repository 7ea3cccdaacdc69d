"""``Fixed``: the arithmetic of a step on a GPU whose tokens and positions are numbers on the device.

The same launches serve all tokens and positions: rows of the cache, angles and lengths follow from the
inputs. Attention is launched for all sequences of the memory and its first positions, ``span`` of them.
The last query of a sequence is at its end, so queries that fill it up come first: they see nothing.

    one sequence         rows are its queries, [filling, tokens]
    a token of each      rows are the sequences, of which those that have no token see nothing
    any tokens of some   rows are packed, [tokens, tokens, …, filling], and are brought into the order of
                         queries for attention alone

What fills up a step has no row in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..base.devices import cuda_device, cuda_module, is_host
from ..errors import UnsupportedError
from .alike import Alike
from .arithmetic.cuda import Cuda
from .arithmetic.kernels import Angles, Array, Keys, Seen
from .caches import Heads, Memory, Part
from .config import Rope

NOWHERE = -1  # in place of a row of the cache

Pieces = Sequence[tuple[Part, Any]]  # sequences of one memory, and their tokens


class Size(NamedTuple):
    """The size of a recorded step."""

    first: int  # sequence of the memory
    batch: int  # sequences from that one on, over which attention goes
    rows: int  # tokens, with those that fill it up
    each: int  # queries of a sequence
    span: int  # positions that attention goes over
    whole: bool  # logits behind all tokens, and not behind the last ones alone


class Fixed(Cuda):
    """The arithmetic of a step of some size over a memory."""

    def __init__(self, a: Cuda, memory: Memory, size: Size) -> None:
        super().__init__(a.device, a.invariant)
        self.size, self._tables, self._refused, self._memory = size, a._tables, a._refused, memory
        self.packed, kinds = size.batch > 1 < size.each, sorted({layer.k.shape[1] for layer in memory.layers})
        shapes: dict[Any, tuple[int, ...]] = {
            "tokens": (size.rows,), "positions": (size.rows,), "lengths": (size.batch,),
            **{heads: (size.rows, heads) for heads in kinds},
        }  # fmt: skip
        if self.packed:  # the last row of each sequence; the row of each query; the query of each row
            shapes |= {"ends": (size.batch,), "queries": (size.batch, size.each), "back": (size.rows,)}
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()]).tolist()
        self._slots = {
            name: (slice(end - int(np.prod(shape)), end), shape)
            for (name, shape), end in zip(shapes.items(), ends, strict=True)
        }
        self._whole = cuda_device().cupy().zeros(ends[-1], np.int64)
        self.inputs = self._views(self._whole)
        self.alike: Alike | None = None  # while the step is recorded
        self._angles: dict[Rope, tuple[Array, Array]] = {}  # tables that graphs read

    def _views(self, numbers: Any) -> dict[Any, Any]:
        return {name: numbers[place].reshape(shape) for name, (place, shape) in self._slots.items()}

    def set(self, pieces: Pieces) -> None:
        """Write the inputs: tokens behind sequences, and where these are."""
        numbers, row, late = np.zeros(len(self._whole), np.int64), 0, []
        first, batch, rows, each, *_ = self.size
        inputs = self._views(numbers)
        places = {name: rows for name, rows in inputs.items() if type(name) is int}
        for filled in places.values():
            filled[...] = NOWHERE
        for part, tokens in pieces:
            count, start, number = len(tokens), len(part), part.number - first
            if not self.packed:
                row = number if batch > 1 else rows - count
            here = slice(row, row + count)
            if is_host(tokens):
                inputs["tokens"][here] = tokens
            else:
                late.append((here, tokens))
            inputs["positions"][here] = at = np.arange(start, start + count)
            inputs["lengths"][number] = start + count
            for heads, filled in places.items():
                filled[here] = self._memory.starts(heads, part.number) + at[:, None]
            if self.packed:
                inputs["ends"][number] = row + count - 1
                inputs["queries"][number, each - count :] = np.arange(row, row + count)
                inputs["back"][here] = np.arange(count) + ((number + 1) * each - count)
                row += count
        # By way of CuPy's pinned memory: the host does not wait.
        self._whole[...] = self._xp.asarray(numbers)
        tokens = self.inputs["tokens"]
        if len(late) == rows:  # of each sequence its only token
            late.sort(key=lambda one: one[0].start)
            tokens[...] = self._xp.concatenate([some for _, some in late])
        else:
            for here, some in late:
                tokens[here] = some

    @property
    def known(self) -> list[Array]:
        """Arrays of the step that all layers may read."""
        return [self._whole, *(part for table in self._angles.values() for part in table)]

    def layer(self, walk: Callable[[Any, int], Any], step: Any, x: Any, number: int) -> Any:
        """The rows behind a layer; of layers that are alike one is walked."""
        return walk(x, number) if self.alike is None else self.alike(walk, step, x, number)

    def angles(self, how: Rope, positions: Any, factors: Array | None) -> tuple[Array, Array]:
        """Cosine and sine of the positions: rows of the table."""
        cos, sin = self._angles[how] = super().angles(how, np.arange(self.size.span), factors)
        return cos[positions], sin[positions]

    def attend(self, q: Array, cache: Keys, seen: Seen) -> Array:
        """Attention of queries [B, H, T, D] over the positions up to each one's own."""
        y = self.attended(q, cache, seen, self.inputs["lengths"])
        if y is None:  # products of cuBLAS, of which it is composed, are not recorded
            raise UnsupportedError("a step is recorded where gq.attention has a kernel")
        return y


class FixedRows:
    """The rows of a recorded step on their way into memory."""

    def __init__(self, memory: Memory, a: Fixed) -> None:
        self._memory, self._a = memory, a

    @property
    def repeats(self) -> bool:
        """False: no kernels of the host write keys and values."""
        return False

    def following(self, count: int) -> Array:
        """The positions of the tokens, on the device."""
        return self._a.inputs["positions"]

    def last(self, count: int) -> Any:
        """The last row of each sequence; None where they have no others, or where all rows count."""
        if self._a.size.whole or self._a.size.each == 1:
            return None
        return self._a.inputs["ends"] if self._a.packed else slice(count - 1, count)

    def appended(self, layer: int, q: Array, k: Array | None, v: Array | None) -> tuple[Array, Keys]:
        """Queries [B, H, T, D] as they fit the cache, and the first positions of the sequences."""
        q, k, v = self._memory.spread(layer, q, k, v)
        if k is not None:
            self._memory.layers[layer].put(self._a.inputs[k.shape[1]], k, v)
        return self._queries(q), self._keys(layer)

    def rope_append(self, layer: int, heads: Heads, angles: Angles) -> tuple[Array, Keys] | None:
        """Queries and keys as :meth:`appended` gives them, with RoPE; None: it takes several launches."""
        if heads[1] is None:
            return None
        a, (rows, kv_heads, _) = self._a, heads[1].shape
        batch = rows if a.packed else a.size.batch
        q = self._memory.rope_append(layer, heads, angles, a.inputs[kv_heads], batch)
        if q is None:
            return None
        return self._queries(q[:, :, 0]) if a.packed else q, self._keys(layer)

    def _queries(self, q: Array) -> Array:
        """Queries [B, H, T, D] of rows [T, H, D]."""
        a, (_, batch, _, each, *_) = self._a, self._a.size
        if each == 1 and q.flags.c_contiguous:  # rows are the sequences
            return q[:, :, None]
        return cuda_module("kernels.layers").by_queries(q, a.inputs.get("queries"), batch, each)

    def _keys(self, layer: int) -> Keys:
        size = self._a.size
        return self._memory.rows(layer, size.first, size.batch, size.span)

    def back(self, layer: int, y: Array) -> Array:
        """Results of attention [H, T, DV] as they were before values were spread."""
        y = self._memory.back(layer, y)
        if self._a.size.each == 1:
            y = y[:, :, 0]
        else:
            y = cuda_module("kernels.layers").by_rows(y, self._a.inputs.get("back"))
        return y.transpose(1, 0, 2)

    def advance(self, count: int) -> None:
        """Positions are counted by who replays the step."""
