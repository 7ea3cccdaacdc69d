"""The scale of the scores of Gemma 2 and 3, which llama.cpp takes from their sizes: no file says it."""

from __future__ import annotations

LARGEST = {"gemma2": 46, "gemma3": 62}  # layers of the 27B models, whose scores have another scale


def score_columns(architecture: str, layers: int, width: int, heads: int, key_width: int) -> int:
    """The number by whose root llama.cpp divides scores, Hugging Face's ``query_pre_attn_scalar``."""
    return max(width // max(heads, 1), 1) if layers == LARGEST.get(architecture) else key_width
