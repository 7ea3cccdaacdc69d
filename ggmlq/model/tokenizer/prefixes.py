"""``Prefixes``: the tokens that a text goes on with at a place, found in sorted order.

All tokens that a text begins with begin each other, so they are a chain: the longest of them is found by
bisection, and each token knows the next shorter one that it begins with. A step takes no longer than the
longest token, and a vocabulary takes two numbers a token, where a tree of letters takes hundreds of bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from ...errors import GGUFError

LONGEST = 1024  # characters of a token that is looked for in a text; real ones have up to some 256


class Prefixes:
    """Tokens, to be found where a text goes on with them."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = sorted(set(tokens))
        self._longest = max(map(len, self._tokens), default=0)
        if self._longest > LONGEST:
            raise GGUFError(
                f"tokenizer: a token has {self._longest:,} characters; tokens that are looked for in a text "
                f"have at most {LONGEST:,}; the file is damaged; pass numbers of tokens"
            )
        self.first = frozenset(token[0] for token in self._tokens)  # letters that tokens begin with
        self._shorter = [-1] * len(self._tokens)  # by position: the longest other token that it begins with
        chain: list[int] = []
        for i, token in enumerate(self._tokens):
            while chain and not token.startswith(self._tokens[chain[-1]]):
                chain.pop()
            self._shorter[i] = chain[-1] if chain else -1
            chain.append(i)

    def at(self, text: str, start: int) -> Iterator[str]:
        """The tokens that a text goes on with at a place, the longest first."""
        if text[start] not in self.first:
            return
        i = bisect_right(self._tokens, text[start : start + self._longest]) - 1
        while i >= 0 and not text.startswith(self._tokens[i], start):
            i = self._shorter[i]
        while i >= 0:
            yield self._tokens[i]
            i = self._shorter[i]
