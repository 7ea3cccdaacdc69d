"""The plan of a conversion as data: a step for each tensor, and the new metadata."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..formats import Format
from ..gguf import Metadata
from .model import Model


@dataclass(frozen=True)
class Step:
    """One tensor: its type, its new type, and the reason if that is not the type that the caller named."""

    name: str
    shape: tuple[int, ...]
    before: Format
    after: Format
    why: str = ""
    weights: NDArray[np.float32] | None = None  # importance [experts, K]
    left: bool = False  # out of every conversion: a norm, one axis, integers

    @property
    def changes(self) -> bool:
        """True for a tensor that is converted; the bytes of others are copied."""
        return self.before is not self.after

    @property
    def bytes_before(self) -> int:
        return nbytes_in(self.before, self.shape)

    @property
    def bytes_after(self) -> int:
        return nbytes_in(self.after, self.shape)


@dataclass(frozen=True)
class Plan:
    """A conversion ready to be run."""

    file: Model
    steps: list[Step]
    metadata: dict[str, Any]  # added to that of the file, or in the place of its keys
    notes: list[str] = field(default_factory=list)  # what a user should know of

    @property
    def new_metadata(self) -> Metadata:
        """The metadata of the new file: a key that is set goes to the end, also one that was there before."""
        old = [key for key in self.metadata if key in self.file.metadata]
        return self.file.metadata.without(*old) | self.metadata

    @property
    def types(self) -> dict[str, Format]:
        """The new types of the tensors that are quantized, or could be, by name."""
        return {step.name: step.after for step in self.steps if not step.left}


def nbytes_in(fmt: Format, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor in a type."""
    return prod(shape) // fmt.block_size * fmt.dtype.itemsize
