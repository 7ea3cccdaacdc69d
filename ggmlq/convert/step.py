"""The plan of a conversion as data, a step for each tensor and the new metadata; and its report."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..base.folding import counted, groups, span
from ..base.text import printable, size, table
from ..formats import Format
from ..gguf import Metadata
from ..ops.feedback import Moments
from .model import Model


class MomentsByName(Protocol):
    """Second moments of what matrices are multiplied with, and the largest value, when they are asked for."""

    def get(self, name: str, /) -> Sequence[Moments | None] | None: ...

    @property
    def largest(self) -> Mapping[str, NDArray[np.float32]]: ...


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
    scale: NDArray[np.float32] | None = None  # of all values or each expert, which a tensor beside it holds

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
    moments: MomentsByName | None = None  # of what products read, for error feedback and scales of inputs
    fed_back: bool = True  # where there are moments

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


# --- the report ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Done:
    """A tensor of the new file. ``nmse``: error against the old values, 0 where the bytes were copied."""

    step: Step
    nmse: float | None  # None where it was planned only


@dataclass(frozen=True)
class Report:
    """A conversion, done or planned; prints as a table."""

    paths: list[str]  # of the new file; none where it was planned only
    tensors: list[Done]
    notes: list[str]

    @property
    def bytes_before(self) -> int:
        """The bytes of all tensors before the conversion."""
        return sum(done.step.bytes_before for done in self.tensors)

    @property
    def bytes_after(self) -> int:
        """The bytes of all tensors after the conversion."""
        return sum(done.step.bytes_after for done in self.tensors)

    @property
    def elements(self) -> int:
        """The elements of all tensors."""
        return sum(prod(done.step.shape) for done in self.tensors)

    def __str__(self) -> str:
        return self.text()

    def text(self, all_tensors: bool = False) -> str:
        """The table; tensors of equal layers in one line, or each in its own, and the sums."""
        changed = sum(done.step.changes for done in self.tensors)
        total = (
            f"{changed} of {len(self.tensors)} tensors change, "
            f"{size(self.bytes_before)} -> {size(self.bytes_after)}"
        )
        if self.elements:
            before, after = (8 * n / self.elements for n in (self.bytes_before, self.bytes_after))
            total += f", {before:.3f} -> {after:.3f} bits a weight"
        shown = groups(self.tensors, lambda done: done.step.name, _kind, not all_tensors)
        many = counted(shown)
        header = ["tensor", "shape", "type", *many("tensors"), "before", "after", "NMSE", ""]
        lines = [table(header, [_row(*line, many(len(line[1]))) for line in shown]), "", total]
        return "\n".join([*lines, *(printable(f"note: {note}") for note in self.notes)])


def _kind(done: Done) -> Hashable:
    step = done.step
    return step.shape, step.before, step.after, step.why, step.weights is not None


def _row(name: str, members: list[Done], many: list[str]) -> list[str]:
    """The row of some tensors of one kind: bytes of all of them, the least NMSE and the largest."""
    step = members[0].step
    return [
        name,
        " x ".join(map(str, step.shape)) or "scalar",
        f"{step.before.name} -> {step.after.name}" if step.changes else step.before.name,
        *many,
        size(sum(done.step.bytes_before for done in members)),
        size(sum(done.step.bytes_after for done in members)) if step.changes else "",
        span((done.nmse for done in members), ".3e") if step.changes else "",
        ", ".join(filter(None, [step.why, "by importance" if step.weights is not None else ""])),
    ]
