"""Words whose rows are multiplied by a number when they are read, as transformers has them for Gemma.

The number is of the words alone: the output, which has the same weights, is not multiplied.
"""

from __future__ import annotations

from typing import Any

import torch

import ggmlq as gq

from .modules import Embedding


class ScaledEmbedding(Embedding):
    """An Embedding with the number ``embed_scale`` of a module of floats, or of another one of these."""

    def __init__(self, q: gq.QuantArray, dtype: torch.dtype, like: Any) -> None:
        super().__init__(q, dtype)
        self.scalar_embed_scale = float(like.scalar_embed_scale)
        old = like.embed_scale
        factor = torch.tensor(self.scalar_embed_scale, dtype=old.dtype, device=self.weight.device)
        self.register_buffer("embed_scale", factor, persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows ``ids`` times the number, which is rounded to their dtype first."""
        rows = super().forward(ids)
        return rows * self.embed_scale.to(rows.dtype)  # type: ignore[operator, union-attr]


def is_scaled(part: Any) -> bool:
    """True for words of transformers that are multiplied by ``embed_scale``, packed or not."""
    words = isinstance(part, torch.nn.Embedding | ScaledEmbedding)
    return words and isinstance(getattr(part, "scalar_embed_scale", None), float | int)
