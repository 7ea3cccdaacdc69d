"""Unigram: the path through a text whose tokens have the highest sum of scores (Viterbi's algorithm).

The text is normalized first, by a table in the file: ``precompiled_charsmap`` is a double array over bytes,
whose leaves are places in a list of replacements. An entry of it has 32 bits:

    bits 10…30  base of the children, times 256 if bit 9 is set    bit 8  a leaf follows    bits 0…7  the byte
    a leaf has bit 31, and its other bits are a place in the replacements
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .sentence import SPACE
from .vocabulary import NORMAL, UNUSED, USER_DEFINED, Vocabulary

UNKNOWN_PENALTY = 10.0  # below the lowest score
LONGEST = 64  # characters that a replacement is for


class Unigram:
    """The tokenizer of a unigram model: its tokens by their text, and the normalization."""

    def __init__(self, v: Vocabulary, metadata: Mapping[str, Any]) -> None:
        self._v = v
        normal = [score for score, kind in zip(v.scores, v.kinds, strict=False) if kind == NORMAL]
        self._unknown = min(normal, default=0.0) - UNKNOWN_PENALTY
        kinds = (NORMAL, USER_DEFINED, UNUSED)
        self._tokens = {t: n for n, (t, k) in enumerate(zip(v.tokens, v.kinds, strict=False)) if k in kinds}
        self._longest = max(map(len, self._tokens), default=0)
        self._whole = sorted((v.tokens[n] for n in self._tokens.values() if v.kinds[n] == USER_DEFINED),
                             key=len, reverse=True)  # fmt: skip
        self._prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", False))
        self._merge = bool(metadata.get("tokenizer.ggml.remove_extra_whitespaces", False))
        raw = metadata.get("tokenizer.ggml.precompiled_charsmap")
        raw = b"" if raw is None else np.asarray(list(raw)).astype(np.uint8).tobytes()
        size = int.from_bytes(raw[:4], "little")
        self._table = np.frombuffer(raw[4 : 4 + size // 4 * 4], "<u4").tolist()
        self._replacements = raw[4 + size :]

    def encode(self, text: str) -> list[int]:
        """The tokens of a text without special ones."""
        text = self._normalized(text)
        best: list[tuple[float, int, int]] = [(0.0, 0, 0)] + [(-math.inf, 0, 0)] * len(text)
        for start in range(len(text)):
            score = best[start][0]
            for end in range(start + 1, min(start + self._longest, len(text)) + 1):
                number = self._tokens.get(text[start:end])
                if number is not None:
                    user = self._v.kinds[number] == USER_DEFINED
                    sum_ = score + (0.0 if user else self._v.scores[number])
                    if sum_ > best[end][0]:
                        best[end] = sum_, number, start
            if text[start] not in self._tokens and score + self._unknown > best[start + 1][0]:
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
        for whole in self._whole:
            if text.startswith(whole, at):
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
        end = self._replacements.find(b"\0", found_at)
        return self._replacements[found_at:end].decode("utf-8", "replace"), found_length

    def _base(self, node: int) -> int:
        if node >= len(self._table):
            return 0
        entry = self._table[node]
        return int(entry >> 10 << ((entry & 1 << 9) >> 6))
