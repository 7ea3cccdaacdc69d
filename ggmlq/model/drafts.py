"""Drafts: tokens that a sequence may say next, which a step looks at all at once.

    Lookup   what stood behind the longest stretch of the text that is also its end
    Smaller  what another model would say
    Draft    one of these for a sequence, and how many tokens pay

The model's own tokens decide: it computes the logits behind each token of a draft, and the first one that it
would not have said ends what is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.text import short
from ..errors import ShapeError, UnsupportedError
from .batch import BATCH, Runs, portions

LONGEST = 32  # tokens at the end of a text that are compared with those before
SIZES = 1, 2, 3, 5, 7, 11, 15  # tokens of a draft: few sizes, of which each has a program
FIRST = 2  # place of the first one's size among them

Guess = Callable[[Sequence[int], int], Sequence[int]]


class Lookup:
    """Drafts from the text itself."""

    def __init__(self) -> None:
        self._text, self._count = np.empty(256, np.int64), 0

    def __call__(self, tokens: Sequence[int], most: int) -> list[int]:
        """Up to ``most`` tokens: those behind the last place where the longest end of the text stood before.

        A place near the end is the beginning of what repeats, and goes on so.
        """
        text = self._grown(tokens)
        end, length = len(text) - 1, 1
        places = np.flatnonzero(text[:end] == text[end])
        if not len(places):
            return []
        while length < LONGEST:
            longer = places[places >= length]
            longer = longer[text[longer - length] == text[end - length]]
            if not len(longer):
                break
            places, length = longer, length + 1
        behind: list[int] = np.resize(text[places[-1] + 1 :], most).tolist()
        return behind

    def _grown(self, tokens: Sequence[int]) -> NDArray[np.int64]:
        """The text as an array, to which new tokens are added."""
        if len(tokens) > len(self._text):
            self._text = np.resize(self._text, 2 * len(tokens))
        self._text[self._count : len(tokens)] = tokens[self._count :]
        self._count = len(tokens)
        return self._text[: self._count]


class Smaller:
    """Drafts by another model, which has a cache of its own for the text."""

    def __init__(self, model: Runs) -> None:
        self._model = model
        self._cache: Any = None
        self._length, self._draft = 0, list[int]()  # of the text at the last call, and what it gave

    def __call__(self, tokens: Sequence[int], most: int) -> list[int]:
        """The best so many tokens, one after the other."""
        model, context = self._model, self._model.config.context
        most = min(most, context - len(tokens))
        if most <= 0:
            return []
        same = self._length
        for ours, text in zip(self._draft[:-1], tokens[same:-1], strict=False):
            if ours != text:
                break
            same += 1
        if self._cache is None or self._cache.positions < len(tokens) + most:
            self._cache, same = model.cache(min(context, 2 * (len(tokens) + most))), 0
        self._cache.truncate(min(same, len(tokens) - 1))
        self._length, self._draft = len(tokens), []
        behind = np.array(tokens[len(self._cache) :])
        while True:
            for pieces in portions([behind], BATCH):
                rows = model.together(pieces, self._cache.parts, True)
            self._draft.append(int(rows[-1].argmax()))
            if len(self._draft) == most:
                return self._draft
            behind = np.array(self._draft[-1:])


class Draft:
    """Drafts for a sequence: longer ones while they are right, shorter ones where they are not."""

    def __init__(self, guess: Guess) -> None:
        self._guess, self._size = guess, FIRST

    def __call__(self, tokens: Sequence[int], most: int) -> list[int]:
        """A draft of up to ``most`` tokens behind a text."""
        draft = self._guess(tokens, min(SIZES[self._size], most)) if most > 0 else []
        return [*draft[: max((size for size in SIZES if size <= len(draft)), default=0)]]

    def judged(self, drafted: int, accepted: int) -> None:
        """Choose the length of the next draft by those tokens of this one that were right."""
        if accepted == drafted:
            self._size = min(self._size + 1, len(SIZES) - 1)
        else:
            self._size = sum(size <= accepted for size in SIZES)


def drafts_of(draft: Any, model: Runs) -> Callable[[], Draft | None]:
    """A function that makes the drafts of a sequence, as a caller wants them."""
    if draft is None:
        return lambda: None
    if any(getattr(one, "config", model.config).state for one in (model, draft)):
        raise UnsupportedError(
            f"generate: draft={short(draft)}; what a draft got wrong is cut off again, and the state of "
            "these layers has no way back to a position; leave draft= out"
        )
    if isinstance(draft, str) and draft == "lookup":
        return lambda: Draft(Lookup())
    if not hasattr(draft, "together"):
        raise UnsupportedError(
            f"generate: draft={short(draft)}; drafts come from the text, or from a model that gq.model.load "
            'gives; pass draft="lookup", a model or None'
        )
    if draft.vocabulary != model.vocabulary:
        raise ShapeError(
            f"generate: the model of drafts has {draft.vocabulary:,} tokens, this one "
            f"{model.vocabulary:,}; it needs the same; take a smaller one of the kind, or draft='lookup'"
        )
    return lambda: Draft(Smaller(draft))
