"""The findings of `ggmlq report`, from the facts about tensors: errors make a model bad, notes do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from statistics import median

from ..diff import TensorDifference
from ..diff.tensors import ONLY_A, ONLY_B, OTHER_SHAPE
from ..formats import BlockFormat
from ..gguf.check import Finding
from .facts import Tensor

FAR = 8.0  # times the median error of tensors of its type
FEW = 4  # tensors of a type, below which there is no median to speak of


def of(tensors: Sequence[Tensor], differences: Sequence[TensorDifference]) -> list[Finding]:
    """The findings about tensors, the worst first."""
    findings = [finding for tensor in tensors for finding in _damage(tensor)]
    findings += [finding for difference in differences for finding in _unlike(difference)]
    findings += _far(tensors)
    findings += [finding for tensor in tensors for finding in _dead(tensor)]
    return sorted(findings, key=lambda finding: finding.severity != "error")


def _damage(tensor: Tensor) -> Iterator[Finding]:
    blocks, where = tensor.blocks, f"tensor {tensor.name!r}"
    if not blocks.damaged:
        return
    row, block = blocks.first_damaged[0]
    if isinstance(tensor.format, BlockFormat):
        text = (
            f"{blocks.damaged} of {blocks.blocks} {tensor.format.name} blocks "
            f"{'has' if blocks.damaged == 1 else 'have'} a NaN, infinite or forbidden "
            f"scale; the first is block {block} of row {row}; every product with such a row is lost"
        )
    else:
        text = (
            f"{blocks.damaged} of {blocks.blocks} values are NaN or infinite; the first is [{row}, {block}]"
        )
    yield Finding("error", where, text)


def _unlike(difference: TensorDifference) -> Iterator[Finding]:
    where = f"tensor {difference.name!r}"
    if difference.status == OTHER_SHAPE:
        shapes = " and ".join(map(str, difference.shapes))
        yield Finding("error", where, f"has another shape than in the original: {shapes}")
    elif difference.status == ONLY_A:
        yield Finding("note", where, "is in the original only")
    elif difference.status == ONLY_B:
        yield Finding("note", where, "is not in the original")


def _far(tensors: Sequence[Tensor]) -> Iterator[Finding]:
    """Errors far beyond those of other tensors of the same type."""
    by_type: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.nmse is not None and isfinite(tensor.nmse) and isinstance(tensor.format, BlockFormat):
            by_type.setdefault(tensor.format.name, []).append(tensor)
    for name, group in by_type.items():
        if len(group) < FEW:
            continue
        middle = median(tensor.nmse or 0.0 for tensor in group)
        for tensor in group:
            if tensor.nmse is not None and tensor.nmse > FAR * middle > 0:
                times = f"{tensor.nmse / middle:.1f} times"
                yield Finding(
                    "note",
                    f"tensor {tensor.name!r}",
                    f"has NMSE {tensor.nmse:.2e}, {times} the median of the {len(group)} {name} tensors",
                )


def _dead(tensor: Tensor) -> Iterator[Finding]:
    values, where = tensor.values, f"tensor {tensor.name!r}"
    if values.elements and values.zeros == values.elements:
        yield Finding("note", where, "is zero everywhere")
        return
    sentence = (
        ("dead_rows", "zero throughout"),
        ("dead_columns", "zero throughout"),
        ("outlier_rows", "far larger than the others (8 times the median)"),
        ("outlier_columns", "far larger than the others (8 times the median)"),
    )
    for what, how in sentence:
        count = getattr(values, what)
        if count:
            kind = what.partition("_")[2]
            kind, verb = (kind, "are") if count > 1 else (kind[:-1], "is")
            named = ", ".join(map(str, values.named[what])) + (
                ", …" if count > len(values.named[what]) else ""
            )
            yield Finding("note", where, f"{count} {kind} {verb} {how}: {named}")
