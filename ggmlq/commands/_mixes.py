"""llama.cpp's mixes as `ggmlq formats` lists them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..base.mixes import ALIASES, BY_NAME, MIXES, Mix
from ..base.text import table
from ..convert.rules import WANT_IMATRIX

# Parts of a model with rules of their own, and how tensors of them are called.
PARTS = {"v": "attn_v", "k": "attn_k", "q": "attn_q", "attention": "attn_output", "down": "ffn_down"}
ALL: Sequence[Mix] = MIXES
PARTS |= {"gate": "ffn_gate", "up": "ffn_up"}


def find(name: str) -> Mix | None:
    """The mix of a name, in any case, or by llama.cpp's short name."""
    low = name.lower()
    return BY_NAME.get(ALIASES.get(low, low))


def facts(mix: Mix) -> dict[str, Any]:
    """A mix as JSON."""
    others = {
        text: list(dict.fromkeys(fmt for fmt, _ in rules))
        for part, text in PARTS.items()
        if (rules := getattr(mix, part))
    }
    wanting = {*WANT_IMATRIX, *mix.wants_imatrix}
    return {
        "name": mix.name,
        "file_type": mix.number,
        "base": mix.base,
        "output": mix.output,
        "token_embd": mix.embedding or mix.base,
        "others": others | ({"experts": [mix.stacked]} if mix.stacked else {}),
        "needs_imatrix": bool({mix.base, *(kind for kinds in others.values() for kind in kinds)} & wanting),
    }


def listed(mixes: Sequence[Mix]) -> str:
    """A table of the mixes."""
    rows = []
    for mix in mixes:
        fact = facts(mix)
        others = "; ".join(f"{part} {', '.join(kinds)}" for part, kinds in fact["others"].items())
        needs = "required" if fact["needs_imatrix"] else ""
        rows.append([mix.name, mix.number, mix.base, mix.output, fact["token_embd"], needs, others])
    header = ["mix", "file type", "most", "output", "token_embd", "imatrix", "some or all of"]
    return table(header, rows)
