"""Byte pairs: a text is cut into words, and the bytes of each are joined by the ranks of pairs."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

from ...errors import GGUFError
from . import words
from .rules import Rule, rule
from .vocabulary import Vocabulary, listed

REMEMBERED = 1 << 22  # characters of words and tokens of them that are remembered
A_WORD = 64  # what a word takes beside these


def _letters() -> list[str]:
    """The printable character that stands for each byte: itself, or one from U+0100 on."""
    plain = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    spare = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(spare)) for byte in range(256)]


LETTERS = _letters()
BYTES = {letter: byte for byte, letter in enumerate(LETTERS)}


class Pairs:
    """The joiner of byte pairs of a vocabulary."""

    def __init__(self, v: Vocabulary, metadata: Mapping[str, Any]) -> None:
        if metadata.get("tokenizer.ggml.merges") is None:
            raise GGUFError(
                "tokenizer: a vocabulary of byte pairs (gpt2) without tokenizer.ggml.merges; it cannot be "
                "joined; convert the model again"
            )
        self.rule: Rule = rule(v.pre)
        self._v = v
        self._split = words.splitter(self.rule.steps)
        self._ranks: dict[tuple[str, str], int] = {}
        for rank, merge in enumerate(listed(metadata, "merges", str)):
            at = merge.find(" ", 1)
            if at > 0:
                self._ranks.setdefault((merge[:at], merge[at + 1 :]), rank)
        self._memory: dict[str, list[int]] = {}
        self._remembered = 0

    def encode(self, text: str) -> list[int]:
        """The tokens of a text without special ones."""
        if not self.rule.as_bytes:
            text = text.replace(" ", "▁")
        return [number for word in self._split(text) for number in self._word(word)]

    def _word(self, word: str) -> list[int]:
        numbers = self._memory.get(word)
        if numbers is None:
            numbers = self._joined(word)
            size = len(word) + len(numbers) + A_WORD
            if self._remembered + size > REMEMBERED:
                self._memory, self._remembered = {}, 0
            if size <= REMEMBERED:
                self._memory[word] = numbers
                self._remembered += size
        return numbers

    def _joined(self, word: str) -> list[int]:
        letters = "".join(LETTERS[byte] for byte in word.encode()) if self.rule.as_bytes else word
        whole = self._v.numbers.get(letters)
        if whole is not None and (self.rule.whole_words or (self.rule.lines and not letters.strip("\n"))):
            return [whole]
        numbers: list[int] = []
        for part in joined(list(letters), self._ranks):
            numbers += [self._v.numbers[part]] if part in self._v.numbers else self._bytes(part)
        return numbers

    def _bytes(self, part: str) -> list[int]:
        """Tokens of single bytes; those that have none are left out, as llama.cpp does."""
        names = part if self.rule.as_bytes else [f"<0x{byte:02X}>" for byte in part.encode()]
        return [self._v.numbers[name] for name in names if name in self._v.numbers and name.isascii()]


def joined(parts: list[str], ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """Neighbours joined: the pair of the lowest rank first, of two equal ones the left."""
    after = [*range(1, len(parts)), -1]
    before = list(range(-1, len(parts) - 1))
    queue: list[tuple[int, int, int, str]] = []

    def offer(left: int, right: int) -> None:
        if left >= 0 and right >= 0 and (rank := ranks.get((parts[left], parts[right]))) is not None:
            heapq.heappush(queue, (rank, left, right, parts[left] + parts[right]))

    for right in range(1, len(parts)):
        offer(right - 1, right)
    while queue:
        _, left, right, text = heapq.heappop(queue)
        if not parts[left] or not parts[right] or parts[left] + parts[right] != text:
            continue
        parts[left], parts[right] = text, ""
        after[left] = after[right]
        if after[right] >= 0:
            before[after[right]] = left
        offer(before[left], left)
        offer(left, after[left])
    return [part for part in parts if part]
