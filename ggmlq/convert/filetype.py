"""``general.file_type`` by name: llama.cpp's number for the type or mix that most of a file has."""

from __future__ import annotations

import difflib

from ..base.mixes import ALIASES, MIXES
from ..errors import ConvertError
from .rules import FILE_TYPES

KEY = "general.file_type"
PREFIXES = ("llama_ftype_", "mostly_", "all_")  # gguf-py writes MOSTLY_Q4_K_M, llama.h LLAMA_FTYPE_…

NAMES = {mix.number: mix.name for mix in MIXES}
NAMES |= {number: name for name, number in FILE_TYPES.items() if number not in NAMES}
_NUMBERS = {name.lower(): number for number, name in NAMES.items()}
_NUMBERS |= {short: _NUMBERS[long] for short, long in ALIASES.items()}


def number(request: str, text: str) -> int:
    """A file type's number from its name in any case, or from the number."""
    if text.strip().isdecimal() and len(text) < 10:
        return int(text)
    low = text.strip().lower()
    for prefix in PREFIXES:
        low = low.removeprefix(prefix)
    if low not in _NUMBERS:
        near = difflib.get_close_matches(low, _NUMBERS, 3)
        way = f"did you mean {', '.join(near)}?" if near else f"they are {', '.join(NAMES.values())}"
        raise ConvertError(f"{request}: {text!r:.80} is no file type of llama.cpp's; {way}")
    return _NUMBERS[low]


def name(value: object) -> str | None:
    """The name of a file type's number; None for a number without meaning."""
    return NAMES.get(value) if isinstance(value, int) and not isinstance(value, bool) else None
