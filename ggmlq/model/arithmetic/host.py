"""``Host``: a step on the CPU by compiled kernels, from the embedding to the logits.

Products and attention are the library's, the rest is ``ggmlq/cpu/layers``. All results are memory that a
recording notes (``cpu/machine/workers.py``), so a step of one size can be a program (``programs.py``). What
these kernels do not take is computed as :class:`Kernels` does it, and then the step is none.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from ...dispatch.problems import ExpertLinear, Linear
from ...formats import BlockFormat
from ...gguf.source import release
from ...ops import tuning
from ..caches import ANGLES, END
from ..config import Rope
from .kernels import Array, Kernels, Net, Past, Routing, Seen, rope_angles

LEAST = 256  # positions of a table of RoPE's angles
MAX_RUNGS = 4096  # that are kept, one for a shape


class Host(Kernels):
    """The fastest arithmetic of the CPU."""

    joins = latent = keeps = True
    stacked_bytes = 1 << 20  # a copy; of larger ones a product takes longer than waking threads for it

    def __init__(self, invariant: bool = False) -> None:
        self.invariant = invariant
        self._tables: dict[Rope, tuple[Array, Array]] = {}
        self._shorter: list[tuple[Array, Array]] = []  # programs that run may still read them
        self._factors: dict[Rope, Any] = {}
        self._heads: dict[tuple[int, ...], NDArray[np.int64]] = {}  # their numbers, for each token
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
        self._kept(q)
        return y if bias is None else self.sum(y, bias)

    def _rung(self, x: Array, q: QuantArray) -> Rung | None:
        """The rung of a product, chosen once for a shape and a number of threads; None: the library's way."""
        key = q.format.id, *x.shape, len(q), num_threads(), ladder.generation()
        if key not in self._rungs:
            if len(self._rungs) >= MAX_RUNGS:
                self._rungs.clear()
            problem = Linear(q.format, len(x), len(q), q.shape[-1], device="cpu")
            rung: Rung | None = _floats()
            if self.invariant:
                rung = ladder.choose(problem, invariant=True)
            elif isinstance(q.format, BlockFormat):
                with np.errstate(over="ignore", invalid="ignore"), _workers().unrecorded():
                    rung = tuning.chosen(problem, (x, q), "auto", None)
            elif _floats().refuses(problem) is not None:
                rung = None
            self._rungs[(*key[:-1], ladder.generation())] = rung
            return rung
        return self._rungs[key]

    def expert_linear(self, x: Array, q: QuantArray, ids: Array) -> Array:
        """Rows times the experts that their tokens use, [T, U, N]."""
        rows = x.reshape(-1, x.shape[-1])
        rung = ladder.choose(ExpertLinear.of(rows, q, ids), invariant=self.invariant)
        if q.scale is not None or not rung.repeats or not ids.size:
            return super().expert_linear(x, q, ids)
        y = _workers().scratch((*ids.shape, q.shape[1]), np.float32)
        rung.launch(rows, q, ids, y)
        self._kept(q)
        return y

    def by_head(self, x: Array, q: QuantArray) -> Array:
        """Heads [T, H, D] times a matrix of each head, [T, H, N]."""
        shape = x.shape[:2]
        if shape not in self._heads:
            self._heads[shape] = np.ascontiguousarray(np.broadcast_to(np.arange(shape[1]), shape))
        _workers().keep(self._heads[shape])
        return self.expert_linear(x, q, self._heads[shape])

    def some_columns(self, x: Array, first: int, count: int) -> Array:
        """So many columns of rows from one on, contiguous."""
        return _layers().some_columns(x, first, count)

    def convolved(self, x: Array, weights: Array, pasts: Sequence[Past], silu: bool = False) -> Array:
        """Columns of rows [T, C], each with those of the K - 1 rows before it."""
        return _states().convolved(x, weights, pasts, silu)

    def short_convolution(self, parts: Array, weights: Array, pasts: Sequence[Past]) -> Array:
        """The rows c ∘ convolution(b ∘ z) of rows [T, 3 C]."""
        return _states().short_convolution(parts, weights, pasts)

    def takes_net(self, state: tuple[int, ...]) -> bool:
        """True for heads of whole vectors."""
        return bool(state[-1] % _states().LANES == 0)

    def delta_net(
        self, mixed: Array, z: Array, gates: tuple[Array, Array], net: Net, pasts: Sequence[Past]
    ) -> Array:
        """All between the convolution and the last product of a layer with the delta rule, [T, H · D]."""
        return _states().delta_net(mixed, z, gates, net, pasts)

    def plus_share(self, x: Array, y: Array, gate: Array) -> Array:
        """Rows x and a share of rows y."""
        return _layers().plus_share(x, y, gate)

    def _kept(self, q: QuantArray) -> None:
        """Note weights, and give their pages back, once, if kernels have them in their own order."""
        _workers().keep(q)
        if self._given_back is None or address_of(q.raw) in self._given_back:
            return
        if all(one.prepared_copies() for one in (q.matrices() if q.ndim > 2 else (q,))):
            self._given_back.add(address_of(q.raw))
            release(q.raw)

    def sum(self, x: Array, y: Array) -> Array:
        """The sum of rows, or of rows and a bias."""
        if y.ndim == 1:
            _workers().keep(y)
        return _layers().added(x, y)

    def biased(self, y: Array, bias: Array, ids: Array) -> Array:
        """Results of experts [T, U, N] and the biases [E, N] of these."""
        _workers().keep(bias)
        return _layers().added(y, bias, ids)

    def routed(self, logits: Array, bias: Array | None, how: Routing) -> tuple[Array, Array] | None:
        """The experts [T, U] of the largest shares and their weights."""
        _workers().keep(bias)
        groups, shares = (how.groups, how.used_groups), (how.after, how.sigmoid, how.of_one)
        chosen: tuple[Array, Array] = _layers().routed(logits, bias, how.used, groups, shares, how.scale)
        return chosen

    def weighted_sum(self, y: Array, weights: Array) -> Array:
        """Results of experts [T, U, N] added up by weights [T, U], one after the other."""
        return _layers().mixed(y, weights)

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
        rows = (part.reshape(-1, part.shape[-1]) for part in (gate, up))
        return _layers().gated(activation, *rows).reshape(gate.shape)

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
        if not isinstance(cache, _drive().Sequence):
            return super().attend(q, cache, seen)
        return self.attend_all([(q, cache)], seen)

    def attend_all(self, sequences: Sequence[tuple[Array, Any]], seen: Seen) -> Array:
        """Attention of the queries of sequences, each over its own cache, one after the other [H, T, DV]."""
        drive, (q, cache) = _drive(), sequences[0]
        if seen.sinks is not None:
            _workers().keep(seen.sinks)
        count = sum(queries.shape[1] for queries, _ in sequences)
        y, start = _workers().scratch((count, len(q), cache.width_v), np.float32), 0
        how = drive.Options(seen.scale, seen.cap, True, seen.window)
        for q, cache in sequences:
            (heads, tokens, width), end = q.shape, start + q.shape[1]
            lines = heads // cache.kv_heads * tokens
            unit = None if self.invariant else _attention().unit_for(lines, width, cache.width_v)
            drive.attend_last(q, cache, seen.sinks, how, y[start:end], unit)
            start = end
        result: Array = y.transpose(1, 0, 2)
        return result


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
def _states() -> Any:
    return import_module("ggmlq.cpu.layers.states")


@cache
def _drive() -> Any:
    return import_module("ggmlq.cpu.attention.drive")


@cache
def _attention() -> Any:
    return import_module("ggmlq.cpu.attention.call")
