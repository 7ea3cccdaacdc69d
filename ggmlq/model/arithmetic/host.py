"""``Host``: a step on the CPU by compiled kernels, from the embedding to the logits.

Products and attention are the library's, the rest is ``ggmlq/cpu/layers``. All results are memory that a
recording notes (``cpu/machine/workers.py``), so a step of one size can be a program (``programs.py``). What
these kernels do not take is computed as :class:`Kernels` does it, and then the step is none.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...arrays.array import QuantArray
from ...arrays.buffers import address_of
from ...base.slots import Slot, labelled
from ...base.threads import num_threads
from ...dispatch import ladder
from ...dispatch.ladder import Rung
from ...dispatch.problems import Linear
from ...formats import BlockFormat
from ...gguf.source import release
from ...ops import tuning
from ..caches import ANGLES, END
from ..config import Rope
from .kernels import Array, Kernels, Seen, rope_angles

LEAST = 256  # positions of a table of RoPE's angles
MAX_RUNGS = 4096  # that are kept, one for a shape


class Host(Kernels):
    """The fastest arithmetic of the CPU."""

    joins = keeps = True
    stacked_bytes = 1 << 20  # a copy; of larger ones a product takes longer than waking threads for it

    def __init__(self) -> None:
        self._tables: dict[Rope, tuple[Array, Array]] = {}
        self._shorter: list[tuple[Array, Array]] = []  # programs that run may still read them
        self._factors: dict[Rope, Any] = {}
        self._rungs: dict[Any, Rung | None] = {}
        self._given_back: set[int] | None = None  # where keep_one_copy was asked for: matrices, by address

    def keep_one_copy(self) -> None:
        """From now on give the file's pages back once a kernel has a matrix in its own order."""
        self._given_back, self.stacked_bytes = set(), 0

    def stacked(self, parts: list[QuantArray]) -> QuantArray:
        """Matrices of one type over each other; their bytes are put together if something reads these."""
        rows = [part.raw for part in parts]
        shape = *parts[0].shape[:-2], sum(part.shape[-2] for part in parts), parts[0].shape[-1]
        return QuantArray(parts[0].format, shape, rows[0]).over(*rows)

    def rows(self, q: QuantArray, ids: NDArray[np.int64]) -> Array:
        """Rows of the embedding."""
        inside = ids.size and 0 <= ids.min() <= ids.max() < len(q)  # others are an error of the library
        if not (inside and _decodes(q.format)) or q.scale is not None:
            return super().rows(q, ids)
        raw = np.ascontiguousarray(q.raw)
        _workers().keep(raw)
        return _layers().embedded(q.format, raw, q.shape[-1], np.ascontiguousarray(ids, np.int64))

    def linear(self, x: Array, q: QuantArray, bias: Array | None = None) -> Array:
        """``x @ q.T + bias``."""
        if q.scale is not None or x.ndim != 2 or not len(x):
            return super().linear(x, q, bias)
        x, workers = np.ascontiguousarray(x), _workers()
        if (rung := self._rung(x, q)) is None:
            return super().linear(x, q, bias)
        if rung.repeats:
            y = workers.scratch((len(x), len(q)), np.float32)
            rung.launch(x, q, y)
        else:
            y = np.empty((len(x), len(q)), np.float32)
            with np.errstate(over="ignore", invalid="ignore"):
                rung.launch(x, q, y)
        workers.keep(q)
        if self._given_back is not None:
            self._give_back(q)
        return y if bias is None else self.sum(y, bias)

    def _rung(self, x: Array, q: QuantArray) -> Rung | None:
        """The rung of a product, chosen once for a shape and a number of threads; None: the library's way."""
        key = q.format.id, *x.shape, len(q), num_threads(), ladder.generation()
        if key not in self._rungs:
            if len(self._rungs) >= MAX_RUNGS:
                self._rungs.clear()
            problem = Linear(q.format, len(x), len(q), q.shape[-1], device="cpu")
            rung: Rung | None = _floats()
            if isinstance(q.format, BlockFormat):
                with np.errstate(over="ignore", invalid="ignore"), _workers().unrecorded():
                    rung = tuning.chosen(problem, (x, q), "auto", None)
            elif _floats().refuses(problem) is not None:
                rung = None
            self._rungs[(*key[:-1], ladder.generation())] = rung
            return rung
        return self._rungs[key]

    def _give_back(self, q: QuantArray) -> None:
        """The pages of a matrix to its file, once, if a kernel has it in its own order."""
        assert self._given_back is not None
        if address_of(q.raw) not in self._given_back and q.prepared_copies():
            self._given_back.add(address_of(q.raw))
            release(q.raw)

    def sum(self, x: Array, y: Array) -> Array:
        """The sum of rows, or of rows and a bias."""
        _workers().keep(y)
        return _layers().added(x, y)

    def times(self, x: Array, factor: float) -> Array:
        """Rows times a number."""
        return _layers().times(x, factor)

    def capped(self, x: Array, cap: float) -> Array:
        """Numbers bent below a cap by a hyperbolic tangent."""
        return _layers().capped(x, cap)

    def weighted_norm(self, x: Array, epsilon: float, weights: Array) -> Array:
        """The norm of rows times its weights."""
        _workers().keep(weights)
        return _layers().normed(x, weights, epsilon)[1]

    def normed_sum(self, y: Array, x: Array, epsilon: float, weights: Array) -> tuple[Array, Array]:
        """The sum of rows, and its norm times the weights."""
        _workers().keep(weights)
        total, y = _layers().normed(x, weights, epsilon, y)
        return total, y

    def gated(self, activation: str, gate: Array, up: Array) -> Array:
        """act(gate) · up."""
        if gate.ndim != 2:
            return super().gated(activation, gate, up)
        return _layers().gated(activation, gate, up)

    def angles(self, how: Rope, positions: NDArray[np.int64], factors: Array | None) -> tuple[Array, Array]:
        """Cosine and sine of positions in a row: rows of a table, which grows by itself."""
        start, end = int(positions[0]), int(positions[-1]) + 1
        self._factors[how] = factors
        table, slot = self._grown(how, end), ANGLES + 2 * list(self._tables).index(how)
        cos, sin = (part[start:end] for part in table)
        if slot + 1 >= END:
            return cos, sin
        return labelled(cos, Slot(slot)), labelled(sin, Slot(slot + 1))

    def _grown(self, how: Rope, end: int) -> tuple[Array, Array]:
        """The table of angles, for so many positions at least."""
        table = self._tables.get(how)
        if table is None or len(table[0]) < end:
            count, factors = max(LEAST, 1 << (end - 1).bit_length()), self._factors[how]
            cos, sin = rope_angles(how, np.arange(count), factors)
            if table is not None:
                self._shorter.append(table)
            table = self._tables[how] = cos.astype(np.float32), sin.astype(np.float32)
        return table

    def fill(self, starts: NDArray[np.int64], start: int, count: int) -> None:
        """The addresses of the angles of so many positions, for the slots of a program."""
        for i, how in enumerate(self._tables):
            for j, part in enumerate(self._grown(how, start + count)):
                starts[ANGLES + 2 * i + j] = part.ctypes.data + start * part.strides[0]

    def attend(self, q: Array, cache: Any, seen: Seen) -> Array:
        """Attention of queries [H, T, D] over a cache, [H, T, DV]."""
        drive = _drive()
        if not isinstance(cache, drive.Sequence):
            return super().attend(q, cache, seen)
        if seen.sinks is not None:
            _workers().keep(seen.sinks)
        how = drive.Options(seen.scale, seen.cap, True, seen.window)
        heads, tokens, width = q.shape
        unit = _attention().unit_for(heads // cache.kv_heads * tokens, width, cache.width_v)
        y: Array = drive.attend_last(q, cache, seen.sinks, how, unit).transpose(1, 0, 2)
        return y


@cache
def _floats() -> Any:
    """The rung of weights that are floats: a BLAS, which others take, is no kernel of a program."""
    return next(rung for rung in ladder.rungs("linear", "cpu") if rung.name == "cpu:floats")


@cache
def _decodes(fmt: Any) -> bool:
    return fmt.name == "f32" or bool(import_module("ggmlq.cpu.unpack").has_walk(fmt))


@cache
def _workers() -> Any:
    return import_module("ggmlq.cpu.machine.workers")


@cache
def _layers() -> Any:
    return import_module("ggmlq.cpu.layers.call")


@cache
def _drive() -> Any:
    return import_module("ggmlq.cpu.attention.drive")


@cache
def _attention() -> Any:
    return import_module("ggmlq.cpu.attention.call")
