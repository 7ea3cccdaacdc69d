"""The quality of a model on a text: its perplexity, and the distance of its shares from another model's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.progress import Progress
from ..errors import ShapeError
from .batch import cut
from .model import Model

STRETCH = 512  # tokens that are read together, as llama.cpp's tool does it
FEWEST = 4


def stretches(model: Model, text: str, length: int | None) -> list[list[int]]:
    """The tokens of a text in pieces of one length; what is left over is dropped, but for a short text."""
    tokens = model.tokenizer.encode(text)
    length = min(length or STRETCH, model.config.context)
    if len(tokens) < FEWEST or length < FEWEST:
        raise ShapeError(
            f"the text has {len(tokens)} tokens, stretches {length}; a measurement needs {FEWEST} or "
            "more; pass a longer text, or a larger --context"
        )
    return cut(tokens, model.tokenizer.beginning, length)


def measured(
    model: Model, against: Model | None, pieces: list[list[int]], bar: bool | None
) -> dict[str, Any]:
    """Perplexity; with another model KL, its largest values, and how often both have one best token."""
    losses: list[float] = []
    distances: list[float] = []
    same: list[bool] = []
    with Progress(len(pieces), "measuring", " stretches", bar) as progress:
        for piece in pieces:
            here = _rows(model, piece)
            losses += (-row[token] for row, token in zip(here, piece[len(piece) - len(here) :], strict=True))
            if against is not None:
                there = _rows(against, piece)
                distances += (np.exp(there) * (there - here)).sum(axis=-1).tolist()
                same += (here.argmax(axis=-1) == there.argmax(axis=-1)).tolist()
            progress.advance(1)
    loss = np.array(losses)
    facts: dict[str, Any] = {
        "stretches": len(pieces), "stretch": len(pieces[0]), "measured": len(losses),
        "perplexity": float(np.exp(loss.mean())),
        "error": float(np.exp(loss.mean()) * loss.std() / np.sqrt(max(len(loss) - 1, 1))),
    }  # fmt: skip
    if against is not None:
        kl = np.array(distances)
        facts |= {
            "kl": float(kl.mean()), "kl_error": float(kl.std() / np.sqrt(max(len(kl) - 1, 1))),
            "kl_median": float(np.median(kl)), "kl_99": float(np.quantile(kl, 0.99)),
            "kl_largest": float(kl.max()), "same_top": float(np.mean(same)),
        }  # fmt: skip
    return facts


def _rows(model: Model, piece: list[int]) -> NDArray[np.float64]:
    """Logarithms of the shares of tokens, for the second half of a stretch, whose tokens see enough text."""
    logits = model.logits(piece)[len(piece) // 2 - 1 : -1].astype(np.float64)
    top = logits - logits.max(axis=-1, keepdims=True)
    rows: NDArray[np.float64] = top - np.log(np.exp(top).sum(axis=-1, keepdims=True))
    return rows
