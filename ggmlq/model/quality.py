"""The quality of a model on a text: its perplexity, and the distance of its shares from another model's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.progress import Progress
from ..errors import ShapeError
from .batch import cut
from .model import Model
from .sampling import finite

STRETCH = 512  # tokens that are read together, as llama.cpp's tool does it
FEWEST = 4

Wide = NDArray[np.float64]


def stretches(model: Model, text: str, length: int | None) -> list[list[int]]:
    """The tokens of a text in pieces of one length; what is left over is dropped, but for a short text."""
    tokens = model.tokenizer.encode(text)
    length = min(length or STRETCH, model.config.context)
    if len(tokens) < FEWEST or length < FEWEST:
        raise ShapeError(
            f"the text has {len(tokens)} tokens, stretches {length}; a measurement needs {FEWEST} or "
            "more of both; pass a longer text, or longer stretches"
        )
    return cut(tokens, model.tokenizer.beginning, length)


def check_alike(model: Model, against: Model) -> None:
    """Refuse two models whose tokens are not the same in number."""
    if against.vocabulary != model.vocabulary:
        raise ShapeError(
            f"{model.file.path} has {model.vocabulary} tokens, {against.file.path} {against.vocabulary}; "
            "shares of tokens are compared one by one; take two files of one model"
        )


@dataclass
class Quality:
    """What was measured, token by token, an array for each stretch; ``facts`` has the sums.

    Tokens of the second half of a stretch count, which see enough text.
    """

    stretch: int = 0
    loss: list[Wide] = field(default_factory=list)
    kl: list[Wide] = field(default_factory=list)  # none without another model
    same: list[NDArray[np.bool_]] = field(default_factory=list)
    best: list[NDArray[np.int64]] = field(default_factory=list)

    def add(self, piece: Sequence[int], here: Wide, there: Wide | None) -> None:
        """Count a stretch: logarithms of the shares of its measured tokens, and those of another model."""
        self.stretch, tokens = self.stretch or len(piece), np.array(piece[len(piece) - len(here) :])
        self.loss.append(-here[np.arange(len(here)), tokens])
        self.best.append(here.argmax(axis=-1))
        if there is not None:
            self.kl.append(np.array([np.exp(b) @ (b - a) for a, b in zip(here, there, strict=True)]))
            self.same.append(self.best[-1] == there.argmax(axis=-1))

    def facts(self) -> dict[str, Any]:
        """Perplexity; with another model KL, its largest values, and how often both have one best token."""
        loss = np.concatenate(self.loss)
        facts: dict[str, Any] = {
            "stretches": len(self.loss), "stretch": self.stretch, "measured": len(loss),
            "perplexity": float(np.exp(loss.mean())),
            "error": float(np.exp(loss.mean()) * loss.std() / np.sqrt(max(len(loss) - 1, 1))),
        }  # fmt: skip
        if self.kl:
            kl = np.concatenate(self.kl)
            facts |= {
                "kl": float(kl.mean()), "kl_error": float(kl.std() / np.sqrt(max(len(kl) - 1, 1))),
                "kl_median": float(np.median(kl)), "kl_99": float(np.quantile(kl, 0.99)),
                "kl_largest": float(kl.max()), "same_top": float(np.concatenate(self.same).mean()),
            }  # fmt: skip
        return facts


def measured(
    model: Model, against: Model | None, pieces: list[list[int]], bar: bool | None
) -> dict[str, Any]:
    """The facts about a model on stretches, beside another one."""
    quality = Quality()
    with Progress(len(pieces), "measuring", " stretches", bar) as progress:
        for piece in pieces:
            there = None if against is None else shares(against.logits(piece))
            quality.add(piece, shares(model.logits(piece)), there)
            progress.advance(1)
    return quality.facts()


def shares(logits: Any) -> Wide:
    """Logarithms of the shares of tokens, for the second half of a stretch."""
    rows: Wide = logits[len(logits) // 2 - 1 : -1].astype(np.float64)
    rows -= rows.max(axis=-1, keepdims=True)
    for i in range(len(rows)):  # row by row: of a large vocabulary an array of all takes a gigabyte
        rows[i] -= np.log(np.exp(rows[i]).sum())
    return rows


# --- layer by layer ------------------------------------------------------------------------------


def layered(model: Model, piece: Sequence[int], whole: bool = False) -> tuple[list[Any], Wide]:
    """Rows behind the embedding and each layer, of the second half of a stretch, and its shares.

    ``whole``: rows of all tokens.
    """
    *rows, logits = model.layers(piece)
    return [x[0 if whole else len(piece) // 2 :] for x in rows], shares(finite(logits))


def distances(here: Sequence[Wide], there: Sequence[Wide]) -> Iterator[float]:
    """The squared distance of two models' rows behind each layer, by their size, in the mean over tokens."""
    for a, b in zip(here, there, strict=True):
        off = np.square(a - b, dtype=np.float64).sum(axis=-1)
        yield float((off / np.square(b, dtype=np.float64).sum(axis=-1)).mean())
