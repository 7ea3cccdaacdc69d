"""Sequences of any lengths that go through the layers together: products have the rows of all of them.

Attention alone goes sequence by sequence, each over its own cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.devices import is_host, namespace, to_host
from ..base.text import short
from ..errors import ShapeError
from .caches import Cache, Part

ENDED = -1  # in place of a token
RECORDED = 1  # steps until they are replayed: the first one takes the host so long that tokens do not wait
Best = Callable[[Any], tuple[Any, Callable[[], NDArray[np.int64]]]]


class Piece(NamedTuple):
    """Tokens of a sequence, by its number."""

    sequence: int
    tokens: NDArray[np.int64]


def tokens_of(pieces: Sequence[Piece]) -> Any:
    """The tokens of pieces, one after the other, on their device."""
    tokens = [piece.tokens for piece in pieces]
    return tokens[0] if len(tokens) == 1 else namespace(tokens[0]).concatenate(tokens)


def is_batch(tokens: Any) -> bool:
    """True for several sequences: a list of them, or an array of two axes."""
    if hasattr(tokens, "ndim"):
        return bool(tokens.ndim == 2)
    return bool(len(tokens)) and all(isinstance(one, Sequence) or hasattr(one, "ndim") for one in tokens)


def several_of(call: str, tokens: Any) -> list[Any]:
    """The sequences of a batch, which lie on the host."""
    if not is_host(tokens) or any(not is_host(one) for one in tokens):
        raise ShapeError(
            f"{call}: several sequences on a GPU; lists and NumPy's arrays are taken together; pass .get()"
        )
    return list(tokens)


def checked(call: str, tokens: Any, vocabulary: int, context: int) -> NDArray[np.int64]:
    """The tokens of a sequence as numbers, if a model of that many tokens and positions can run them."""
    numbers = np.asarray(to_host(tokens))
    if numbers.ndim != 1 or not numbers.size or numbers.dtype.kind not in "iu":
        raise ShapeError(
            f"{call}: tokens are {short(tokens)}; they are a sequence of one number or more, or several of "
            "these; pass m.tokenizer.encode(text)"
        )
    if numbers.min() < 0 or numbers.max() >= vocabulary:
        raise ShapeError(
            f"{call}: tokens go from {numbers.min()} to {numbers.max()}; the embedding has rows 0 to "
            f"{vocabulary - 1}; take tokens of this model's tokenizer"
        )
    if len(numbers) > context:
        raise ShapeError(
            f"{call}: {len(numbers):,} tokens; the context has {context:,} positions; pass fewer, or load "
            "with a larger context="
        )
    return numbers.astype(np.int64)


def portions(sequences: Sequence[NDArray[np.int64]], most: int) -> Iterator[list[Piece]]:
    """The pieces of sequences that go together, one after the other, up to ``most`` tokens.

    Sequences that are no longer than that are not cut.
    """
    pieces: list[Piece] = []
    room = most
    for i, tokens in enumerate(sequences):
        start = 0
        if pieces and room < len(tokens) <= most:
            yield pieces
            pieces, room = [], most
        while start < len(tokens):
            piece = Piece(i, tokens[start : start + room])
            pieces.append(piece)
            start, room = start + len(piece.tokens), room - len(piece.tokens)
            if not room:
                yield pieces
                pieces, room = [], most
    if pieces:
        yield pieces


def continued(
    together: Callable[[list[Piece], Sequence[Part], bool], Any], caches: Sequence[Cache],
    beginnings: Iterable[list[Piece]], n: int, draw: Callable[[Any, list[int]], Sequence[int]],
    best: Best | None, ends: Callable[[int, int], bool],
) -> Iterator[NDArray[np.int64]]:  # fmt: skip
    """Yield up to n steps, a token for each sequence in each, -1 for those that ended.

    ``together(pieces, parts, last)``: logits behind pieces of sequences. ``draw(rows, sequences)``: their
    tokens. ``best(rows)``: the best tokens on a GPU, and a function that waits for them; with it a step
    begins before the tokens that it goes on from have arrived on the host, in vain where a sequence ends.
    ``ends(sequence, token)``: true for the last token of a sequence.
    """
    parts = [part for cache in caches for part in cache.parts]
    logits: dict[int, Any] = {}
    for pieces in beginnings:
        rows = together(pieces, parts, True)
        logits |= {piece.sequence: row for piece, row in zip(pieces, rows, strict=True)}
    live, following = list(logits), None
    if len(live) > len(rows):
        rows = namespace(rows).stack([*logits.values()])
    del logits
    for i in range(n):
        step = np.full(len(parts), ENDED)
        if best is None or i < RECORDED:
            step[live] = draw(rows, live)
        else:
            ids, arrived = best(rows)
            if i + 1 < n:
                following = together([Piece(b, ids[j : j + 1]) for j, b in enumerate(live)], parts, True)
            step[live] = arrived()
        yield step
        going = [j for j, b in enumerate(live) if not ends(b, int(step[b]))]
        if not going or i + 1 == n:
            return
        some, live = len(going) < len(live), [live[j] for j in going]
        if following is None:
            rows = together([Piece(b, step[b : b + 1]) for b in live], parts, True)
        else:
            rows, following = following[going] if some else following, None


def beside(tokens: Any, x: Any) -> Any:
    """An array on the side of the tokens: the host, unless these are CuPy's."""
    return to_host(x) if is_host(tokens) else x
