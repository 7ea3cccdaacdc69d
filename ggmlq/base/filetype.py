"""``general.file_type`` by name: llama.cpp's number for the type or mix that most of a file has."""

from __future__ import annotations

import difflib

from ..errors import ConvertError
from .mixes import ALIASES, MIXES

KEY = "general.file_type"
PREFIXES = ("llama_ftype_", "mostly_", "all_")  # gguf-py writes MOSTLY_Q4_K_M, llama.h LLAMA_FTYPE_…

# Numbers by the type of most tensors. Where llama.cpp has several mixes of a type this is
# the one that it takes the bare name for.
FILE_TYPES = {
    "f32": 0, "f16": 1, "bf16": 32,
    "q4_0": 2, "q4_1": 3, "q5_0": 8, "q5_1": 9, "q8_0": 7, "q1_0": 40, "q2_0": 41,
    "q2_K": 10, "q3_K": 12, "q4_K": 15, "q5_K": 17, "q6_K": 18, "tq1_0": 36, "tq2_0": 37,
    "iq1_s": 24, "iq1_m": 31, "iq2_xxs": 19, "iq2_xs": 20, "iq2_s": 29, "iq3_xxs": 23, "iq3_s": 26,
    "iq4_nl": 25, "iq4_xs": 30, "mxfp4": 38, "nvfp4": 39,
}  # fmt: skip

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
