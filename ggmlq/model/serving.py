"""``Batch``: sequences that go through the layers together, of which each joins and leaves when it likes.

    Batch    add, step, drop
    Answer   the iterator of ``generate``, over a batch of its own

A step gives each sequence what its cache lacks: a prompt, or the last token. Prompts that wait are one step,
and so are the last tokens of the others. With drafts (drafts.py) more tokens come behind the last one, of
which those stay that the sequence would have got anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..base.devices import namespace, to_host
from ..base.text import short
from ..dispatch.checks import is_whole
from ..errors import BlockIndexError, ShapeError
from .batch import BATCH, ENDED, RECORDED, Best, Piece, Runs, checked, portions
from .caches import Cache
from .drafts import drafts_of
from .sampling import Sampling, Stop, Stops, finite
from .seats import Running, Seats

Said = TypeVar("Said")  # a token, or an array of them


class Batch:
    """Sequences of a model that go through its layers together; ``Model.batch`` makes it.

    Attributes
    ----------
    drafted, accepted : int
        Tokens of drafts so far, and those of them that were right.
    """

    def __init__(self, model: Runs, cache: Cache | None = None, draft: Any = None) -> None:
        self._model, self._seats = model, Seats(model, cache)
        self._drafts = drafts_of(draft, model)
        self._ids, self._running = count(), dict[int, Running]()
        self._steps = 0
        self._ahead: tuple[list[Running], Any] = [], None  # logits of a GPU that are there, or on their way
        self.drafted = self.accepted = 0

    def add(
        self, tokens: Sequence[int], n: int | None = None, temperature: float = 0.0, *, top_k: int = 0,
        top_p: float = 1.0, seed: int | np.random.Generator | None = None, stop: Stops = (),
    ) -> int:  # fmt: skip
        """Let a sequence join, and give its number, which no other one ever has.

        Nothing is computed: its tokens go through the layers with the next step, beside those of others that
        were added since the last one. All but ``tokens`` is as of ``Model.generate``; with ``n=None`` the
        sequence goes on until it is dropped, ends by ``stop``, or fills its context.
        """
        return self.join("batch.add", tokens, n, Sampling(temperature, top_k, top_p), seed, stop)

    def join(
        self, call: str, tokens: Any, n: int | None, sampling: Sampling, seed: Any, stop: Stops,
        known: int = 0,
    ) -> int:  # fmt: skip
        """Do what ``add`` does; errors name the call.

        ``known``: tokens whose keys and values the next free place of the caller's cache holds already.
        """
        seats, limit = self._seats, self._seats.limit
        numbers = checked(call, tokens, self._model.vocabulary, self._model.config.context)
        more = 0 if n is None else n
        if not is_whole(more, 0) or len(numbers) + more > limit:
            where, way = ("cache", "pass") if seats.fixed else ("context", "load with")
            raise ShapeError(
                f"{call}: {len(numbers)} tokens and {short(more)} more; the {where} has {limit:,} "
                f"positions; ask for fewer, or {way} a larger {where}="
            )
        if seats.fixed and sum(not one.ended for one in self._running.values()) >= len(seats.parts):
            raise BlockIndexError(
                f"{call}: {len(seats.parts)} sequences go on, as many as the cache takes; drop "
                f"one of {short([*self])}, or pass a larger cache, m.cache(positions, batch)"
            )
        ends = Stop(stop, lambda: self._model.tokenizer)
        one = Running(
            next(self._ids), numbers.tolist(), n, sampling, np.random.default_rng(seed), ends, self._drafts(),
            known, ended=n == 0,
        )  # fmt: skip
        self._running[one.id] = one
        return one.id

    def step(self) -> dict[int, int]:
        """The next token of each sequence that goes on, by its number; one that has ended gets no more."""
        live = [one for one in self._running.values() if one.goes_on]
        if not live:
            raise ShapeError("batch.step: no sequence goes on; let one join with b.add(tokens)")
        behind = [one for one in live if not one.waiting]
        full = [one.id for one in behind if one.left is None and len(one.tokens) >= self._seats.limit]
        if full:
            raise BlockIndexError(
                f"batch.step: sequences {short(full)} have {self._seats.limit:,} tokens, and their context "
                "is full; read b.tokens(id) and drop them; the others then go on"
            )
        if behind:
            self._compute(behind)
        return {one.id: one.hand() for one in live}

    def drop(self, id: int) -> None:
        """Let a sequence leave; its place is free for another one."""
        self._seats.free(self._of("batch.drop", id))
        del self._running[id]

    def tokens(self, id: int) -> list[int]:
        """The tokens of a sequence so far, those that it was added with first; also of one that has ended."""
        return self._of("batch.tokens", id).said

    def __iter__(self) -> Iterator[int]:
        """The numbers of the sequences that go on."""
        return (one.id for one in self._running.values() if one.goes_on)

    def __len__(self) -> int:
        """The number of sequences that go on."""
        return sum(1 for _ in self)

    def __contains__(self, id: object) -> bool:
        return id in [*self]

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} sequences that go on, {len(self._running)} in all, {self._model!r}>"

    def _of(self, call: str, id: int) -> Running:
        one = self._running.get(id) if isinstance(id, int | np.integer) else None
        if one is None:
            raise BlockIndexError(
                f"{call}({short(id)}): there are the sequences {short([*self._running])}; numbers of dropped "
                "ones are not used again; pass one that b.add gave"
            )
        return one

    # --- steps ------------------------------------------------------------------------------

    def _compute(self, behind: list[Running]) -> None:
        """Give each of some sequences its next token, or more."""
        wanted = {*behind}
        ahead = [(one, i) for i, one in enumerate(self._ahead[0]) if one in wanted]
        there = {one for one, _ in ahead}
        others = [one for one in behind if one not in there]
        self._seats.place(others, 0)
        drafts = {one: draft for one in others if (draft := self._draft(one))}
        self._steps += 1
        rows = [self._ahead_rows(ahead)] if ahead else []
        order, self._ahead = [one for one, _ in ahead], ([], None)
        for group in self._groups([one for one in others if one not in drafts]):
            rows.append(self._last(group))
            order += group
        if order:
            self._draw(order, rows[0] if len(rows) == 1 else namespace(rows[0]).concatenate(rows))
        if drafts:
            self._verify(drafts)
        for one in behind:
            if one.ended:
                self._seats.free(one)

    def _ahead_rows(self, ahead: list[tuple[Running, int]]) -> Any:
        """Logits of some sequences, of those that are there."""
        places = [i for _, i in ahead]
        return self._ahead[1] if len(places) == len(self._ahead[0]) else self._ahead[1][places]

    def _behind(self, one: Running) -> list[int]:
        """The tokens that a sequence's cache lacks; the last one is among them."""
        part = self._seats.parts[one.seat]
        assert part is not None
        part.truncate(len(one.tokens) - 1)
        return one.tokens[len(part) :]

    def _groups(self, running: list[Running]) -> Iterator[list[Running]]:
        """Sequences that lack one token, and those that lack more, in the order of their places."""
        running.sort(key=lambda one: one.seat)
        lengths = [len(self._behind(one)) for one in running]
        for prompts in (False, True):
            if group := [one for one, n in zip(running, lengths, strict=True) if (n > 1) == prompts]:
                yield group

    def _together(self, pieces: list[Piece], last: bool) -> Any:
        return self._model.together(pieces, self._seats.parts, last)

    def _last(self, running: list[Running]) -> Any:
        """Logits [sequences, vocabulary] behind what the caches of sequences lack."""
        rows: dict[int, Any] = {}
        for pieces in portions([np.array(self._behind(one)) for one in running], BATCH):
            y = self._together([Piece(running[i].seat, tokens) for i, tokens in pieces], True)
            rows |= {piece.sequence: row for piece, row in zip(pieces, y, strict=True)}
        return y if len(y) == len(rows) else namespace(y).stack([*rows.values()])

    def _draw(self, running: list[Running], rows: Any) -> None:
        """Give sequences their next tokens by the logits behind them."""
        best, greedy = self._model.best, all(one.sampling.temperature == 0 for one in running)
        if best is None or not greedy or self._steps <= RECORDED or any(one.draft for one in running):
            for one, draw in zip(running, draws(running, rows, best), strict=True):
                one.take(draw())
            return
        ids, arrived = best(rows)
        going = [
            (one, i) for i, one in enumerate(running)
            if one.left != 1 and len(one.tokens) + 1 < self._seats.limit
        ]  # fmt: skip
        if going:
            going.sort(key=lambda pair: pair[0].seat)
            self._seats.place([one for one, _ in going], 1)
            pieces = [Piece(one.seat, ids[i : i + 1]) for one, i in going]
            self._ahead = [one for one, _ in going], self._together(pieces, True)
        for one, token in zip(running, arrived().tolist(), strict=True):
            one.take(token)

    # --- drafts -----------------------------------------------------------------------------

    def _draft(self, one: Running) -> list[int]:
        """Tokens that a sequence may get next, if its cache lacks its last one alone."""
        if one.draft is None or len(self._behind(one)) > 1:
            return []
        most = self._seats.limit - len(one.tokens) if one.left is None else one.left
        draft = one.draft(one.tokens, most - 1)
        self._seats.place([one], len(draft))
        return draft

    def _verify(self, drafts: dict[Running, list[int]]) -> None:
        """Take as much of each draft as its sequence gets anyway, and the token behind."""
        running = sorted(drafts, key=lambda one: one.seat)
        pieces = [Piece(one.seat, np.array(self._behind(one) + drafts[one])) for one in running]
        owners = [one for one in running for _ in range(1 + len(drafts[one]))]
        draw = iter(draws(owners, self._together(pieces, False), self._model.best))
        for one in running:
            accepted, going = 0, True
            for guess in [*drafts[one], ENDED]:
                token = next(draw)
                if going:
                    one.take(number := token())
                    accepted += number == guess
                    going = number == guess and not one.ended
            self.drafted += len(drafts[one])
            self.accepted += accepted
            assert one.draft is not None
            one.draft.judged(len(drafts[one]), accepted)


