"""Second moments of what products of layers read, on a text: what error feedback needs of a model."""

from __future__ import annotations

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

MOST = 4 << 30  # bytes of moments at a time: the text runs again for the layers behind those that fit
JUDGE = 4  # of so many stretches one is held back to judge rows, and of twice as many one to judge the file


class Gathered:
    """Moments by name of tensor, made when they are asked for, for as many layers at a time as fit.

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
        self._of: dict[str, Moments] = {}

    def get(self, name: str) -> Moments | None:
        """The moments of what is multiplied with a tensor; None for one of no layer, or of experts."""
        place = LAYER.match(name)
        if place is None:
            return None
        if int(place[1]) not in self._layers:
            self._of.clear()
            self._gather(int(place[1]))
        return self._of.get(name)

    def _gather(self, first: int) -> None:
        sums, last = _Sums(first), self.model.config.layers
        with (
            Progress(len(self._pieces) + len(self._judging), "moments", " stretches", self._bar) as bar,
            quiet(),
        ):
            for here, pieces in enumerate((self._pieces, self._judging)):
                for piece in pieces:
                    sums.listen(self.model, piece, here)
                    bar.advance(1)
        self._layers = range(first, sums.end or last)
        shared = {key: Moments(*pair) for key, pair in sums.of.items()}
        self._of = {name: shared[key] for name, key in sums.key.items() if shared[key].values.any()}


class _Sums:
    """Sums of products by the first tensor that reads some rows, from a layer on; until memory is full."""

    def __init__(self, first: int) -> None:
        self.first, self.end = first, 0
        self.of: dict[str, list[NDArray[np.float32]]] = {}
        self.key: dict[str, str] = {}
        self._last: tuple[Any, str] = None, ""

    def listen(self, model: Model, piece: list[int], here: int) -> None:
        """Add what products read of a stretch; ``here``: 1 where it is held back."""

        def hear(name: str, x: Array, q: QuantArray, ids: Any) -> None:
            place = LAYER.match(name)
            if place is None or ids is not None or q.ndim > 2 or int(place[1]) < self.first:
                return
            layer = int(place[1])
            if not self.end and layer > self.first and sum(map(_nbytes, self.of.values())) > MOST:
                self.end = layer
            if self.end and layer >= self.end:
                return
            if self._last[0] is x:
                self.key[name] = self._last[1]
                return
            self._last, self.key[name] = (x, name), name
            added = to_host(x.T @ x) / np.float32(len(piece))
            pair = self.of.setdefault(name, [np.zeros_like(added), np.zeros_like(added)])
            pair[here] += added

        model.listen([piece], hear, False)
        self._last = None, ""


def _nbytes(pair: list[NDArray[np.float32]]) -> int:
    return sum(one.nbytes for one in pair)
