r"""Splitting of a text into words, by expressions with classes of Unicode, which Python's ``re`` lacks.

A text is translated first: each character that is not ASCII becomes one that stands for its class, so that
``\p{L}`` is ``A-Za-z`` and one character more. Rules of one step that name other characters see the text as
it is. llama.cpp divides characters into the same classes: it knows no capitals beyond ASCII.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache

CLASSES = "LNPMS"
STANDS_FOR = {name: chr(0xE000 + i) for i, name in enumerate(CLASSES)}  # private characters
OTHER, WHITE = "\ue00f", "\x0b"
ASCII = {
    "L": "A-Za-z", "N": "0-9", "P": r"!-#%-*,-/:;?@\[-\]_{}", "M": "", "S": r"$+<=>\^`|~",
}  # fmt: skip
WHITESPACE = {0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}


class Classes(dict[int, str]):
    """A table for ``str.translate`` that fills itself: a character's class, ASCII as it is."""

    def __missing__(self, code: int) -> str:
        if code < 128:
            letter = chr(code)
        elif code in WHITESPACE:
            letter = WHITE
        else:
            letter = STANDS_FOR.get(unicodedata.category(chr(code))[0], OTHER)
        self[code] = letter
        return letter


class Whites(dict[int, str]):
    """A table that changes only whitespace beyond ASCII."""

    def __missing__(self, code: int) -> str:
        self[code] = letter = WHITE if code in WHITESPACE else chr(code)
        return letter


_classes, _whites = Classes(), Whites()


@cache
def compiled(rule: str) -> re.Pattern[str]:
    r"""A rule with ``\p{…}`` written out."""
    parts, inside, at = [], False, 0
    for match in re.finditer(r"\\p\{(\w)\w?\}|\\.|\[|\]", rule, re.DOTALL):
        parts.append(rule[at : match.start()])
        at, piece = match.end(), match.group()
        if match[1]:
            members = ASCII[match[1]] + STANDS_FOR[match[1]]
            parts.append(members if inside else f"[{members}]")
        else:
            inside = piece == "[" or (inside and piece != "]")
            parts.append(piece)
    return re.compile("".join(parts) + rule[at:], re.ASCII)


def splitter(steps: tuple[str, ...]) -> Callable[[str], list[str]]:
    """A function that cuts a text by rules, each applied to the pieces of the one before."""

    def split(text: str) -> list[str]:
        seen = {True: text.translate(_classes), False: text.translate(_whites)}
        ends = [len(text)]
        for step in steps:
            ends = list(_cut(compiled(step), seen["\\p{" in step], ends))
        return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    return split


def _cut(pattern: re.Pattern[str], text: str, ends: list[int]) -> Iterator[int]:
    """Ends of the pieces: matches, and what lies between them."""
    start = 0
    for end in ends:
        at = start
        for match in pattern.finditer(text[start:end]):
            first, last = start + match.start(), start + match.end()
            if first > at:
                yield first
            if last > first:
                yield last
            at = last
        if at < end:
            yield end
        start = end
