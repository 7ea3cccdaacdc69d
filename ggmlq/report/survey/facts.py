"""The results of ``gq.survey``: values of a tensor, errors of each type tried on it, and the table of all."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ...base.folding import counted, groups, span
from ...base.text import count, number, printable, size, table
from ..values import Values


@dataclass
class Surveyed:
    """The facts about one tensor.

    ``errors``: the NMSE of each type, squared error over squared values. ``sensitivity``: the same weighted
    by importance, when the encoder uses importance too; about the share of the outputs' power that the type
    loses.
    """

    file: str
    name: str
    type: str
    shape: tuple[int, ...]
    nbytes: int
    values: Values | None = None  # None: of a type that is only listed
    errors: dict[str, float] = field(default_factory=dict)
    sensitivity: dict[str, float] | None = None
    energy: float | None = None  # what ``sensitivity`` is relative to, or ``errors`` without importance
    note: str = ""

    @property
    def elements(self) -> int:
        """The number of values."""
        return prod(self.shape)

    @property
    def shown_errors(self) -> dict[str, float]:
        """Errors by importance where there is some, else plain ones."""
        return self.errors if self.sensitivity is None else self.sensitivity

    def facts(self) -> dict[str, Any]:
        """The facts as JSON has them."""
        facts = {key: value for key, value in vars(self).items() if key != "values"}
        return facts | {"shape": list(self.shape), "values": self.values and self.values.facts()}


@dataclass
class Survey:
    """All tensors of some models; prints as a table."""

    files: list[str]
    tensors: list[Surveyed]
    types: list[str]  # that were tried

    def __iter__(self) -> Iterator[Surveyed]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def ok(self) -> bool:
        """True where all values are finite."""
        return not any(t.values and t.values.nan + t.values.infinite for t in self.tensors)

    def total(self) -> dict[str, float]:
        """The loss of each type over all tensors that it was tried on, relative to their energy.

        Where there is importance, of those that have some.
        """
        losses = {}
        weighted = any(one.sensitivity is not None for one in self.tensors)
        counted = [one for one in self.tensors if not weighted or one.sensitivity is not None]
        for kind in self.types:
            pairs = [(one.energy, one.shown_errors.get(kind)) for one in counted]
            tried = [(energy, error) for energy, error in pairs if error is not None and energy]
            if tried:
                losses[kind] = sum(e * error for e, error in tried) / sum(e for e, _ in tried)
        return losses

    def facts(self) -> dict[str, Any]:
        """The facts as JSON has them."""
        return {
            "files": self.files, "ok": self.ok, "types": self.types, "total": self.total(),
            "tensors": [tensor.facts() for tensor in self.tensors],
        }  # fmt: skip

    def __str__(self) -> str:
        return self.text()

    def text(self, all_tensors: bool = False) -> str:
        """The table; tensors of equal layers in one line, or each in its own, and the sums."""
        weighted = any(tensor.sensitivity is not None for tensor in self.tensors)
        shown = groups(self.tensors, lambda tensor: tensor.name, _kind, not all_tensors)
        many = counted(shown)
        head = ["tensor", "type", "shape", *many("tensors"), "rms", "peak", "zeros", *self.types, ""]
        lines = [table(head, [_row(*line, many(len(line[1])), self.types) for line in shown]), ""]
        total = ", ".join(f"{kind} {error:.2e}" for kind, error in self.total().items())
        if total:
            lines.append(f"{'by importance' if weighted else 'NMSE'}, all of one type: {total}")
        elements, nbytes = (sum(getattr(t, key) for t in self.tensors) for key in ("elements", "nbytes"))
        lines.append(f"{count(len(self.tensors), 'tensor')}, {number(elements)} values, {size(nbytes)}")
        return "\n".join(lines)


def _kind(tensor: Surveyed) -> Hashable:
    values = tensor.values
    damaged = values is not None and values.nan + values.infinite > 0  # it has a line of its own
    tried = (*tensor.shown_errors,)
    return tensor.file, tensor.type, tensor.shape, tensor.note, tried, tensor.name if damaged else ""


def _row(name: str, tensors: list[Surveyed], many: list[str], types: list[str]) -> list[str]:
    """Some tensors of one kind: the least figure and the largest."""
    first, values = tensors[0], [tensor.values for tensor in tensors if tensor.values is not None]
    return [
        name, first.type, " x ".join(map(str, first.shape)) or "scalar", *many,
        span((one.rms for one in values), ".3g"), span((one.peak for one in values), ".1f"),
        span((one.zeros / one.elements for one in values if one.elements), ".2%"),
        *(span((tensor.shown_errors.get(kind) for tensor in tensors), ".2e") for kind in types),
        printable(first.note),
    ]  # fmt: skip
