"""The report of a conversion, tensor by tensor."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import prod

from ..base.folding import counted, groups, span
from ..base.text import printable, size, table
from .step import Step


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
