"""``general.file_type`` by name: llama.cpp's numbers for the types and mixes of whole files."""

from __future__ import annotations

FILE_TYPE = "general.file_type"

# Numbers that no file has any more (4, 5, 6: removed types; 33 to 35: repacked q4_0) are left out.
NAMES = {
    0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 7: "q8_0", 8: "q5_0", 9: "q5_1", 10: "q2_K", 11: "q3_K_S",
    12: "q3_K_M", 13: "q3_K_L", 14: "q4_K_S", 15: "q4_K_M", 16: "q5_K_S", 17: "q5_K_M", 18: "q6_K",
    19: "iq2_xxs", 20: "iq2_xs", 21: "q2_K_S", 22: "iq3_xs", 23: "iq3_xxs", 24: "iq1_s", 25: "iq4_nl",
    26: "iq3_s", 27: "iq3_m", 28: "iq2_s", 29: "iq2_m", 30: "iq4_xs", 31: "iq1_m", 32: "bf16", 36: "tq1_0",
    37: "tq2_0", 38: "mxfp4_moe", 39: "nvfp4", 40: "q1_0", 41: "q2_0",
}  # fmt: skip
GUESSED = 1024  # set by a loader that had to guess; never in a file

_NUMBERS = {name.lower(): number for number, name in NAMES.items()}
_NUMBERS |= {"q3_k": 12, "q4_k": 15, "q5_k": 17, "mxfp4": 38}  # llama.cpp's own short names


def number(name: str) -> int | None:
    """A file type by its name, in any case and also as gguf-py spells it: ``MOSTLY_Q4_K_M``, ``ALL_F32``."""
    low = name.strip().lower()
    for prefix in ("llama_ftype_", "mostly_", "all_"):
        low = low.removeprefix(prefix)
    return _NUMBERS.get(low)


def name(value: object) -> str | None:
    """The name of a number; None for one that means nothing."""
    return NAMES.get(value) if isinstance(value, int) and not isinstance(value, bool) else None