def draws(owners: Sequence[Running], rows: Any, best_of: Best | None) -> list[Callable[[], int]]:
    """For each row of logits a function that draws its token, by the rule of the sequence that it is of.

    At random each call uses one number, whether the row came alone or behind a draft. ``best_of``: the
    model's, which is on a GPU; numbers alone come from there.
    """
    if best_of is None:
        best: NDArray[np.int64] = rows.argmax(axis=-1)
    else:
        best = best_of(finite(rows))[1]()  # those of the host have been looked at
    each = to_host(rows) if any(one.sampling.temperature for one in owners) else rows

    def draw(i: int, one: Running) -> Callable[[], int]:
        if one.sampling.temperature == 0:
            return lambda: int(best[i])
        return lambda: one.sampling.draw(each[i], one.rng)

    return [draw(i, one) for i, one in enumerate(owners)]


class Answer(Iterator[Said]):
    """The tokens that follow some sequences: in each step one, or an array of one for each."""

    def __init__(self, batch: Batch, ids: Sequence[int], several: bool) -> None:
        self._batch, self._all, self._several = batch, ids, several

    @property
    def drafted(self) -> int:
        """Tokens of drafts so far."""
        return self._batch.drafted

    @property
    def accepted(self) -> int:
        """Those of them that were right."""
        return self._batch.accepted

    def __next__(self) -> Any:
        if not len(self._batch):
            raise StopIteration
        step = self._batch.step()
        if not self._several:
            return step[self._all[0]]
        return np.array([step.get(one, ENDED) for one in self._all])
