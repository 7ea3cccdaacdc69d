"""``Seats``: where keys and values of running sequences lie: on a GPU in one cache, else in one each."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .batch import ENDED, Runs
from .caches import Cache, Part
from .drafts import Draft
from .sampling import Sampling, Stop

LEAST = 256  # positions of a sequence without an end, at first


@dataclass(eq=False)
class Running:
    """A sequence, with the tokens at its end that no step has handed out yet."""

    id: int
    tokens: list[int]
    left: int | None  # tokens that it may still get, None for as many as there is room for
    sampling: Sampling
    rng: np.random.Generator
    ends: Stop
    draft: Draft | None
    known: int = 0  # tokens that its seat holds before
    seat: int = ENDED
    waiting: int = 0  # tokens of a draft that were right
    ended: bool = False  # the last token is there

    @property
    def goes_on(self) -> bool:
        """True while a step gives it a token."""
        return self.waiting > 0 or not self.ended

    @property
    def said(self) -> list[int]:
        """The tokens without those that wait."""
        return self.tokens[: len(self.tokens) - self.waiting]

    def take(self, token: int) -> None:
        """Take the next token, which may be the last one."""
        self.tokens.append(token)
        self.waiting += 1
        if self.left is not None:
            self.left -= 1
        self.ended = self.ends(token) or self.left == 0

    def hand(self) -> int:
        """The first token that waits."""
        self.waiting -= 1
        return self.tokens[-1 - self.waiting]


class Seats:
    """The places of sequences, by their numbers; ``cache``: a cache of the caller's, which does not grow."""

    def __init__(self, model: Runs, cache: Cache | None) -> None:
        self._model, self._cache, self.fixed = model, cache, cache is not None
        self.limit = model.config.context if cache is None else cache.positions  # positions of a sequence
        self.parts: list[Part | None] = [] if cache is None else [*cache.parts]
        self._free = [*range(len(self.parts))]  # a heap: low numbers are taken first
        self._there = dict[int, Running]()  # who has a place
        self._one = model.best is not None  # on a GPU a step of all sequences has one attention

    def free(self, one: Running) -> None:
        """Take a sequence's place from it."""
        if one.seat != ENDED:
            if not (self._one or self.fixed):
                self.parts[one.seat] = None
            heapq.heappush(self._free, one.seat)
            del self._there[one.seat]
            one.seat = ENDED

    def place(self, running: Sequence[Running], more: int) -> None:
        """Give each sequence a place, with room for its tokens and ``more`` behind them."""
        if not running:
            return
        news = [one for one in running if one.seat == ENDED]
        if self._one and not self.fixed:
            self._grow(len(self._there) + len(news), max(self._room(one, more) for one in running))
        for one in news:
            if not self._free:
                self._free.append(len(self.parts))
                self.parts.append(None)
            one.seat = heapq.heappop(self._free)
            self._there[one.seat] = one
            if (part := self.parts[one.seat]) is not None:
                part.truncate(one.known)
        if not (self._one or self.fixed):
            for one in running:
                old, room = self.parts[one.seat], self._room(one, more)
                if old is None or old.positions < room:
                    self.parts[one.seat] = new = self._model.cache(room).parts[0]
                    if old is not None:
                        _move(old, new)

    def _room(self, one: Running, more: int) -> int:
        """Positions for a sequence: of one without an end twice as many as it has."""
        if one.left is not None:
            return len(one.tokens) + one.left
        part, need = self.parts[one.seat] if one.seat != ENDED else None, len(one.tokens) + more
        if part is not None and need <= part.positions:
            return part.positions
        return min(self.limit, max(LEAST, 2 * need))

    def _grow(self, seats: int, room: int) -> None:
        """See that a GPU's cache has so many seats of so much room; a larger one takes over what there is."""
        before = [] if self._cache is None else self._cache.parts
        if self._cache is not None:
            if seats <= len(before) and room <= self._cache.positions:
                return
            room = max(room, self._cache.positions)
            seats = len(before) if seats <= len(before) else max(seats, 2 * len(before))
        self._cache = self._model.cache(room, seats)
        for number in self._there:
            _move(before[number], self._cache.parts[number])
        self.parts = [*self._cache.parts]
        for number in range(len(before), seats):
            heapq.heappush(self._free, number)


def _move(old: Part, new: Part) -> None:
    """Copy keys and values of a sequence to another place."""
    length = len(old)
    for source, target in zip(old.memory.layers, new.memory.layers, strict=True):
        for a, b in ((source.k, target.k), (source.v, target.v)):
            b.strided[new.number, :, :length] = a.strided[old.number, :, :length]
            b.written()
    new.advance(length)
    new.state = old.state  # which no memory of a cache holds
