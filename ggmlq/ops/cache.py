"""``gq.KVCache``: keys and values of some sequences, in blocks, with what was appended to each."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.protocols import Listed, inner
from ..base import text
from ..base.devices import cuda_device, cuda_module, device_of, is_host, namespace, on_device_of
from ..base.text import Request
from ..dispatch.checks import check_flag, is_whole
from ..errors import BlockIndexError, DeviceError, DTypeError, ShapeError
from ..formats import Format
from .attention import attention
from .door import integers, operand
from .epilogue import Wishes, ended, result_of
from .rows import empty, put_rows, row_operands

# --- the rotation of keys and values ------------------------------------------------------------
# A column that is much larger than the others costs all values of its blocks their precision. A rotation
# spreads it over all columns, and scores stay what they were: (R q)·(R k) = q·k. Values are rotated too,
# and the result, a sum of values, is rotated back.

MOST = 512  # columns that are rotated together: beyond it nothing is gained


class Rotation:
    """An orthogonal matrix of ``width`` columns: blocks of Hadamard matrices, each column with a sign.

    ``part``: columns that a rotation of the first of them must not leave, as those of values that are the
    first columns of the keys. Rows lie on the host or on a GPU; results are float32, the same on both.
    """

    def __init__(self, width: int, seed: int, part: int = 0) -> None:
        common = math.gcd(width, part or width)
        self.block = min(MOST, common & -common)  # its largest power of two
        self._signs = np.random.default_rng(seed).choice(np.array([-1, 1], np.float32), width)
        self._there: dict[str, Any] = {}  # signs on GPUs

    def forward(self, x: Any) -> Any:
        """Rows [..., width], or the first columns of such, rotated."""
        if not is_host(x):
            return self._spread(x, False)
        columns = np.asarray(x, np.float32)
        columns = columns * self._signs[: columns.shape[-1]]
        return self._transformed(columns)

    def back(self, y: Any) -> Any:
        """Rows [..., width], or the first columns, rotated back."""
        if not is_host(y):
            return self._spread(y, True)
        return self._transformed(y) * self._signs[: y.shape[-1]]

    def signs_on(self, device: str) -> Any:
        """The signs on a GPU, copied there once."""
        if device not in self._there:
            self._there[device] = cuda_device().upload(self._signs, device)
        return self._there[device]

    def _spread(self, x: Any, back: bool) -> Any:
        signs = self.signs_on(device_of(x))
        return cuda_module("kernels.layers").hadamard(x, self.block, signs, back) if x.size else x

    def _transformed(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        return hadamard(x.reshape(-1, self.block)).reshape(x.shape)


def hadamard(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of a power of two times the orthogonal Hadamard matrix, which is its own inverse.

    Sums and differences of halves, step by step: a row's bits do not depend on the rows beside it, as those
    of a product by a BLAS may.
    """
    n, half = x.shape[-1], 1
    while half < n:
        pairs = x.reshape(*x.shape[:-1], n // (2 * half), 2, half)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        with np.errstate(invalid="ignore", over="ignore"):  # encoders refuse what is not finite
            x = np.stack((a + b, a - b), axis=-2).reshape(x.shape)
        half *= 2
    return x * np.float32(1 / math.sqrt(n))


# --- lengths of sequences, on the host and on a GPU ---------------------------------------------
# On a GPU the numbers are an array that stays where it is, so kernels of a recorded graph read and write
# it. The host knows them too, and refuses what has no room, until something changes them that it does not
# see: new positions whose number is on the GPU, or a graph that is replayed.

Numbers = NDArray[np.int64]


class Lengths:
    """The lengths of sequences on the host."""

    known: Numbers | None  # what the host knows

    def __init__(self, batch: int) -> None:
        self.known = np.zeros(batch, np.int64)
        self.batch = batch

    @property
    def shown(self) -> Any:
        """The lengths as users see them; here a copy."""
        return self.read().copy()

    @property
    def attended(self) -> Any:
        """The lengths as attention reads them."""
        return self.read()

    def read(self) -> Numbers:
        """The lengths, on the host."""
        assert self.known is not None
        return self.known

    def placed(self, more: Any, heads: int, queries: int, positions: int) -> Any:
        """Ids [B, HK, T] of rows [B · HK · positions] for new positions; -1 for those that there are not."""
        steps, starts = np.arange(queries), np.arange(self.batch * heads).reshape(-1, heads) * positions
        rows = (self.read()[:, None] + steps)[:, None] + starts[:, :, None]
        return np.where((steps < more[:, None])[:, None], rows, -1)

    def grow(self, more: Any) -> None:
        """Count new positions, whose rows are there."""
        self.known = self.read() + more

    def skip(self, count: int) -> None:
        """Count positions of every sequence whose rows were put without :meth:`placed`."""
        self.grow(count)

    def cut(self, most: Any) -> None:
        """Keep ``most`` positions, of all or of each its number."""
        self.known = np.minimum(self.read(), most)


class DeviceLengths(Lengths):
    """The lengths of sequences on a GPU."""

    def __init__(self, batch: int, xp: Any) -> None:
        super().__init__(batch)
        # Complete, as are keys and values, before another stream sees it.
        self._there = cuda_device().once("a KVCache is new", lambda: xp.zeros(batch, np.int64))
        self._number = self._there.device.id
        self._late = False  # the array is not what the host knows
        self._seen = False  # others read the array: users and graphs
        self._recorded = False  # graphs change it

    @property
    def shown(self) -> Any:
        self._seen = True
        return self._array()

    @property
    def attended(self) -> Any:
        """The host's where it knows them and all are equal: then no other positions are looked at."""
        known = self.known
        if known is not None and (known == known[0]).all() and not self._capturing:
            return known
        self._seen |= self._capturing
        return self._array()

    @property
    def _capturing(self) -> bool:
        return bool(cuda_device().capturing(self._number))

    def read(self) -> Numbers:
        """The lengths; if the host does not know them it waits for the GPU."""
        if self.known is not None:
            return self.known
        cuda_device().refuse_capture("lengths of a KVCache are read on the host")
        numbers: Numbers = self._there.get()
        if not self._recorded:
            self.known = numbers
        return numbers

    def placed(self, more: Any, heads: int, queries: int, positions: int) -> Any:
        lengths, numbers, same = self._array(), more, -1
        if is_host(more):
            same, numbers = (int(more[0]), lengths) if (more == more[0]).all() else (-1, self._copied(more))
        self._changes()
        self._late = self.known is not None
        module = cuda_module("kernels.attention.operands")
        return module.cache_rows(lengths, numbers, same, heads, queries, positions)

    def grow(self, more: Any) -> None:
        self._late = False
        if self.known is not None:
            self.known = self.known + more if is_host(more) else None

    def skip(self, count: int) -> None:
        """Count positions; the array follows later where nobody else reads it."""
        if self._seen or self.known is None or self._capturing:
            with on_device_of("advance of a KVCache", self._there):
                lengths = self._array()
                lengths += count
            self._changes()
        else:
            self._late = True
        if self.known is not None:
            self.known = self.known + count

    def cut(self, most: Any) -> None:
        lengths = self._array()
        there = self._copied(most) if is_host(most) and np.ndim(most) else most
        self._changes()
        cuda_device().cupy().minimum(lengths, there, out=lengths)
        if self.known is not None:
            self.known = np.minimum(self.known, most) if is_host(most) else None

    def _changes(self) -> None:
        """Give up what the host knows where a graph records the change."""
        if self._capturing:
            self.known, self._seen, self._recorded = None, True, True

    def _array(self) -> Any:
        """The array, with what the host knows."""
        if self._late and self.known is not None:
            cuda_device().refuse_capture("the GPU does not have the lengths of this KVCache yet")
            self._there[...] = self._copied(self.known)
            self._late = False
        return self._there

    def _copied(self, numbers: Any) -> Any:
        """Numbers of the host on the GPU."""
        if self._capturing:
            raise DeviceError(
                "a KVCache while a CUDA graph is recorded: numbers of positions that differ are on the host; "
                "the graph could not see others; pass them in an array on the device"
            )
        return cuda_device().cupy().asarray(numbers, np.int64)


# --- the cache ----------------------------------------------------------------------------------


class KVCache(Listed):
    """Keys and values of a batch of sequences, each of its own length, in blocks.

    Parameters
    ----------
    heads : int
        Heads of keys and values, HK.
    width : int
        Columns of a key, D; with blocks a multiple of 32.
    positions : int
        The most positions of a sequence. A full cache is an error, it never wraps around.
    k, v : str, int or Format
        Types of keys and values.
    batch : int
        The number of sequences, B.
    width_v : int, optional
        Columns of a value, DV; those of a key by default.
    shared : bool
        Values are the first ``width_v`` columns of the keys, as in MLA; they are stored once.
    rotate : bool or int
        Keys and values are rotated before they are stored, queries and results accordingly: outliers of some
        columns then cost less. A number is the seed of the signs; True is 1.
    device : str
        ``"cpu"``, ``"cuda"`` or ``"cuda:1"``. Keys, values and queries lie there.

    >>> import numpy as np, ggmlq as gq
    >>> rng = np.random.default_rng(0)
    >>> c = gq.KVCache(2, 64, 1000, k="q8_0", v="q4_0")
    >>> c.append(rng.standard_normal((1, 2, 10, 64)), rng.standard_normal((1, 2, 10, 64)))
    >>> c, len(c)
    (<KVCache k q8_0, v q4_0, 10 of 1000 positions, 2 heads of 64, batch 1, 203.1 KiB, cpu>, 10)
    >>> c.attend(rng.standard_normal((1, 8, 3, 64)), causal=True).shape
    (1, 8, 3, 64)
    >>> c.truncate(7)
    >>> c.lengths
    array([7])
    """

    def __init__(
        self, heads: int, width: int, positions: int, k: str | int | Format = "q8_0",
        v: str | int | Format = "q8_0", batch: int = 1, width_v: int | None = None, shared: bool = False,
        rotate: bool | int = False, device: str = "cpu",
    ) -> None:  # fmt: skip
        request = f"KVCache({', '.join(map(text.short, (heads, width, positions)))})"
        width_v = width if width_v is None else width_v
        for name, number in {
            "heads": heads, "width": width, "positions": positions, "batch": batch, "width_v": width_v,
        }.items():  # fmt: skip
            if not is_whole(number, 1):
                raise ShapeError(
                    f"{request}: {name} is {text.short(number)}; it is a number from 1 on; pass an integer"
                )
        check_flag(request, "shared", shared)
        if not isinstance(rotate, bool) and not is_whole(rotate, 0):
            raise DTypeError(
                f"{request}: rotate is {text.short(rotate)}; it is True, False or a seed from 0 on; pass True"
            )
        if shared and width_v > width:
            raise ShapeError(
                f"{request}: width_v is {width_v} with shared=True; values are the first columns of keys, "
                f"of which there are {width}; pass width_v up to that"
            )
        self._k = empty((batch, heads, positions, width), k, device)
        self._v = self._k[..., :width_v] if shared else empty((batch, heads, positions, width_v), v, device)
        self._shared = shared
        stored = [self._k] if shared else [self._k, self._v]
        self._flat = [rows.reshape(-1, rows.shape[3]) for rows in stored]  # [B · HK · positions, columns]
        with on_device_of(request, self._k.memory):
            on_host = is_host(self._k.memory)
            self._lengths = Lengths(batch) if on_host else DeviceLengths(batch, namespace(self._k.memory))
        self._rotations: tuple[Rotation, Rotation] | None = None
        if rotate is not False:
            keys = Rotation(width, int(rotate), width_v if shared else 0)
            self._rotations = keys, keys if shared else Rotation(width_v, int(rotate))
            if not on_host:
                for rotation in self._rotations:
                    rotation.signs_on(self.device)

    @property
    def k(self) -> QuantArray:
        """The keys [B, HK, positions, D], rotated if the cache rotates; a view of the memory itself."""
        return self._k

    @property
    def v(self) -> QuantArray:
        """The values [B, HK, positions, DV]; with ``shared=True`` a view of the keys."""
        return self._v

    @property
    def lengths(self) -> Any:
        """The number of positions of each sequence, int64 [B].

        On the host a copy. On a GPU the array there that ``append``, ``truncate`` and attention read and
        write, without waiting and in recorded graphs; it is not to be written to.
        """
        return self._lengths.shown

    @property
    def device(self) -> str:
        """The place of its memory, ``"cpu"`` or ``"cuda:0"``."""
        return self._k.device

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return self._k.nbytes + (0 if self._shared else self._v.nbytes)

    def __len__(self) -> int:
        """The positions of the longest sequence; it waits for the GPU where the host does not know them."""
        return int(self._lengths.read().max())

    def __repr__(self) -> str:
        batch, heads, _, width = self._k.shape
        return (
            f"<KVCache {self.summary}, {heads} heads of {width}, batch {batch}, {text.size(self.nbytes)}, "
            f"{self.device}>"
        )

    @property
    @inner
    def summary(self) -> str:
        """The types, and how full it is, in words."""
        v = f"v the first {self._v.shape[3]} columns" if self._shared else f"v {self._v.format.name}"
        count = "?" if self._lengths.known is None else len(self)
        return f"k {self._k.format.name}, {v}, {count} of {self._k.shape[2]} positions"

    def append(self, k: Any, v: Any = None, lengths: Any = None) -> None:
        """Encode keys [B, HK, T, D] and values [B, HK, T, DV] behind the last positions of the sequences.

        ``lengths`` [B]: how many of the T positions each sequence gets, the first ones; all by default.
        An error leaves the cache as it was; no room is one. With ``shared=True`` there is no v.

        On a GPU ``lengths`` may lie there. Nothing waits for them, numbers below 0 count as 0, larger ones as
        T, and the host does not know any more how many positions there are. Then, and when the call was
        recorded in a CUDA graph, rows for which there is no room are left out, and sequences stay full.
        """
        request = Request("append to", self)
        k = self._rows(request, "k", k, self._k)
        self._check_pair(request, v)
        if v is not None:
            v = self._rows(request, "v", v, self._v)
            if v.shape[2] != k.shape[2]:
                raise ShapeError(
                    f"{request}: k has {k.shape[2]} positions, v {v.shape[2]}; pass as many of both"
                )
        more = self._numbers(request, lengths, k.shape[2])
        known = self._lengths.known
        if known is not None and is_host(more) and (known + more).max() > self._k.shape[2]:
            b = int((known + more).argmax())
            raise BlockIndexError(
                f"{request}: sequence {b} has {known[b]} positions and would get {more[b]}; the "
                f"cache holds {self._k.shape[2]}; truncate it, or make one of more positions"
            )
        with on_device_of(request, self._k.memory, self._k):
            if self._rotations is not None:
                keys, values = self._rotations
                k, v = keys.forward(k), None if v is None else values.forward(v)
            ids = self._lengths.placed(more, self._k.shape[1], k.shape[2], self._k.shape[2])
            for to, x in zip(self._flat, (k, v), strict=False):
                put_rows(_into(to), to, ids, x)
            self._lengths.grow(more)

    def put(self, ids: Any, k: Any, v: Any = None) -> None:
        """Encode keys and values [B, HK, T, columns] into rows ``ids`` [B, HK, T] of [B · HK · positions].

        No two ids are equal. One that no row has, such as -1, stands for a row that is left out. Lengths
        stay: :meth:`advance` counts. With ``shared=True`` there is no v.
        """
        self._check_pair(Request("put into", self), v)
        pairs = list(zip(self._flat, (k, v), "kv", strict=False))
        checked = [row_operands(_into(to), to, ids, x, name) for to, x, name in pairs]
        for (to, _, _), (rows, x) in zip(pairs, checked, strict=True):
            put_rows(_into(to), to, rows, x)

    def _check_pair(self, request: Any, v: Any) -> None:
        if self._shared != (v is None):
            raise DTypeError(
                f"{request}: v is {'missing' if v is None else 'there'}; a cache with shared=True takes keys "
                f"alone, any other takes both; {'leave v out' if self._shared else 'pass k and v'}"
            )

    def _rows(self, request: Any, name: str, x: Any, stored: QuantArray) -> Any:
        """New keys or values, checked: rows as those that are stored."""
        floats = operand(request, x, name, bfloat16=True)
        if floats.device != self.device:
            raise DeviceError(
                f"{request}: {name} is on {floats.device}, the cache on {self.device}; pass {name}.get()"
            )
        batch, heads, _, width = stored.shape
        if len(floats.shape) != 4 or (*floats.shape[:2], floats.shape[3]) != (batch, heads, width):
            raise ShapeError(
                f"{request}: {name} has shape {floats.shape}; it is [B, HK, T, columns], here ({batch}, "
                f"{heads}, T, {width}); reshape it"
            )
        return floats.array

    def _numbers(self, request: Any, lengths: Any, queries: int) -> Any:
        """The numbers of new positions of each sequence, on the host or, unseen, on the GPU of the cache."""
        batch = self._lengths.batch
        if lengths is None:
            return np.full(batch, queries, np.int64)
        entries = integers(request, lengths, "lengths")
        inside = entries.shape == (batch,) and entries.dtype.kind in "iu"
        if inside and not entries.on_host and entries.device == self.device:
            return namespace(entries.array).ascontiguousarray(entries.array, np.int64)
        numbers = entries.array if entries.on_host else entries.array.get()
        if not inside or not ((numbers >= 0) & (numbers <= queries)).all():
            raise ShapeError(
                f"{request}: lengths are {text.short(numbers.tolist())}; there is one for each of {batch} "
                f"sequences, from 0 to {queries}; correct them"
            )
        return numbers.astype(np.int64)

    def attend(self, q: Any, **options: Any) -> Any:
        """Attention of queries [B, H, T, D] over the cache; ``options`` are those of :func:`ggmlq.attention`.

        ``causal=True``: the last query is at the last position of its sequence.
        """
        if "lengths" in options:
            raise DTypeError(f"attend of {self!r}: it knows the lengths of its sequences; leave lengths out")
        if self._rotations is None:
            return self._attended(q, options)
        request: Any = Request("attend of", self)
        keys, values = self._rotations
        floats = operand(request, q, "q", bfloat16=True)
        if len(floats.shape) != 4 or floats.shape[3] != self._k.shape[3]:
            raise ShapeError(f"{request}: q has shape {floats.shape}; it is [B, H, T, D]; reshape it")
        wishes = Wishes(options.pop("out", None), dtype=options.pop("dtype", None))
        result = result_of(request, wishes, (*floats.shape[:3], self._v.shape[3]), self.device)
        with on_device_of(request, floats.array, self._k):
            y = values.back(self._attended(keys.forward(floats.array), options))
            return ended(y if result.out is not None else y.astype(result.dtype, copy=False), result)

    def _attended(self, q: Any, options: dict[str, Any]) -> Any:
        """Attention of queries, rotated if need be; of a GPU's positions those that there may be."""
        k, v = self._k, self._v
        if is_host(k.memory):
            return attention(q, k, v, lengths=self._lengths.attended, **options)
        with on_device_of(Request("attend of", self), k.memory, k):
            lengths, known = self._lengths.attended, self._lengths.known
            recording = cuda_device().capturing(k.memory.device.id)
            if not is_host(lengths) and known is not None and not recording:
                k, v = (rows[:, :, : int(known.max())] for rows in (k, v))
        return attention(q, k, v, lengths=lengths, **options)

    def advance(self, count: int) -> None:
        """Count so many positions more of each sequence, whose rows were put into :attr:`k` and :attr:`v`."""
        known, most = self._lengths.known, self._k.shape[2]
        left = most if known is None else most - int(known.max())
        if not is_whole(count, 0, left):
            raise BlockIndexError(
                f"advance({text.short(count)}) of {self!r}: there are no such positions; the cache has "
                f"{most}; pass an integer from 0 to {left}"
            )
        self._lengths.skip(count)

    def truncate(self, n: Any) -> None:
        """Keep the first ``n`` positions of each sequence, or of each its number [B]; shorter ones stay.

        On a GPU numbers may lie there: nothing waits for them, and those below 0 count as 0.
        """
        request: Any = Request("truncate of", self)
        entries = integers(request, n, "n")
        most = entries.array if entries.device in ("cpu", self.device) else entries.array.get()
        shapes = (), (self._lengths.batch,)
        if most.shape not in shapes or most.dtype.kind not in "iu" or (is_host(most) and (most < 0).any()):
            raise ShapeError(
                f"truncate({text.short(n)}) of {self!r}: it takes the number of positions to keep, or one "
                f"for each of {self._lengths.batch} sequences, from 0 on; correct them"
            )
        with on_device_of(request, self._k.memory, self._k):
            if is_host(most):
                most = np.minimum(most, self._k.shape[2])  # a number beyond int64 stays one
                self._lengths.cut(most.astype(np.int64) if most.ndim else int(most))
            else:
                self._lengths.cut(namespace(most).maximum(most.astype(np.int64, copy=False), 0))


def _into(rows: QuantArray) -> str:
    return f"put into a cache of {rows.format.name}"
