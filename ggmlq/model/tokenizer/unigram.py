"""SentencePiece's tokens: neighbours joined by score; or unigram, the path with the highest sum of scores.

The text is normalized first, by a table in the file: ``precompiled_charsmap`` is a double array over bytes,
whose leaves are places in a list of replacements. An entry of it has 32 bits:

    bits 10…30  base of the children, times 256 if bit 9 is set    bit 8  a leaf follows    bits 0…7  the byte
    a leaf has bit 31, and its other bits are a place in the replacements
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np

from ...errors import GGUFError
from .pairs import joined
from .vocabulary import NORMAL, UNUSED, USER_DEFINED, Prefixes, Vocabulary, flag, listed

# --- SentencePiece: neighbours joined by the score of the token that both make ---------------

SPACE = "▁"  # stands for a space in tokens


def pieces_of(v: Vocabulary, text: str) -> list[int]:
    """The tokens of a text: the pair of the best score is joined, then the next, while there is one."""

    def rank(left: str, right: str) -> float | None:
        number = v.numbers.get(left + right)
        return None if number is None else -v.scores[number]

    parts = joined(list(text.replace(" ", SPACE)), rank)
    return [number for part in parts for number in _numbers(v, part)]


def _numbers(v: Vocabulary, part: str) -> list[int]:
    """The token of a part, or those of its bytes."""
    if part in v.numbers:
        return [v.numbers[part]]
    return [v.numbers.get(f"<0x{byte:02X}>", v.numbers.get(chr(byte), v.unknown)) for byte in part.encode()]


# --- Unigram: the path of the highest sum of scores ------------------------------------------

UNKNOWN_PENALTY = 10.0  # below the lowest score
LONGEST = 64  # characters that a replacement is for
MOST_REPLACED = 256  # bytes of a replacement; the longest of Unicode's own has 33


class Unigram:
    """The tokenizer of a unigram model: its tokens by their text, and the normalization."""

    def __init__(self, v: Vocabulary, metadata: Mapping[str, Any]) -> None:
        self._v = v
        normal = [score for score, kind in zip(v.scores, v.kinds, strict=True) if kind == NORMAL]
        self._unknown = min(normal, default=0.0) - UNKNOWN_PENALTY
        kinds = (NORMAL, USER_DEFINED, UNUSED)
        self._tokens = {t: n for n, (t, k) in enumerate(zip(v.tokens, v.kinds, strict=True)) if k in kinds}
        self._known = Prefixes(self._tokens)
        self._whole = Prefixes(v.tokens[n] for n in self._tokens.values() if v.kinds[n] == USER_DEFINED)
        self._prefix = flag(metadata, "add_space_prefix", False)
        self._merge = flag(metadata, "remove_extra_whitespaces", False)
        self._table, self._replacements = _charsmap(metadata)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text without special ones."""
        text = self._normalized(text)
        best: list[tuple[float, int, int]] = [(0.0, 0, 0)] + [(-math.inf, 0, 0)] * len(text)
        for start in range(len(text)):
            score = best[start][0]
            end = 0
            for token in self._known.at(text, start):  # the shortest comes last
                number, end = self._tokens[token], start + len(token)
                sum_ = score + (0.0 if self._v.kinds[number] == USER_DEFINED else self._v.scores[number])
                if sum_ > best[end][0]:
                    best[end] = sum_, number, start
            if end != start + 1 and score + self._unknown > best[start + 1][0]:
                best[start + 1] = score + self._unknown, self._v.unknown, start
        numbers: list[int] = []
        at = len(text)
        while at:
            _, number, start = best[at]
            if not (numbers and numbers[-1] == number == self._v.unknown):  # one for several in a row
                numbers.append(number)
            at = start
        return numbers[::-1]

    def _normalized(self, text: str) -> str:
        """The text with replacements, spaces as ▁, one before the first word and, or, one for several."""
        pieces: list[str] = []
        inside, first, at = False, True, 0
        while at < len(text):
            part, length = self._replaced(text, at)
            at += length
            for letter in part:
                if letter != " ":
                    if not inside and ((self._prefix and first) or self._merge):
                        pieces.append(SPACE)
                        first = False
                    inside = True
                    pieces.append(letter)
                else:
                    inside = False
                    if not self._merge:
                        pieces.append(SPACE)
        return "".join(pieces)

    def _replaced(self, text: str, at: int) -> tuple[str, int]:
        """The replacement at a place of a text, and the number of characters that it is for."""
        for whole in self._whole.at(text, at):
            return whole, len(whole)
        found_at, found_length = -1, 0
        node, length = self._base(0), 0
        for length_in_text, letter in enumerate(text[at : at + LONGEST], 1):
            for byte in letter.encode():
                node ^= byte
                if not byte or node >= len(self._table) or self._table[node] & 0x800000FF != byte:
                    node = -1
                    break
                leaf = self._table[node] >> 8 & 1
                node ^= self._base(node)
                length = length_in_text
                if leaf and node < len(self._table):
                    found_at, found_length = self._table[node] & 0x7FFFFFFF, length
            if node < 0:
                break
        if found_at < 0 or not self._table:
            return text[at], 1
        end = self._replacements.find(b"\0", found_at, found_at + MOST_REPLACED + 1)
        if end < 0:
            raise GGUFError(
                f"tokenizer: the replacement at {found_at:,} of tokenizer.ggml.precompiled_charsmap has no "
                f"end within {MOST_REPLACED} bytes; each is a short text that ends with a 0; the file is "
                "damaged; pass numbers of tokens"
            )
        return self._replacements[found_at:end].decode("utf-8", "replace"), found_length

    def _base(self, node: int) -> int:
        if node >= len(self._table):
            return 0
        entry = self._table[node]
        return int(entry >> 10 << ((entry & 1 << 9) >> 6))


def _charsmap(metadata: Mapping[str, Any]) -> tuple[list[int], bytes]:
    """The table of the normalization and its replacements; of a file without one both are empty."""
    value = metadata.get("tokenizer.ggml.precompiled_charsmap")
    if value is None or len(value := listed(metadata, "precompiled_charsmap", Integral)) < 4:
        return [], b""
    data = np.array(value).astype(np.uint8).tobytes()
    size = int.from_bytes(data[:4], "little") // 4 * 4
    if len(data) < 4 + size:
        raise GGUFError(
            f"tokenizer: tokenizer.ggml.precompiled_charsmap has {len(data):,} bytes and a table of "
            f"{size:,}; the file is damaged; pass numbers of tokens"
        )
    return np.frombuffer(data[4 : 4 + size], "<u4").tolist(), data[4 + size :]
