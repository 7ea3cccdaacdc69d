"""The data classes of `ggmlq report`: facts about a tensor, a part of a model, the whole; the findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import isfinite, prod
from statistics import median
from typing import Any

from ..diff import TensorDifference
from ..diff.tensors import ONLY_A, ONLY_B, OTHER_SHAPE
from ..formats import BlockFormat, Format
from ..gguf.check import Finding
from ..pages.blocks import Place
from .blocks import Blocks
from .values import Spread, next_better, trial


@dataclass(frozen=True)
class Tensor:
    """The facts about one tensor: its type and place, its values and blocks, its error."""

    name: str
    format: Format
    shape: tuple[int, ...]
    nbytes: int
    place: Place
    values: Spread
    blocks: Blocks
    difference: TensorDifference | None  # from the original, where one was given
    estimate: float | None  # NMSE of the rounding, without an original
    others: dict[str, float]  # NMSE of the original in other types, measured on some of its rows

    @property
    def elements(self) -> int:
        """The number of weights."""
        return prod(self.shape)

    @property
    def bits(self) -> float:
        """The bits of one weight, on average."""
        return self.format.bits_per_weight

    @property
    def nmse(self) -> float | None:
        """The error of the tensor: measured if there is an original, else estimated."""
        return self.difference.nmse if self.difference is not None else self.estimate

    @property
    def better(self) -> tuple[Format, float] | None:
        """The next type with more bits, and its NMSE, measured or estimated; None where there is none."""
        if not isinstance(self.format, BlockFormat) or not self.shape:
            return None
        fmt = next_better(self.format, self.shape[-1])
        if fmt is None:
            return None
        if fmt.name in self.others:
            return fmt, self.others[fmt.name]
        if self.nmse is None:
            return None
        return fmt, self.nmse * trial(fmt)[0] / trial(self.format)[0]

    def facts(self) -> dict[str, Any]:
        """The facts as JSON has them."""
        better = self.better
        return {
            "name": self.name, "type": self.format.name, "shape": list(self.shape), "bytes": self.nbytes,
            "bits_per_weight": self.bits, "stack": self.place.stack, "layer": self.place.layer,
            "role": self.place.role, "values": self.values.facts(), "blocks": self.blocks.facts(),
            "nmse": self.difference.nmse if self.difference is not None else None,
            "nmse_estimate": self.estimate,
            "against": None if self.difference is None else asdict(self.difference),
            "nmse_in_types": self.others,
            "better": None if better is None else {"type": better[0].name, "nmse": better[1]},
        }  # fmt: skip


@dataclass
class Part:
    """Totals over the tensors of one type, role or layer."""

    name: str
    types: dict[str, int]  # tensors of each
    tensors: int = 0
    parameters: int = 0
    bytes: int = 0
    bits_per_weight: float = 0.0

    def add(self, tensor: Tensor) -> None:
        """Count one more tensor."""
        kind = tensor.format.name
        self.types[kind] = self.types.get(kind, 0) + 1
        self.tensors += 1
        self.parameters += tensor.elements
        self.bytes += tensor.nbytes
        self.bits_per_weight = 8 * self.bytes / self.parameters if self.parameters else 0.0


@dataclass(frozen=True)
class Model:
    """All facts about a model."""

    paths: tuple[str, ...]
    file_bytes: int
    version: int
    byteorder: str
    metadata: dict[str, Any]
    tensors: list[Tensor]
    findings: list[Finding]
    original: str | None = None

    @cached_property
    def elements(self) -> int:
        """Weights in all tensors."""
        return sum(tensor.elements for tensor in self.tensors)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def bits(self) -> float:
        """Bits a weight over all tensors."""
        return 8 * self.nbytes / self.elements if self.elements else 0.0

    @property
    def ok(self) -> bool:
        """True where nothing is wrong; notes do not count."""
        return not any(finding.severity == "error" for finding in self.findings)

    def text(self, key: str) -> str | None:
        """A text of the metadata."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def facts(self) -> dict[str, Any]:
        """The facts as JSON has them."""
        return {
            "files": list(self.paths), "against": self.original, "ok": self.ok,
            "version": self.version, "byteorder": self.byteorder, "file_bytes": self.file_bytes,
            "architecture": self.text("general.architecture"), "name": self.text("general.name"),
            "parameters": self.elements, "tensor_bytes": self.nbytes, "bits_per_weight": self.bits,
            "types": [asdict(part) for part in self.parts("type")],
            "roles": [asdict(part) for part in self.parts("role")],
            "layers": [asdict(part) for part in self.parts("layer")],
            "findings": [finding._asdict() for finding in self.findings],
            "tensors": [tensor.facts() for tensor in self.tensors],
            "metadata": self.metadata,
        }  # fmt: skip

    def parts(self, by: str) -> list[Part]:
        """Totals by ``type``, ``role`` or ``layer``, in the order of the file; types by their size."""
        parts: dict[str, Part] = {}
        for tensor in self.tensors:
            place = tensor.place
            if by == "layer" and place.layer is None:
                continue
            name = {"type": tensor.format.name, "role": place.role, "layer": f"{place.stack}.{place.layer}"}[
                by
            ]
            part = parts.setdefault(name, Part(name, {}))
            part.add(tensor)
        return sorted(parts.values(), key=lambda part: -part.bytes) if by == "type" else list(parts.values())


# --- findings: errors make a model bad, notes do not -----------------------------------------

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
