"""``Stop``: the tokens, and the texts among the tokens so far, after which a sequence ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from numbers import Integral
from typing import Any

from ..base.text import short
from ..errors import DTypeError
from .tokenizer import Tokenizer

Stops = Collection[int] | Collection[str] | str


class Stop:
    """The end of sequences, which are told apart by their numbers.

    ``tokenizer``: asked for when there is a text to look for. Texts are looked for among bytes, in which
    control tokens have their names.
    """

    def __init__(self, stop: Stops, tokenizer: Callable[[], Tokenizer]) -> None:
        items: list[Any] = (
            [stop] if isinstance(stop, str) else list(stop) if isinstance(stop, Iterable) else [None]
        )
        if not all(isinstance(item, Integral) or (isinstance(item, str) and item) for item in items):
            raise DTypeError(
                f"generate: stop={short(stop)}; it is a text, or a collection of texts or of tokens, and no "
                'text is empty; pass stop=m.tokenizer.ends or stop="User:"'
            )
        self._tokens = frozenset(int(item) for item in items if not isinstance(item, str))
        self._texts = [item.encode() for item in items if isinstance(item, str)]
        self._piece = tokenizer().piece if self._texts else None
        self._longest = max(map(len, self._texts), default=0)
        self._said: dict[int, bytes] = {}  # by sequence: as much as a text may begin in

    def __call__(self, sequence: int, token: int) -> bool:
        """True for the token with which a sequence ends; each token of it comes here once, in order."""
        if self._piece is not None:
            said = self._said.get(sequence, b"") + self._piece(token, True)
            self._said[sequence] = said[len(said) - min(len(said), self._longest - 1) :]
            if any(text in said for text in self._texts):
                return True
        return token in self._tokens
