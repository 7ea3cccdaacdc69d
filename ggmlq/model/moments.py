"""Second moments of the rows that products read on a text, for error feedback, and their largest values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..base.devices import to_host
from ..base.progress import Progress, quiet
from ..errors import ShapeError
from ..ops.feedback import Moments
from .arithmetic.kernels import Array
from .model import Model
from .sensitivity import LAYER

HEAD = "output.weight"  # read by all rows; an embedding in its place is looked up, too
MOST = 4 << 30  # bytes of moments at a time: the text runs again for the layers behind those that fit
JUDGE = 4  # of so many stretches one is held back to judge rows, and of twice as many one to judge the file


class Gathered:
    """Moments by name of tensor, made when they are asked for, for as many layers at a time as fit.

    One a matrix: tensors of experts have several, and None for an expert that no token reached; tensors of
    experts whose moments do not fit have none.

    ``unseen``: stretches that neither give moments nor judge rows.
    """

    def __init__(self, model: Model, pieces: list[list[int]], bar: bool | None) -> None:
        if len(pieces) < 3:
            raise ShapeError(
                f"error feedback: the text is {len(pieces)} of 3 stretches of {len(pieces[0])} tokens; "
                "one gives moments, one judges rows, one the file; pass a longer text, or a smaller --stretch"
            )
        self.model, self._bar = model, bar
        self._judging, self.unseen = pieces[::JUDGE], pieces[1 :: 2 * JUDGE]
        self._pieces = [piece for i, piece in enumerate(pieces) if i % JUDGE and i % (2 * JUDGE) != 1]
        self._layers = range(0)
        self._of: dict[str, list[Moments | None]] = {}

    def get(self, name: str) -> Sequence[Moments | None] | None:
        """The moments of what is multiplied with a tensor; None for one that no product reads."""
        layer = _layer(self.model, name)
        if layer is None:
            return None
        if layer not in self._layers:
            self._of.clear()
            self._gather(layer)
        return self._of.get(name)

    @cached_property
    def largest(self) -> dict[str, NDArray[np.float32]]:
        """The largest magnitude that is multiplied with a tensor, for each of its experts."""
        largest: dict[str, NDArray[np.float32]] = {}

        def hear(name: str, x: Array, q: QuantArray, ids: Any) -> None:
            if q.ndim == 2 or ids is not None:
                of_piece = [float(abs(rows).max()) if len(rows) else 0.0 for rows in _rows(x, ids, len(q))]
                largest[name] = np.maximum(largest.get(name, 0), np.asarray(of_piece, np.float32))

        pieces = [*self._pieces, *self._judging, *self.unseen]
        with Progress(len(pieces), "largest inputs", " stretches", self._bar) as bar, quiet():
            for piece in pieces:
                self.model.listen([piece], hear, HEAD in self.model.file)
                bar.advance(1)
        return largest

    def _gather(self, first: int) -> None:
        sums, last = _Sums(first), self.model.config.layers + 1
        with (
            Progress(len(self._pieces) + len(self._judging), "moments", " stretches", self._bar) as bar,
            quiet(),
        ):
            for here, pieces in enumerate((self._pieces, self._judging)):
                for piece in pieces:
                    sums.listen(self.model, piece, here)
                    bar.advance(1)
        self._layers = range(first, sums.end or last)
        shared = {
            key: [Moments(*pair) if pair[0].any() and pair[1].any() else None for pair in pairs]
            for key, pairs in sums.of.items()
        }
        self._of = {name: shared[key] for name, key in sums.key.items()}


def _layer(model: Model, name: str) -> int | None:
    """The layer of a tensor, one more for a head of its own; None for others."""
    if name == HEAD:
        return model.config.layers
    place = LAYER.match(name)
    return None if place is None else int(place[1])


def _rows(x: Array, ids: Any, experts: int) -> list[Array]:
    """The rows that each expert reads, or all of them."""
    rows = x.reshape(-1, x.shape[-1])
    if ids is None:
        return [rows]
    chosen = ids.reshape(len(rows), -1)
    return [rows[(chosen == expert).any(axis=-1)] for expert in range(experts)]


class _Sums:
    """Sums of products by the first tensor that reads some rows, from a layer on; until memory is full."""

    def __init__(self, first: int) -> None:
        self.first, self.end = first, 0
        self.of: dict[str, NDArray[np.float32]] = {}  # [experts, 2, K, K]
        self.key: dict[str, str] = {}
        self._last: tuple[Any, Any, str] = None, None, ""

    def listen(self, model: Model, piece: list[int], here: int) -> None:
        """Add what products read of a stretch; ``here``: 1 where it is held back."""

        def hear(name: str, x: Array, q: QuantArray, ids: Any) -> None:
            layer, columns = _layer(model, name), x.shape[-1]
            count = 1 if ids is None else len(q)
            if layer is None or layer < self.first or (ids is None and q.ndim > 2):
                return
            if count > 1 and 8 * count * columns**2 > MOST:
                return
            if not self.end and layer > self.first and sum(one.nbytes for one in self.of.values()) > MOST:
                self.end = layer
            if self.end and layer >= self.end:
                return
            if self._last[0] is x and self._last[1] is ids:
                self.key[name] = self._last[2]
                return
            self._last, self.key[name] = (x, ids, name), name
            if name not in self.of:
                self.of[name] = np.zeros((count, 2, columns, columns), np.float32)
            for sums, rows in zip(self.of[name], _rows(x, ids, count), strict=True):
                sums[here] += to_host(rows.T @ rows) / np.float32(len(piece))

        model.listen([piece], hear, HEAD in model.file)
        self._last = None, None, ""
