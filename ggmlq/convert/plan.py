"""What each tensor becomes and why: decided for the whole file before a byte is written."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import gguf
from ..errors import ConvertError, UnsupportedError
from ..formats import FORMATS, Format
from ..gguf import GGUFFile, Imatrix, Typed, read_imatrix
from . import keep as keeping
from . import mixing, rules, weights
from .keep import Keep
from .mixes import Mix

NAMED = 3  # tensors that an error lists
FLOATS = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class Step:
    """One tensor: what it is, what it becomes, and why if that is not simply the type asked for."""

    name: str
    shape: tuple[int, ...]
    before: Format
    after: Format
    why: str = ""
    weights: NDArray[np.float32] | None = None  # importance [experts, K]

    @property
    def changes(self) -> bool:
        """Whether it is converted; if not its bytes are copied."""
        return self.before is not self.after

    @property
    def bytes_before(self) -> int:
        return _nbytes(self.before, self.shape)

    @property
    def bytes_after(self) -> int:
        return _nbytes(self.after, self.shape)


@dataclass(frozen=True)
class Plan:
    """A conversion ready to be run."""

    file: GGUFFile
    steps: list[Step]
    metadata: dict[str, Any]  # added to that of the file
    notes: list[str] = field(default_factory=list)  # what a user should know of


def plan_quantize(
    source: GGUFFile | str | os.PathLike[str],
    type: str | int | Format,
    *,
    imatrix: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    keep: Keep = (),
    mixed: bool = False,
    any_name: bool = False,
    allow_requantize: bool = False,
    allow_fallback: bool = True,
) -> Plan:
    """What llama.cpp's quantizer would make of each tensor; see :func:`ggmlq.convert.quantize`.

    ``source``: an open file, or the path of one, which the plan keeps open.
    """
    file = _opened(source)
    if imatrix is not None and not isinstance(imatrix, Mapping):
        imatrix = read_imatrix(imatrix)
    mix = mixing.find(type, mixed)
    fmt = FORMATS[mix.base if mix else type]
    exceptions = keeping.rules(keep)
    for asked in (fmt, *(rule.format for rule in exceptions if rule.format)):
        _check_target(asked)
    left = {
        name: why for name in file if (why := rules.why_left(*_described(file, name), any_name)) is not None
    }
    free = [name for name in file if name not in left]
    keeping.check_used(exceptions, free, left)
    types = _mixed(file, mix, imatrix, free, exceptions) if mix else dict.fromkeys(free, fmt)
    steps = []
    for name in file:
        if name in left:
            steps.append(_left(file, name, left[name]))
        else:
            step = _chosen(file, name, types.get(name, fmt), exceptions)
            steps.append(_weighted(_fitting(step, allow_fallback), imatrix))
    _check_requantized(steps, allow_requantize)
    if imatrix:
        _check_named(steps, imatrix)
    _check_weighted(steps, imatrix, mix.wants_imatrix if mix else ())
    number = mix.number if mix else rules.FILE_TYPES[fmt.name]
    metadata = _file_type(number) | (_origin(imatrix) if imatrix is not None else {})
    return Plan(file, steps, metadata, _notes(steps, imatrix))


def _mixed(
    file: GGUFFile, mix: Mix, imatrix: object, names: Sequence[str], exceptions: Sequence[keeping.Rule]
) -> dict[str, Format]:
    """The types of a mix; what exceptions match is not counted among the tensors of its part."""
    mixer = mixing.Mixer(mix, file, imatrix is not None)
    return {
        name: mixer.choose(name, file.info(name).shape)
        for name in mixing.in_order(names)
        if keeping.first(exceptions, name) is None
    }


def plan_dequantize(
    source: GGUFFile | str | os.PathLike[str], type: str | int | Format = "f32", *, keep: Keep = ()
) -> Plan:
    """Every tensor of blocks as floats, and those that llama.cpp would convert. ``source`` as above."""
    file = _opened(source)
    fmt = FORMATS[type]
    if fmt.name not in FLOATS:
        raise ConvertError(
            f"dequantize to {fmt.name}: that is no type of floats; it is one of {', '.join(FLOATS)}; "
            "for blocks use quantize"
        )
    exceptions = keeping.rules(keep)
    for rule in exceptions:
        if rule.format:
            _check_target(rule.format)
    left = {
        name: why
        for name in file
        if (why := rules.why_left(*_described(file, name))) is not None
        and file.info(name).format.block_size == 1
    }
    keeping.check_used(exceptions, [name for name in file if name not in left], left)
    steps = [
        _left(file, name, left[name]) if name in left else _chosen(file, name, fmt, exceptions)
        for name in file
    ]
    metadata = _file_type(rules.FILE_TYPES[fmt.name])
    return Plan(file, [_fitting(step, True) for step in steps], metadata)


def _opened(source: GGUFFile | str | os.PathLike[str]) -> GGUFFile:
    file = source if isinstance(source, GGUFFile) else gguf.open(source)
    if file.missing:
        file[file.missing[0]]  # says what is missing
    return file


def _nbytes(fmt: Format, shape: tuple[int, ...]) -> int:
    return prod(shape) // fmt.block_size * fmt.dtype.itemsize


def _described(file: GGUFFile, name: str) -> tuple[str, Format, tuple[int, ...]]:
    info = file.info(name)
    return name, info.format, info.shape


def _left(file: GGUFFile, name: str, why: str) -> Step:
    _, fmt, shape = _described(file, name)
    return Step(name, shape, fmt, fmt, why)


def _chosen(file: GGUFFile, name: str, fmt: Format, exceptions: Sequence[keeping.Rule]) -> Step:
    """The type asked for, or that of the first exception."""
    _, before, shape = _described(file, name)
    rule = keeping.first(exceptions, name)
    if rule is None:
        return Step(name, shape, before, fmt)
    return Step(name, shape, before, rule.format or before, f"keep {rule}")


def _fitting(step: Step, allow_fallback: bool) -> Step:
    """The step, or that to the type that llama.cpp takes for rows that are not whole blocks."""
    columns = step.shape[-1] if step.shape else 1
    asked = f"tensor {step.name!r} to {step.after.name}"
    other = rules.fallback(asked, step.after, columns)
    if step.changes:
        _check_target(other)
    if other is step.after:
        return step
    rule = f"rows of {columns} do not fit {step.after.name} ({step.after.block_size})"
    if not allow_fallback:
        raise ConvertError(
            f"{asked}: {rule}; allow llama.cpp's fallback, which is {other.name} here, or choose a type for "
            "it by its name"
        )
    why = f"{step.why}, {rule}" if step.why else rule
    return replace(step, after=other, why=why)


def _weighted(step: Step, imatrix: Mapping[str, Any] | None) -> Step:
    if imatrix is None or not step.changes:
        return step
    found = weights.for_tensor(imatrix, step.name, step.after, step.shape)
    return replace(step, weights=found)


# --- what must hold -------------------------------------------------------------------------


def _check_target(fmt: Format) -> None:
    if fmt.name not in rules.FILE_TYPES:
        raise ConvertError(
            f"type {fmt.name}: llama.cpp has no files of it; weights are stored as one of "
            f"{', '.join(rules.FILE_TYPES)}"
        )
    if not fmt.can_quantize:
        able = [name for name in rules.FILE_TYPES if FORMATS[name].can_quantize]
        raise UnsupportedError(
            f"type {fmt.name}: this version decodes it but cannot encode it; it encodes {', '.join(able)}"
        )


def _check_requantized(steps: Sequence[Step], allowed: bool) -> None:
    again = [step for step in steps if step.changes and step.before.block_size > 1]
    if again and not allowed:
        raise ConvertError(
            f"{_listed(again)} of blocks already ({_types(again)}), and quantizing again adds to their "
            "error; start from the f16, bf16 or f32 file, or say that you mean it: --allow-requantize, in "
            "Python allow_requantize=True"
        )


def _check_named(steps: Sequence[Step], imatrix: Mapping[str, Any]) -> None:
    if not any(step.name in imatrix for step in steps):
        raise ConvertError(
            f"importance matrix: it has entries for {_shown(list(imatrix))}, and none of the {len(steps)} "
            "tensors has such a name; it was computed for another model; pass that of this one, or none"
        )


def _check_weighted(steps: Sequence[Step], imatrix: Mapping[str, Any] | None, besides: Sequence[str]) -> None:
    bare = [
        step
        for step in steps
        if step.changes and step.weights is None and rules.wants_imatrix(step.name, step.after, besides)
    ]
    if bare:
        free = [n for n in rules.FILE_TYPES if FORMATS[n].can_quantize and n not in rules.WANT_IMATRIX]
        lack = "there is none for them in the matrix" if imatrix is not None else "there is no matrix"
        raise ConvertError(
            f"{_listed(bare)} to become {bare[0].after.name}, which needs the importance of each column, and "
            f"{lack}; pass one that llama-imatrix computed, or choose another type for them; "
            f"{', '.join(free)} do without"
        )


def _listed(steps: Sequence[Step]) -> str:
    return f"{len(steps)} tensor{'s are' if len(steps) > 1 else ' is'} ({_shown([s.name for s in steps])})"


def _types(steps: Sequence[Step]) -> str:
    """The types that they have, with how many where there are several: ``144 q4_K, 25 q6_K``."""
    count = Counter(step.before.name for step in steps)
    return ", ".join(f"{n} {name}" if len(count) > 1 else name for name, n in count.most_common())


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(map(repr, names[:NAMED])) + more


# --- what is written besides, and said ------------------------------------------------------


def _file_type(number: int) -> dict[str, Any]:
    return {
        "general.quantization_version": Typed(rules.QUANTIZATION_VERSION, "uint32"),
        "general.file_type": Typed(number, "uint32"),
    }


def _origin(imatrix: Mapping[str, Any]) -> dict[str, Any]:
    """The keys by which llama.cpp remembers an importance matrix."""
    found: dict[str, Any] = {"quantize.imatrix.entries_count": Typed(len(imatrix), "uint32")}
    if isinstance(imatrix, Imatrix):
        found["quantize.imatrix.file"] = imatrix.path
        if imatrix.datasets:
            found["quantize.imatrix.dataset"] = imatrix.datasets[0]
        if imatrix.chunks:
            found["quantize.imatrix.chunks_count"] = Typed(imatrix.chunks, "uint32")
    return found


def _notes(steps: Sequence[Step], imatrix: Mapping[str, Any] | None) -> list[str]:
    found = []
    again = [step for step in steps if step.changes and step.before.block_size > 1]
    if again:
        found.append(f"{_listed(again)} quantized a second time: their NMSE adds to the error they have")
    if imatrix is None:
        return found
    names = {step.name for step in steps}
    strange = [name for name in imatrix if name not in names]
    if strange:
        found.append(f"importance of tensors that are not here: {_shown(strange)}")
    if isinstance(imatrix, Imatrix) and imatrix.unseen:
        count = sum(map(len, imatrix.unseen.values()))
        found.append(
            f"the calibration never reached {count} matri{'x' if count == 1 else 'ces'} of "
            f"{_shown(list(imatrix.unseen))}: there all columns count alike"
        )
    bare = [
        step
        for step in steps
        if step.changes and getattr(step.after, "imatrix", "ignored") != "ignored" and step.weights is None
    ]
    if bare:
        found.append(f"{_listed(bare)} without importance in the matrix: quantized as without one")
    return found
