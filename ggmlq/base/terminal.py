"""The abilities of a terminal: its width, and colours.

A pipe or a file gets plain text in full. NO_COLOR keeps colours away, FORCE_COLOR asks for them anywhere
(https://no-color.org, https://force-color.org); any value but an empty one counts, and NO_COLOR wins.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TextIO

from . import text
from .system import WINDOWS

STYLES = {"head": "1", "good": "32", "bad": "1;31", "note": "33", "faint": "2"}
LEAST = 40  # characters: a narrower terminal is not served better by cutting more


def is_terminal(stream: TextIO | None) -> bool:
    """True for a stream that is a terminal; a process may have no stream at all."""
    try:
        return stream is not None and stream.isatty()
    except (AttributeError, ValueError):  # one that only takes text, or a closed one
        return False


def colours(stream: TextIO | None = None) -> bool:
    """True where a stream takes colours; the default is the stream of results."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    stream = sys.stdout if stream is None else stream
    understood = not WINDOWS or "WT_SESSION" in os.environ  # the old console of Windows shows the codes
    return is_terminal(stream) and os.environ.get("TERM") != "dumb" and understood


def width(stream: TextIO | None = None) -> int | None:
    """Characters a line of a terminal; None where lines may be of any length."""
    if not is_terminal(sys.stdout if stream is None else stream):
        return None
    return max(LEAST, shutil.get_terminal_size().columns)


def paint(words: str, style: str, stream: TextIO | None = None) -> str:
    """Words in a style of ``STYLES``, if the stream takes colours. Escape text from files first."""
    return f"\033[{STYLES[style]}m{words}\033[0m" if words and colours(stream) else words


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table as :func:`ggmlq.base.text.table` makes it, no wider than the terminal, its header set apart."""
    first, *rest = text.table(header, rows, width()).split("\n")
    return "\n".join([paint(first, "head"), *rest])


def wrapped(words: str, indent: str = "") -> str:
    """Text broken into lines that fit the terminal; continued lines are indented further."""
    most = width()
    if most is None:
        return words
    return "\n".join(
        textwrap.fill(line, most, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        for line in words.split("\n")
    )
