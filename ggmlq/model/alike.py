"""``Alike``: layers of a step that is recorded, of which those like one before repeat its launches.

A model has tens of layers and two or three kinds. Of a kind one layer is walked, with a tape beside it; for
the others the tape is repeated with their own weights, keys and values. Rows that go in and come out have two
places, by turns: what comes out of a layer that was walked is copied there.

A layer is walked as ever where a tape would not say all: where kernels of others run in it, or where it reads
arrays that are not listed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from ..arrays.array import QuantArray
from ..base.devices import cuda_device, cuda_driver, cuda_module
from .arithmetic.kernels import Array
from .caches import Memory
from .weights import Parts

Walk = Callable[[Any, int], Any]  # (rows, layer): the rows behind it
Name = tuple[Any, Any, int]  # of an array: its part of the layer, what has made it of the part, and which


class Alike:
    """The kinds of layers that a step has shown so far.

    ``arena``: the memory in which it works; that of layers with a tape is used for nothing else in the step.
    ``known``: arrays that all layers may read.
    """

    def __init__(self, memory: Memory, arena: Any, known: Sequence[Array]) -> None:
        self._memory, self._arena, self._held = memory, arena, list[Any]()
        self._module = cuda_module("driver.tape")
        self._known = [self._module.span_of(array) for array in known]
        self._tapes = dict[Any, Any]()  # by kinds, with the names of arrays; None for those that are walked
        self._places: list[tuple[Array, Array]] = []  # of the rows

    def __call__(self, walk: Walk, step: Any, x: Any, layer: int) -> Any:
        """The rows behind a layer: those of ``walk(x, layer)``."""
        gpu = cuda_driver()
        stream = gpu.stream(gpu.device()).ptr
        if not step.is_sum(x) or self._module.nodes(stream) is None:
            return walk(x, layer)
        kind = self._kind(step, layer)
        if kind in self._tapes and self._tapes[kind] is None:
            return walk(x, layer)
        inside, outside = self._turn(x.terms)
        if kind in self._tapes:
            tape, names = self._tapes[kind]
            parts = self._parts(step, layer)
            own = [0 if name is None else _address(parts, name) for name in names]
            tape.repeat([array.data.ptr for array in (*inside, *outside)] + own, stream)
            return step.sum_of(*outside)
        y, self._tapes[kind] = self._walked(walk, step, inside, layer, stream)
        if self._tapes[kind] is None:
            return y
        return step.sum_of(*_moved(y.terms, outside))

    def _kind(self, step: Any, layer: int) -> Any:
        """All that layers with the same launches have in common."""
        config, keys = step.config, self._memory.layers[step.config.keyed(layer)].k
        return (*step.weights.read_by(layer).kind, keys.shape, config.windows[layer], config.heads[layer])

    def _parts(self, step: Any, layer: int) -> Parts:
        """The arrays that a layer alone reads and writes."""
        cache = self._memory.layers[step.config.keyed(layer)]
        rows = {("keys",): cache.k} if self._memory.shared else {("keys",): cache.k, ("values",): cache.v}
        parts: Parts = step.weights.read_by(layer).parts | rows
        return parts

    def _turn(self, terms: Sequence[Array]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """The places of the rows that go into a layer, and of those that come out."""
        xp = cuda_device().cupy()
        if not self._places:
            self._places = [(xp.empty_like(terms[0]), xp.empty_like(terms[1])) for _ in range(2)]
        here, there = self._places
        if terms[0] is there[0]:
            return there, here
        if terms[0] is not here[0]:
            _moved(terms, here)
        return here, there

    def _walked(
        self, walk: Walk, step: Any, terms: Sequence[Array], layer: int, stream: int
    ) -> tuple[Any, Any]:  # fmt: skip
        """The rows behind a layer; its tape and names of arrays, or None where the tape does not say all."""
        module, before = self._module, self._module.nodes(stream)
        self._arena.held = self._held
        try:
            with module.taped() as steps:
                y = walk(step.sum_of(*terms), layer)
        finally:
            self._arena.held = None
        if module.nodes(stream) - before != len(steps) or not step.is_sum(y):
            return y, None
        arrays = dict(_arrays_of(self._parts(step, layer)))
        spans = [module.span_of(array) for array in (*terms, *y.terms, *arrays.values())]
        tape = module.Tape(steps, spans)
        if tape.strangers(spans, [*self._known, *self._arena.spans]):
            return y, None  # arrays that this layer alone may read
        names = [name if i in tape.used else None for i, name in enumerate(arrays, 4)]
        return y, (tape, names)


def _moved(terms: Sequence[Array], to: tuple[Array, Array]) -> tuple[Array, Array]:
    """Copy two arrays of rows."""
    for term, place in zip(terms, to, strict=True):
        place[...] = term
    return to


def _address(parts: Parts, name: Name) -> int:
    """The address of an array of a layer, which is prepared if it is not yet."""
    key, make, i = name
    part = parts[key]
    copy = part if make is None else part.prepared(make)
    return int(list(_arrays_in(copy))[i].data.ptr)


def _arrays_of(parts: Parts) -> Iterator[tuple[Name, Array]]:
    """The arrays of a layer on the device, with what is prepared of weights."""
    for key, part in parts.items():
        copies = [(None, part), *(part.prepared_by() if isinstance(part, QuantArray) else ())]
        for make, copy in copies:
            for i, array in enumerate(_arrays_in(copy)):
                yield (key, make, i), array


def _arrays_in(copy: Any) -> list[Array]:
    """The arrays on the device of which something is made."""
    if isinstance(copy, QuantArray):
        copy = copy.memory
    if is_dataclass(copy):
        copy = [getattr(copy, field.name) for field in fields(copy)]
    if not isinstance(copy, tuple | list):
        copy = [copy]
    return [part for part in copy if hasattr(getattr(part, "data", None), "ptr")]
