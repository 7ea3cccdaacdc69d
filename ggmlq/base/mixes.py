"""llama.cpp's mixes of types (q4_K_M and the like) as a table: a base type, and rules for some tensors.

For each part of a model the first rule with a true condition counts; without one the tensor gets the base
type. A test compares every mix with libllama.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import ConvertError


class At(NamedTuple):
    """The facts about a tensor and its model that the rules of mixes examine."""

    layer: int  # which of the tensors of its part, or its layer in a model with experts
    layers: int
    gqa: int  # query heads a key head
    experts: int
    imatrix: bool  # whether there is an importance matrix
    falcon: bool


Condition = Callable[[At], bool]
Rule = tuple[str, Condition]


def always(at: At) -> bool:
    return True


def first_eighth(at: At) -> bool:
    return at.layer < at.layers // 8


def first_sixteenth(at: At) -> bool:
    return at.layer < at.layers // 16


def more_bits(at: At) -> bool:
    """True in the first and the last eighth of the layers, and in every third layer between."""
    eighth = at.layers // 8
    return first_eighth(at) or at.layer >= 7 * at.layers // 8 or (at.layer - eighth) % 3 == 2


def middle(at: At) -> bool:
    return at.layers // 8 <= at.layer < 7 * at.layers // 8


def shared(at: At) -> bool:
    """True for few key heads: their tensors are small, and more bits for them are cheap."""
    return at.gqa >= 4


def eight(at: At) -> bool:
    return at.experts == 8


def bare(at: At) -> bool:
    return not at.imatrix


def below(n: int) -> Condition:
    return lambda at: at.layer < n


def both(*conditions: Condition) -> Condition:
    return lambda at: all(condition(at) for condition in conditions)


def either(*conditions: Condition) -> Condition:
    return lambda at: any(condition(at) for condition in conditions)


def falcon(at: At) -> bool:
    return at.falcon


def other(at: At) -> bool:
    return not at.falcon


@dataclass(frozen=True)
class Mix:
    """One mix: a base type, and rules for parts of a model, which convert/rules.py finds by their names."""

    name: str
    number: int  # general.file_type
    base: str
    output: str = "q6_K"
    embedding: str | None = None
    v: tuple[Rule, ...] = ()
    k: tuple[Rule, ...] = ()
    q: tuple[Rule, ...] = ()
    attention: tuple[Rule, ...] = ()  # attn_output
    down: tuple[Rule, ...] = ()
    gate: tuple[Rule, ...] = ()
    up: tuple[Rule, ...] = ()
    stacked: str | None = None  # matrices of experts, whatever their part
    small: bool = False  # of about two bits: no more for eight experts or 80 layers than its rules say
    wants_imatrix: tuple[str, ...] = ()  # types that are refused without, besides those that always are


def _small(name: str, number: int, base: str, more: str, embedding: str, attention: tuple[Rule, ...]) -> Mix:
    """The mixes of one and two bits."""
    return Mix(
        name, number, base, output="q5_K", embedding=embedding, small=True,
        v=(("q4_K", either(shared, lambda at: at.experts >= 4)), (more, always)),
        k=(("q4_K", eight),),
        attention=(("q5_K", eight), *attention),
        down=((more, first_eighth),),
    )  # fmt: skip


_EIGHT = ("q5_K", both(eight, other))  # attn_output of a model with eight experts
_MIDDLE = (("iq3_xxs", middle),)
_V5 = (("q5_K", shared),)
_DOWN5 = (("q5_K", both(first_eighth, bare)),)

MIXES = [
    Mix("q4_0", 2, "q4_0", down=(("q4_1", both(first_eighth, lambda at: at.imatrix)),)),
    Mix("q4_1", 3, "q4_1"),
    Mix("q5_0", 8, "q5_0", down=(("q5_1", both(first_eighth, lambda at: at.imatrix)),)),
    Mix("q5_1", 9, "q5_1"),
    Mix("q8_0", 7, "q8_0", output="q8_0"),
    Mix("q2_K", 10, "q2_K", v=(("q4_K", shared), ("q3_K", always)), down=(("q3_K", always),),
        attention=(_EIGHT, ("q3_K", both(other, lambda at: not eight(at))))),
    Mix("q2_K_S", 21, "q2_K", v=(("q4_K", shared),), down=(("q4_K", first_eighth),), wants_imatrix=("q2_K",)),
    Mix("q3_K_S", 11, "q3_K", attention=(_EIGHT,)),
    Mix("q3_K_M", 12, "q3_K", v=(("q5_K", below(2)), ("q4_K", always)), attention=(_EIGHT, ("q4_K", other)),
        down=(("q5_K", first_sixteenth), ("q4_K", either(other, more_bits)))),
    Mix("q3_K_L", 13, "q3_K", v=(("q5_K", always),), down=(("q4_K", falcon), ("q5_K", always)),
        attention=(("q4_K", falcon), ("q5_K", lambda at: not eight(at)))),
    Mix("q4_K_S", 14, "q4_K", v=(("q5_K", below(4)),), down=(("q5_K", both(other, first_eighth)),),
        attention=(_EIGHT,)),
    Mix("q4_K_M", 15, "q4_K", v=(("q6_K", more_bits),), attention=(_EIGHT,),
        down=(("q6_K", both(falcon, first_sixteenth)), ("q5_K", both(falcon, more_bits)),
              ("q6_K", both(other, more_bits)))),
    Mix("q5_K_S", 16, "q5_K"),
    Mix("q5_K_M", 17, "q5_K", v=(("q6_K", more_bits),), down=(("q6_K", more_bits),)),
    Mix("q6_K", 18, "q6_K"),
    Mix("tq1_0", 36, "tq1_0", embedding="q4_K"),
    Mix("tq2_0", 37, "tq2_0", embedding="q4_K"),
    Mix("mxfp4_moe", 38, "q8_0", output="q8_0", stacked="mxfp4"),
    Mix("iq4_nl", 25, "iq4_nl", v=_V5, attention=(_EIGHT,), down=_DOWN5),
    Mix("iq4_xs", 30, "iq4_xs", v=_V5, attention=(_EIGHT,), down=_DOWN5),
    Mix("iq3_xs", 22, "iq3_s", v=(("q4_K", shared),), k=(("iq3_xxs", always),), q=(("iq3_xxs", always),),
        attention=(_EIGHT,), gate=_MIDDLE, up=_MIDDLE),
    Mix("iq3_s", 26, "iq3_s", v=(("q4_K", shared),), attention=(_EIGHT,)),
    Mix("iq3_m", 27, "iq3_s", v=(("q4_K", always),), attention=(_EIGHT, ("q4_K", other)),
        down=(("q4_K", either(first_eighth, both(eight, more_bits))),)),
    Mix("iq3_xxs", 23, "iq3_xxs", output="q5_K", embedding="iq3_s", k=(("iq2_s", always),),
        v=(("q4_K", shared), ("iq3_s", bare)), q=(("iq2_s", always),),
        attention=(_EIGHT, ("iq3_s", both(other, lambda at: not eight(at)))),
        down=(("q4_K", both(bare, first_eighth)), ("q3_K", bare))),
    _small("iq2_xxs", 19, "iq2_xxs", "q2_K", "q2_K", ()),
    _small("iq2_xs", 20, "iq2_xs", "q2_K", "q2_K", ()),
    _small("iq2_s", 28, "iq2_xs", "iq3_s", "iq3_s", (("iq3_s", always),)),
    _small("iq2_m", 29, "iq2_s", "iq3_s", "iq3_s", (("iq3_s", always),)),
    _small("iq1_s", 24, "iq1_s", "q2_K", "q2_K", (("iq2_xxs", always),)),
    _small("iq1_m", 31, "iq1_m", "q2_K", "q2_K", (("iq2_xxs", always),)),
]  # fmt: skip

# Words of other programs for bits of a weight, and the type that has them.
WORDS = {
    f"{before}{bits}{after}": name
    for bits, name in ((2, "q2_K"), (3, "q3_K"), (4, "q4_0"), (5, "q5_0"), (6, "q6_K"), (8, "q8_0"))
    for before, after in (("int", ""), ("uint", ""), ("w", ""), ("", "bit"), ("", "-bit"), ("", "bits"))
} | {"fp4": "mxfp4", "nf4": "iq4_nl", "fp8": "q8_0", "half": "f16", "float": "f32"}
BY_NAME = {mix.name.lower(): mix for mix in MIXES}
ALIASES = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m", "mxfp4": "mxfp4_moe"}  # llama.cpp's own


# --- general.file_type by name: llama.cpp's number for what most of a file has ------------------

FILE_TYPE_KEY = "general.file_type"
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

FILE_TYPE_NAMES = {mix.number: mix.name for mix in MIXES}
FILE_TYPE_NAMES |= {number: name for name, number in FILE_TYPES.items() if number not in FILE_TYPE_NAMES}
_FILE_TYPE_NUMBERS = {name.lower(): number for number, name in FILE_TYPE_NAMES.items()}
_FILE_TYPE_NUMBERS |= {short: _FILE_TYPE_NUMBERS[long] for short, long in ALIASES.items()}


def file_type_number(request: str, text: str) -> int:
    """A file type's number from its name in any case, or from the number."""
    if text.strip().isdecimal() and len(text) < 10:
        return int(text)
    low = text.strip().lower()
    for prefix in PREFIXES:
        low = low.removeprefix(prefix)
    if low not in _FILE_TYPE_NUMBERS:
        near = difflib.get_close_matches(low, _FILE_TYPE_NUMBERS, 3)
        way = (
            f"did you mean {', '.join(near)}?" if near else f"they are {', '.join(FILE_TYPE_NAMES.values())}"
        )
        raise ConvertError(f"{request}: {text!r:.80} is no file type of llama.cpp's; {way}")
    return _FILE_TYPE_NUMBERS[low]


def file_type_name(value: object) -> str | None:
    """The name of a file type's number; None for a number without meaning."""
    return FILE_TYPE_NAMES.get(value) if isinstance(value, int) and not isinstance(value, bool) else None
