"""The table of formats: look-up by name, id or Format, the listing, and the error where there is none."""

from __future__ import annotations

import difflib

import numpy as np

from ..base.mixes import BY_NAME, WORDS
from ..base.named import Catalogue
from ..base.text import html_table
from ..errors import FormatAttributeError, FormatError
from .format import Format

# Ids that ggml once used and then dropped: name, and what to do with such data.
REMOVED = {
    4: ("q4_2", "an early 16-wide 4-bit type; requantize the model from its floats to q4_0 or q4_K"),
    5: ("q4_3", "an early 16-wide 4-bit type; requantize the model from its floats to q4_1 or q4_K"),
    31: ("q4_0_4_4", "q4_0 interleaved for Arm; requantize to q4_0, ggml interleaves it in memory"),
    32: ("q4_0_4_8", "q4_0 interleaved for Arm; requantize to q4_0, ggml interleaves it in memory"),
    33: ("q4_0_8_8", "q4_0 interleaved for Arm; requantize to q4_0, ggml interleaves it in memory"),
    36: ("iq4_nl_4_4", "interleaved iq4_nl; requantize to iq4_nl, ggml interleaves it in memory"),
    37: ("iq4_nl_4_8", "interleaved iq4_nl; requantize to iq4_nl, ggml interleaves it in memory"),
    38: ("iq4_nl_8_8", "interleaved iq4_nl; requantize to iq4_nl, ggml interleaves it in memory"),
}


class Formats(Catalogue[Format]):
    """All formats by name, id or Format; iterates over canonical names in the order of ids.

    ``gq.formats.q4_K`` is ``gq.formats["q4_K"]``.
    """

    _no_attribute = FormatAttributeError

    def __init__(self, formats: list[Format]) -> None:
        self._canonical = {f.name: f for f in formats}
        self._lower = {f.name.lower(): f for f in formats}
        self._ids = {f.id: f for f in formats}
        if not len(self._lower) == len(self._ids) == len(formats):
            raise ValueError("two formats share a name or an id")

    def __getitem__(self, key: object) -> Format:
        fmt = self._found(key)
        if fmt is not None:
            return fmt
        if isinstance(key, str | int | np.integer) and not isinstance(key, bool):
            raise FormatError(self._why_not(key))
        raise FormatError(
            f"formats[{key!r:.80}]: got {type(key).__name__}; "
            "a format is asked for by its name ('q4_0'), its ggml id (2) or a Format"
        )

    def __contains__(self, key: object) -> bool:
        """True for what names a format: without an error, whose near names take a millisecond."""
        return self._found(key) is not None

    def _found(self, key: object) -> Format | None:
        if isinstance(key, Format):
            return key
        if isinstance(key, str):
            return self._lower.get(key.lower())
        if isinstance(key, int | np.integer) and not isinstance(key, bool):
            return self._ids.get(int(key))
        return None

    def _repr_html_(self) -> str:
        """For a notebook: name, id, size and what can be done with each."""
        rows = [
            [f.name, f.id, f"{f.bits_per_weight:g}", f.block_size, "yes" if f.can_quantize else "no"]
            for f in self.values()
        ]
        header = ("format", "id", "bits a weight", "weights a block", "can be encoded")
        return html_table(header, rows, f"{len(self)} ggml formats")

    def __repr__(self) -> str:
        return f"<{len(self)} ggml formats: {', '.join(self)}>"

    def _why_not(self, key: str | int | np.integer) -> str:
        for id_, (name, advice) in REMOVED.items():
            if key == id_ or (isinstance(key, str) and key.lower() == name):
                return f"format {key!r}: ggml removed type {id_} ({name}), {advice}"
        if isinstance(key, str):
            low = key.lower()
            if low.isdecimal():
                return f"format {key!r}: a ggml id is an int; ask for formats[{int(low)}]"
            if (mix := BY_NAME.get(low)) is not None:
                return (
                    f"format {key!r}: a mix of types for whole models, most of it {mix.base}, and an array "
                    f"has one type; `ggmlq quantize` and `ggmlq convert` take --type {mix.name}, in Python "
                    "gq.convert.quantize and gq.checkpoint.to_gguf take the name"
                )
            known_names = {name: mix.name for name, mix in BY_NAME.items()}
            known_names |= {name: fmt.name for name, fmt in self._lower.items()}
            near = [name for name in self._lower if low and (name.startswith(low) or name in low)]
            near += difflib.get_close_matches(low, known_names, n=3, cutoff=0.5)
            names = WORDS.get(low) or ", ".join(known_names[name] for name in dict.fromkeys(near))
            way = f"did you mean {names}?" if names else f"the types are {', '.join(self)}"
            return f"format {key!r}: ggml has no such type; {way}"
        known = f"{min(self._ids)} to {max(self._ids)}"
        return (
            f"format id {key}: ggml has no such type; ggmlq knows the ids {known}, see `ggmlq formats`; "
            f"{claimants(int(key))}"
        )


