"""``Alike``: layers of a step that is recorded, of which those like one before repeat its launches.

A model has tens of layers and two or three kinds. Of a kind one layer is walked, with a tape beside it; for
the others the tape is repeated with their own weights, keys and values. Rows that go in and come out have two
places, by turns: what comes out of a layer that was walked is copied there.

A layer is walked as ever where a tape would not say all: where kernels of others run in it, or where it reads
arrays that are not listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..base.devices import cuda_device, cuda_driver, cuda_module
from .arithmetic.kernels import Array
from .caches import Memory


class Alike:
    """The kinds of layers that a step has shown so far.

    ``arena``: the memory in which it works; that of layers with a tape is used for nothing else in the step.
    ``known``: arrays that all layers may read.
    """

    def __init__(self, memory: Memory, arena: Any, known: Sequence[Array]) -> None:
        self._memory, self._arena, self._held = memory, arena, list[Any]()
        self._tape = cuda_module("driver.tape")
        self._known = [self._tape.span_of(array) for array in known]
        self._tapes = dict[Any, Any]()  # by kinds; False for those that are walked
        self._places: list[tuple[Array, Array]] = []  # of the rows

    def __call__(self, walk: Callable[[Any, int], Any], step: Any, x: Any, layer: int) -> Any:
        """The rows behind a layer: those of ``walk(x, layer)``."""
        if not step.is_sum(x):
            return walk(x, layer)
        own = dict(step.weights.read_by(layer)) | self._rows(layer)
        config, terms = step.config, x.terms
        kind = (
            *((name, array.shape, array.strides, array.dtype.char) for name, array in own.items()),
            config.windows[layer], config.heads[layer], tuple(term.shape for term in terms),
        )  # fmt: skip
        tape = self._tapes.get(kind)
        if tape is False:
            return walk(x, layer)
        inside, outside = self._turn(terms)
        arrays = *inside, *outside, *own.values()
        if tape is not None:
            gpu = cuda_driver()
            tape.repeat([array.data.ptr for array in arrays], gpu.stream(gpu.device()).ptr)
            return step.sum_of(*outside)
        y, self._tapes[kind] = self._walked(walk, step, inside, layer, own)
        if not self._tapes[kind]:
            return y
        return step.sum_of(*self._moved(y.terms, outside))

    def _rows(self, layer: int) -> dict[Any, Array]:
        cache = self._memory.layers[layer]
        return {"keys": cache.k.raw} if self._memory.shared else {"keys": cache.k.raw, "values": cache.v.raw}

    def _turn(self, terms: Sequence[Array]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Where the rows lie, and where those of the layer shall lie."""
        xp = cuda_device().cupy()
        if not self._places or self._places[0][0].shape != terms[0].shape:
            self._places = [(xp.empty_like(terms[0]), xp.empty_like(terms[1])) for _ in range(2)]
        here, there = self._places
        if terms[0] is there[0] and terms[1] is there[1]:
            return there, here
        if not (terms[0] is here[0] and terms[1] is here[1]):
            self._moved(terms, here)
        return here, there

    @staticmethod
    def _moved(terms: Sequence[Array], to: tuple[Array, Array]) -> tuple[Array, Array]:
        for term, place in zip(terms, to, strict=True):
            place[...] = term
        return to

    def _walked(
        self, walk: Callable[[Any, int], Any], step: Any, terms: Sequence[Array], layer: int,
        own: dict[Any, Array],
    ) -> tuple[Any, Any]:  # fmt: skip
        """The rows behind a layer, and its tape, or False where the tape does not say all."""
        gpu, tape = cuda_driver(), self._tape
        stream = gpu.stream(gpu.device()).ptr
        before, self._arena.held = tape.nodes(stream), self._held
        try:
            with tape.taped() as steps:
                y = walk(step.sum_of(*terms), layer)
        finally:
            self._arena.held = None
        after = tape.nodes(stream)
        if before is None or after - before != len(steps) or not step.is_sum(y):
            return y, False
        if [term.shape for term in y.terms] != [term.shape for term in terms]:
            return y, False
        if dict(step.weights.read_by(layer)).keys() | self._rows(layer).keys() != own.keys():
            return y, None  # kernels have prepared weights meanwhile: the next layer of its kind shows more
        spans = [tape.span_of(array) for array in (*terms, *y.terms, *own.values())]
        copy = tape.Tape(steps, spans)
        known = [*spans, *self._known, *self._arena.spans]
        least, most = min(first for first, _ in spans), max(first + size for first, size in spans)
        for word in copy.words:
            if least <= word < most and not any(first <= word < first + size for first, size in known):
                return y, False  # an array that this layer alone may read
        return y, copy
