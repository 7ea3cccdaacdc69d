"""``Cache``: keys and values of all layers, for one sequence or for several that grow together.

    Memory   the arrays of all layers, and on a GPU the steps that were recorded over them
    Part     a sequence of it, with the number of its positions
    Cache    the parts that one call has
    Home     the memory on a GPU in which a model's caches live, one after the other

Keys and values in blocks are spread before they are stored, as llama.cpp does it: a Hadamard transform of 64
columns, of more for keys, if heads have a multiple of 64. Outliers then cost less. Queries are spread alike,
and results are spread back.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.buffers import address_of
from ..base.devices import cuda_device, cuda_driver, cuda_module, is_host, namespace
from ..base.slots import Rows, Slot, labelled, slot_of
from ..base.text import short
from ..dispatch.checks import is_whole
from ..errors import BlockIndexError, UnsupportedError
from ..ops.cache import KVCache, hadamard
from .arithmetic.kernels import Angles, Keys
from .config import Config
from .state import State, floats_of

Array = Any  # an array of the arithmetic's type
Heads = tuple[Array, Array, Array]  # queries [T, H, D], keys [T, HK, D] and values, or None of these
FLOATS, SPREAD = {"f16", "bf16", "f32"}, (64, 128, 256)  # types, and columns that one launch spreads
LEAST = 64  # columns that are spread together
ANGLES, END, CACHE = 0, 16, 17  # slots of a sequence in a program: two of each angle, the end, each layer's
WIDE = 1024  # positions by which memory of programs grows at first
LEAST_ROOM, STEP = 2048, 256  # positions of memory on a GPU, of all its sequences; by which it grows
PARTS = 8  # of their length by which long ones grow
SHARE = 8  # memory that nobody lives in is such a part of the card's at most, or of one cache


class Memory:
    """Keys and values of all layers, for ``batch`` sequences of at most ``room`` positions."""

    def __init__(self, config: Config, room: int, types: tuple[str, str], device: str, batch: int) -> None:
        k, v = types
        self.room, self.batch, self.shared, self.depth = room, batch, config.shared, config.layers
        self.config, self.device = config, device
        # What programs have in common: strides and decoders of rows are theirs for good.
        sizes = _sizes(config)
        self.kind = types, sizes, config.shared
        self.layers = [
            KVCache(
                heads, width, room, k=k, v=v, batch=batch, width_v=width_v, shared=config.shared,
                device=device,
            )
            for heads, width, width_v in sizes
        ]  # fmt: skip
        self.state, self.unkeyed = config.state, config.unkeyed(config.layers)
        self.steps: dict[Any, Any] = {}  # recorded ones, by their sizes; False where there can be none
        self.reason = "its layers have a state" * bool(config.state)  # why there is none
        self.stream, self.arenas = 0, dict[int, Any]()  # on which steps run, and memory that they work in
        self._value_width = config.value_width
        first = self.layers[0]
        # By layers: columns of keys and of values that are spread together, 0 for none.
        self.spread_columns = [
            (0, 0) if self.shared else (_columns(one.k, True), _columns(one.v, False)) for one in self.layers
        ]
        names = {first.k.format.name, first.v.format.name}
        self._joins = device != "cpu" and not self.shared and len(names) == 1 and names <= FLOATS
        formats = first.k.format, first.v.format
        self._repeats = device == "cpu" and all(map(host_layers().stores, formats))
        self._repeats &= not self.shared or first.k.format.name in FLOATS
        self._words: dict[int, NDArray[np.int64]] = {}
        self._spreads = [
            device != "cpu" and width == width_v and width in SPREAD and columns == (width, LEAST)
            for (_, width, width_v), columns in zip(sizes, self.spread_columns, strict=True)
        ]

    def spread(
        self, layer: int, q: Array, k: Array | None, v: Array | None
    ) -> tuple[Array, Array | None, Array | None]:
        """Queries, keys and values of a layer, spread as types in blocks want it."""
        keys, values = self.spread_columns[layer]
        return _spread(q, keys), k if k is None else _spread(k, keys), v if v is None else _spread(v, values)

    def back(self, layer: int, y: Array) -> Array:
        """Results of attention [H, T, DV] as they were before values were spread."""
        columns = self.spread_columns[layer][1]
        if self._repeats and columns and y.dtype == np.float32:
            rows = y.transpose(1, 0, 2)
            if rows.flags.c_contiguous:
                return host_layers().spread(rows, columns).transpose(1, 0, 2)
        return _spread(y, columns)

    def rope_append(
        self, layer: int, heads: Heads, angles: Angles, places: Array, batch: int
    ) -> Array | None:
        """Queries [B, H, T / B, D] with RoPE; keys with RoPE, and values, are appended; None on the host.

        It is one launch for floats, and three for types in blocks; None also for other widths, and without
        keys.
        """
        cache = self.layers[layer]
        if heads[1] is None:
            q = None
        elif self._joins:
            rows = cache.k, cache.v
            q = cuda_module("kernels.quantize.rope_append").append(
                heads, angles.neox, angles[1:], places, rows, batch
            )
            for one in rows:
                one.written()
        elif self._spreads[layer]:
            kernels = cuda_module("kernels.quantize.rope_append")
            q, k, v = kernels.spread(heads, angles.neox, angles[1:], batch)
            cache.put(places, k, v)
        else:
            q = None
        return q

    def rows(self, layer: int, first: int, batch: int, count: int) -> Keys:
        """The first positions of some sequences, without a copy; values may be columns of the keys."""
        cache = self.layers[layer]
        k = _first_of(cache.k, first, batch, count)
        if not self.shared:
            return Keys(k, _first_of(cache.v, first, batch, count))
        return Keys(k, k[..., : self._value_width])

    def starts(self, heads: int, number: int) -> NDArray[np.int64]:
        """The rows [HK] at which a sequence's heads begin, in a layer that has so many."""
        return (number * heads + np.arange(heads)) * self.room

    # --- on the host: steps that are programs (programs.py) ---------------------------------

    @property
    def repeats(self) -> bool:
        """True where RoPE writes keys and values straight into memory of the host."""
        return self._repeats

    def words(self, number: int) -> NDArray[np.int64]:
        """What a program fills in for a sequence: of each layer where keys begin, and the stride of heads;
        likewise of values.
        """
        if number not in self._words:
            rows = [q.raw for layer in self.layers for q in (layer.k, layer.v)]
            words = [(address_of(raw) + number * raw.strides[0], raw.strides[1]) for raw in rows]
            self._words[number] = np.array(words, np.int64).reshape(-1)
        return self._words[number]

    @property
    def slots(self) -> int:
        """Slots that a sequence has in a program."""
        return CACHE + 4 * len(self.layers) + 2 * len(self.state) * self.unkeyed

    def sequence(self, layer: int, number: int, end: NDArray[np.int64], first: int) -> Any:
        """The keys and values of a sequence in a layer, with their slots from ``first`` on, for the host.

        Its positions are those of a step, which fills them in.
        """
        words, cache = self.words(number)[4 * layer :], self.layers[layer]
        slots = [Slot(first + CACHE + 4 * layer + i) for i in range(4)]
        k_at, k_head, v_at, v_head = map(tables().SlotAddress, words[:4].tolist(), slots)
        return drive().Sequence(
            drive().CacheRows(cache.k.format, k_at, k_head, cache.k.raw.strides[2]),
            drive().CacheRows(cache.v.format, v_at, v_head, cache.v.raw.strides[2]),
            self.shared, cache.k.shape[1], cache.v.shape[3], labelled(end, Slot(first + END)), 0,
            wide(self.room),
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values of all layers, and of state in float32."""
        state = 4 * self.batch * self.unkeyed * floats_of(self.state)
        return sum(layer.nbytes for layer in self.layers) + state


class Part:
    """A sequence of a cache: the number of its positions, and the way of new ones into memory."""

    def __init__(self, memory: Memory, number: int, positions: int) -> None:
        self.memory, self.number, self.positions = memory, number, positions
        self.state = State(memory.state, memory.unkeyed)
        self._length = 0
        self.end = np.zeros(1, np.int64)  # the positions behind a step, for kernels of the host
        self.place = 0  # among the sequences of a step that is recorded
        self.lease: Any = None  # of memory that outlives the sequence
        self._sequences = dict[tuple[int, int], Any]()  # by layer and place
        self._places: dict[tuple[int, int], Array] = {}  # of the step, by heads and tokens

    def __len__(self) -> int:
        return self._length

    def reserve(self, count: int) -> None:
        """Refuse more positions than there are."""
        if self._length + count > self.positions:
            raise BlockIndexError(
                f"model: {count} tokens behind {len(self)} need more than the {self.positions} positions of "
                "the context; it is full; begin anew with fewer tokens, or load with a larger context="
            )

    def following(self, count: int) -> NDArray[np.int64]:
        """The next positions, in which a step's tokens are."""
        return np.arange(self._length, self._length + count)

    def last(self, count: int) -> slice | None:
        """The last one of a step's rows; None where there is no other."""
        return slice(count - 1, count) if count > 1 else None

    def appended(self, layer: int, q: Array, k: Array | None, v: Array | None) -> tuple[Array, Keys]:
        """Queries [H, T, D] as they fit the cache, and all keys and values with the new ones [T, HK, D].

        Without values these are the first columns of the keys; without keys the layer before has put them.
        The positions count once all layers have them.
        """
        memory = self.memory
        q, k, v = memory.spread(layer, q, k, v)
        if k is not None:
            memory.layers[layer].put(self._rows(k), k, v)
        keys = memory.rows(layer, self.number, 1, self._length + len(q))
        return namespace(q).ascontiguousarray(q.transpose(1, 0, 2)), keys

    def rope_append(self, layer: int, heads: Heads, angles: Angles) -> tuple[Array, Keys] | None:
        """Queries and keys as :meth:`appended` gives them, with RoPE; None: it takes several launches."""
        if self.memory.repeats:
            self.end[0] = end = self._length + len(heads[0])
            sequence, columns = self._sequence(layer, end), self.memory.spread_columns[layer]
            return host_layers().rope_append(heads, *self._turns(angles), sequence, columns), sequence
        places = None if heads[1] is None else self._rows(heads[1])
        q = self.memory.rope_append(layer, heads, angles, places, 1)
        if q is None:
            return None
        return q[0], self.memory.rows(layer, self.number, 1, self._length + len(heads[0]))

    @property
    def repeats(self) -> bool:
        """True where kernels of the host write keys and values."""
        return self.memory.repeats

    def latent_append(self, layer: int, parts: Sequence[Array], angles: Angles) -> tuple[Array, Any]:
        """Queries [H, T, D] and all keys, where these are short vectors; on the host."""
        self.end[0] = end = self._length + len(parts[0])
        sequence = self._sequence(layer, end)
        return host_layers().latent_append(parts, *self._turns(angles), sequence), sequence

    def states(self, number: int, like: Array) -> tuple[list[Array], list[Array]]:
        """The arrays of a layer without keys before a step and behind it; with their slots for the host."""
        halves = self.state.arrays(number, like)
        if not self.memory.repeats:
            return halves
        count, memory = len(self.memory.state), self.memory
        first = (self.place + 1) * memory.slots - 2 * count * (memory.unkeyed - number)
        before, behind = (
            [labelled(array, Slot(first + 2 * i + half)) for i, array in enumerate(arrays)]
            for half, arrays in enumerate(halves)
        )
        return before, behind

    def _sequence(self, layer: int, end: int) -> Any:
        """The keys and values up to the end of a step, for kernels of the host."""
        key = layer, self.place
        if key not in self._sequences:
            first = self.place * self.memory.slots
            self._sequences[key] = self.memory.sequence(layer, self.number, self.end, first)
        return self._sequences[key]._replace(positions=Rows(end, _at(self.place)))

    def _turns(self, angles: Angles) -> tuple[bool, Array, Array]:
        """Angles with the slots of this sequence."""
        first = self.place * self.memory.slots
        return angles.neox, _moved(angles.cos, first), _moved(angles.sin, first)

    def _rows(self, k: Array) -> Array:
        """The rows of the cache for new keys [T, HK, D], [T, HK]."""
        count, heads, _ = k.shape
        if (heads, count) not in self._places:
            places = self.following(count)[:, None] + self.memory.starts(heads, self.number)
            self._places[heads, count] = namespace(k).asarray(places)
        return self._places[heads, count]

    def back(self, layer: int, y: Array) -> Array:
        """Results of attention [H, T, DV] as they were before values were spread."""
        return self.memory.back(layer, y)

    def advance(self, count: int) -> None:
        """Count positions whose rows are there."""
        self.state.advance(self._length)
        self._length += count
        self._places.clear()

    def reachable(self, n: int) -> int:
        """The most positions up to ``n`` that :meth:`truncate` can leave."""
        if not self.memory.state or n >= len(self):
            return min(n, len(self))
        return self.state.begun if self.state.begun <= n else 0

    def check_reach(self, n: int) -> None:
        """Refuse a length that a state has no way back to."""
        if self.reachable(n) < min(n, len(self)):
            raise UnsupportedError(
                f"truncate({n}) of a sequence of {len(self)} positions: some layers of the model remember by "
                f"a state, which has no way back but to {self.state.begun}, where the last step began; "
                "truncate(0) begins anew, and a cache for each continuation takes the beginning again"
            )

    def truncate(self, n: int) -> None:
        """Forget all but the first ``n`` positions."""
        self.check_reach(n)
        if n <= 0:
            self.state.clear()
        elif n < len(self):
            self.state.back()
        self._length = min(self._length, n)
        self._places.clear()


class Cache:
    """Caches of a model's layers for ``positions`` positions of ``batch`` sequences; on a GPU in ``home``."""

    def __init__(
        self, config: Config, positions: int, types: tuple[str, str], device: str = "cpu", batch: int = 1,
        home: Home | None = None,
    ) -> None:  # fmt: skip
        self.positions = positions
        lease = None
        if home is None:
            self.memory = Memory(config, positions, types, device, batch)
        else:
            self.memory = home.move_in(
                positions, batch, lambda room: Memory(config, room, types, device, batch)
            )
            lease = Lease()
            weakref.finalize(lease, home.move_out, self.memory).atexit = False
        self.parts = [Part(self.memory, number, positions) for number in range(batch)]
        for part in self.parts:  # which may be kept without the cache
            part.lease = lease

    def __len__(self) -> int:
        """The positions of the longest sequence."""
        return max(map(len, self.parts))

    @property
    def layers(self) -> list[KVCache]:
        """The keys and values of each layer."""
        return self.memory.layers

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values of all layers."""
        return self.memory.nbytes

    @property
    def reason(self) -> str:
        """Why a step on a GPU was not recorded; empty if all were."""
        return self.memory.reason

    def fits(self, config: Config, device: str) -> bool:
        """True where models of this configuration, on this device, may write to its memory."""
        mine = self.memory.config
        alike = mine is config or _layout(mine) == _layout(config)
        return alike and self.memory.device == device

    def reachable(self, n: int) -> int:
        """The most positions up to ``n`` that :meth:`truncate` can leave each sequence.

        It is ``n`` where all layers have keys. A state leads back to where the last step began, or to 0.
        """
        return min(part.reachable(n) for part in self.parts)

    def truncate(self, n: int) -> None:
        """Forget all but the first ``n`` positions of each sequence: of all of them, or of none."""
        if not is_whole(n, 0):
            raise BlockIndexError(
                f"truncate({short(n)}): it takes the number of positions to keep; a number is whole and not "
                "negative; pass an integer from 0 on"
            )
        for part in self.parts:
            part.check_reach(n)
        for part in self.parts:
            part.truncate(n)


def _sizes(config: Config) -> tuple[tuple[int, ...], ...]:
    """Heads and widths of the layers with keys."""
    return tuple((config.kv_heads[layer], *config.widths(layer)) for layer in config.keys)


def _layout(config: Config) -> tuple[Any, ...]:
    """All that decides which rows of memory a step writes."""
    return _sizes(config), tuple(config.keys), config.layers, config.shared, config.state


class Lease:
    """The right to live in memory: who holds it keeps others out."""


class Home:
    """The memory on a GPU in which a model's caches live: it outlives them, with its recorded steps.

    ``arenas``: memory in which the steps of all caches work, by streams.
    """

    def __init__(self) -> None:
        self.arenas: dict[int, Any] = {}
        self._most = cuda_device().memory_bytes() // SHARE
        self._free: list[Memory] = []  # nobody lives in it; the last one was left last

    def move_in(self, positions: int, batch: int, make: Callable[[int], Memory]) -> Memory:
        """Memory for a cache: the last one that was left and fits; else ``make(room)``, a new one.

        It goes from a cache to the next one in the order of a stream.
        """
        gpu, room = cuda_driver(), roomy(positions, batch)
        stream, most = gpu.stream(gpu.device()).ptr, max(2 * room, LEAST_ROOM // batch)
        for memory in self._free[::-1]:
            fits = memory.batch == batch and room <= memory.room <= most
            if fits and memory.stream == stream and self._taken(memory):
                return memory
        while True:
            try:
                memory = make(room)
                break
            except MemoryError:
                if not self._free:
                    raise
                self._taken(self._free[0])
        memory.stream, memory.arenas = stream, self.arenas
        return memory

    def _taken(self, memory: Memory) -> bool:
        """Take memory off the list; False where another thread was faster."""
        try:
            self._free.remove(memory)
        except ValueError:
            return False
        return True

    def move_out(self, memory: Memory) -> None:
        """Keep memory that was left, and free others, left before, if there is too much of it."""
        self._free.append(memory)
        while len(self._free) > 1 and sum(one.nbytes for one in self._free) > self._most:
            self._taken(self._free[0])


def roomy(positions: int, batch: int = 1) -> int:
    """Positions of memory for a cache, so that caches of nearly equal size have as many."""
    least = max(positions, LEAST_ROOM // batch)
    step = max(STEP, (1 << (least - 1).bit_length()) // PARTS)
    return -(-least // step) * step


def wide(room: int) -> int:
    """Positions for which the programs of caches of so much room have memory."""
    return max(WIDE, 1 << (room - 1).bit_length())


@cache
def drive() -> Any:
    """The driver of attention on the host, loaded when a model there first runs."""
    return import_module("ggmlq.cpu.attention.drive")


@cache
def tables() -> Any:
    """The tables of the host's kernels."""
    return import_module("ggmlq.cpu.machine.tables")


@cache
def host_layers() -> Any:
    """The driver of what is between products on the host."""
    return import_module("ggmlq.cpu.layers.call")


@cache
def _at(place: int) -> Any:
    """The function that takes the positions of one sequence from those of all; the same object each time."""
    return itemgetter(place)


def _moved(array: Array, slots: int) -> Array:
    """A view of an array whose slot comes so many later, if it has one."""
    slot = slot_of(array)
    return array if slot is None or not slots else labelled(array, Slot(slot.number + slots, slot.offset))


def _first_of(q: QuantArray, first: int, batch: int, count: int) -> QuantArray:
    """The first positions of some sequences, a view; kernels of attention read rows that lie apart."""
    return q[first : first + batch, :, :count]


def _columns(rows: QuantArray, most: bool) -> int:
    """Columns that are spread together; 0 for none."""
    width = rows.shape[-1]
    if rows.format.block_size == 1 or width % LEAST:
        return 0
    columns = LEAST
    while most and width % (2 * columns) == 0:
        columns *= 2
    return columns


def _spread(x: Array, columns: int) -> Array:
    if not columns:
        return x
    rows = x.reshape(-1, columns)
    if is_host(x):
        return hadamard(rows).reshape(x.shape)
    return cuda_module("kernels.layers").hadamard(rows).reshape(x.shape)