# --- Ids of types that forks of llama.cpp have given out, for the error about an id that ggml does not
# have
#
# A file does not say whose types it has. The ids of ik_llama.cpp stand in its gguf-py; 43 and up, the next
# that ggml will give out, have been taken by many, each for types of its own.

IK = "ik_llama.cpp"
TURBO = "forks with TurboQuant"
CLAIMED = {
    43: f"BPOSIT8 (invar), TQ3_0, TURBO2_0 or TURBO4 ({TURBO}), IQ1_XS (unsloth), T5B, NF4DQ, EOQ",
    44: f"TURBO3_0 or TQ3_1S ({TURBO}), IQ1_XXS (unsloth)",
    45: f"TQ3_1S or TQ4_1S ({TURBO})",
    46: f"TQ4_1S or Q1_0 ({TURBO})",
    47: f"TURBO4_0 ({TURBO})",
    48: f"Q8_CR ({TURBO})",
    49: f"Q5_CR ({TURBO})",
}
OF_IK = {
    97: "Q8_0_X4", 98: "Q8_1_X4", 99: "Q8_2_X4", 133: "Q6_0", 134: "IQ1_BN", 135: "IQ2_BN", 136: "Q8_K64",
    137: "IQ2_K", 138: "IQ3_K", 139: "IQ4_K", 140: "IQ5_K", 141: "IQ6_K", 144: "IQ4_KS", 145: "IQ2_KS",
    146: "IQ4_KSS", 147: "Q8_K16", 148: "Q8_K32", 149: "Q8_KR8", 150: "Q8_K128", 151: "Q8_KV", 152: "IQ5_KS",
    153: "IQ2_KT", 154: "IQ3_KT", 155: "IQ4_KT", 156: "IQ3_KS", 157: "IQ2_KL", 158: "IQ1_KT", 202: "Q4_0_R8",
    206: "Q5_0_R4", 208: "Q8_0_R8", 210: "Q2_K_R4", 211: "Q3_K_R4", 212: "Q4_K_R4", 213: "Q5_K_R4",
    214: "Q6_K_R4", 216: "IQ2_XXS_R4", 217: "IQ2_XS_R4", 218: "IQ3_XXS_R4", 219: "IQ1_S_R4", 220: "IQ4_NL_R4",
    221: "IQ3_S_R4", 222: "IQ2_S_R4", 223: "IQ4_XS_R8", 229: "IQ1_M_R4", 230: "BF16_R16", 233: "Q6_0_R4",
    335: "IQ2_BN_R4", 337: "IQ2_K_R4", 338: "IQ3_K_R4", 339: "IQ4_K_R4", 340: "IQ5_K_R4", 344: "IQ4_KS_R4",
    352: "IQ5_KS_R4", 398: "Q8_KV_R8", 399: "Q8_K_R8",
}  # fmt: skip


def claimants(number: int) -> str:
    """The end of an error: forks that use an id, and the way out."""
    way = "read the file with that program, or fetch one in a type of llama.cpp's own"
    if number in CLAIMED:
        return f"forks of llama.cpp use {number} for {CLAIMED[number]}; {way}"
    if number in OF_IK:
        return f"{IK}, a fork of llama.cpp, uses {number} for its {OF_IK[number]}; {way}"
    if min(CLAIMED) <= number <= max(OF_IK):
        return (
            f"forks of llama.cpp use numbers from {min(CLAIMED)} on for types of their own, {IK} those from "
            f"{min(OF_IK)} to {max(OF_IK)}; the name of the file or its page says which; {way}"
        )
    return "no program is known to use it; the file is damaged"
