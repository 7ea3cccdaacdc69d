"""Families of models: which parts of ``step.py`` follow each other in a layer, one file each.

family.py    the description of a family; a layer with an attention and a feed-forward part
llama.py     Llama, Mistral and Mixtral
qwen.py      Qwen2, Qwen3 and Qwen3 with experts
qwen_next.py Qwen3-Next, Qwen3.5 and later: the gated delta rule beside attention
gemma.py     Gemma 2 and 3
gemma4.py    Gemma 4
glm.py       GLM 4, and GLM 4.5 with experts
granite.py   Granite, dense, with experts, and with Mamba 2
gpt_oss.py   gpt-oss
lfm2.py      LFM2: short convolutions beside attention
nemotron.py  Nemotron-H: Mamba 2, attention and feed-forward parts, each a layer of its own
deepseek.py  DeepSeek 2 and 3
phi.py       Phi 3
"""

from __future__ import annotations

from ...base.text import short
from ...errors import UnsupportedError
from . import deepseek, gemma, gemma4, glm, gpt_oss, granite, lfm2, llama, nemotron, phi, qwen, qwen_next
from .family import Family

ALL = (llama, qwen, gemma, gemma4, gpt_oss, phi, deepseek, glm, granite, qwen_next, lfm2, nemotron)
FAMILIES: dict[str, Family] = {name: family for one in ALL for name, family in one.FAMILIES.items()}

__all__ = ["FAMILIES", "Family", "family_of"]


def family_of(architecture: object) -> Family:
    """The family of an architecture; an error that lists those that there are."""
    if not isinstance(architecture, str) or architecture not in FAMILIES:
        raise UnsupportedError(
            f"model.load: general.architecture is {short(architecture)}; there are {', '.join(FAMILIES)}; "
            "take one of these, or read its tensors with gq.open"
        )
    return FAMILIES[architecture]
