"""Sequences of any lengths that go through the layers together: products have the rows of all of them.

Attention alone goes sequence by sequence, each over its own cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..base.devices import is_host, namespace, to_host
from ..base.text import short
from ..errors import ShapeError
from .caches import Cache
from .config import Config
from .tokenizer import Tokenizer

BATCH = 2048  # tokens that go through the layers together
ENDED = -1  # in place of a token
RECORDED = 1  # steps until they are replayed: the first one takes the host so long that tokens do not wait
Best = Callable[[Any], tuple[Any, Callable[[], NDArray[np.int64]]]]


class Piece(NamedTuple):
    """Tokens of a sequence, by its number."""

    sequence: int
    tokens: NDArray[np.int64]


class Runs(Protocol):
    """A model, as those need it that say its tokens.

    ``together(pieces, parts, last)``: logits behind pieces of sequences, or behind the last token of each.
    ``best(rows)``: the best tokens on a GPU, and a function that waits for them; with it a step begins before
    the tokens that it goes on from have arrived on the host.
    """

    config: Config
    best: Best | None

    @property
    def vocabulary(self) -> int: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    def cache(self, positions: int, batch: int = 1) -> Cache: ...
    def together(self, pieces: list[Piece], parts: Sequence[Any], last: bool) -> Any: ...


def tokens_of(pieces: Sequence[Piece]) -> Any:
    """The tokens of pieces, one after the other, on their device."""
    tokens = [piece.tokens for piece in pieces]
    return tokens[0] if len(tokens) == 1 else namespace(tokens[0]).concatenate(tokens)


def is_batch(tokens: Any) -> bool:
    """True for several sequences: a list of them, or an array of two axes."""
    if hasattr(tokens, "ndim"):
        return bool(tokens.ndim == 2)
    return bool(len(tokens)) and all(isinstance(one, Sequence) or getattr(one, "ndim", 0) for one in tokens)


def several_of(call: str, tokens: Any) -> list[Any]:
    """The sequences of a batch, which lie on the host."""
    if not is_host(tokens) or any(not is_host(one) for one in tokens):
        raise ShapeError(
            f"{call}: several sequences on a GPU; lists and NumPy's arrays are taken together; pass .get()"
        )
    return list(tokens)


def checked(call: str, tokens: Any, vocabulary: int, context: int) -> NDArray[np.int64]:
    """The tokens of a sequence as numbers, if a model of that many tokens and positions can run them."""
    numbers = np.zeros((0, 0)) if is_batch(tokens) else np.asarray(to_host(tokens))
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


def cut(tokens: Sequence[int], begin: Sequence[int], length: int) -> list[list[int]]:
    """Pieces of one length, each with the beginning of a text in the place of its first tokens.

    What is left over is not in them, but a text that is shorter is a piece.
    """
    stops = range(min(length, len(tokens)), len(tokens) + 1, length)
    return [[*begin, *tokens[stop - min(length, len(tokens)) + len(begin) : stop]] for stop in stops]


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


def beside(tokens: Any, x: Any) -> Any:
    """An array on the side of the tokens: the host, unless these are CuPy's."""
    return to_host(x) if is_host(tokens) else x
