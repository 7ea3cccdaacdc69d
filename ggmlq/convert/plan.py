"""Makes the plan of a conversion: the type of each tensor and its reason, before a byte is written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from .. import gguf
from ..base.mixes import FILE_TYPES, Mix
from ..errors import ConvertError
from ..formats import FORMATS, Format
from ..gguf import GGUFFile, Imatrix, Typed, read_imatrix
from . import checks, mixing, rules, weights
from . import keep as keeping
from .keep import Keep
from .model import Model, Pruned
from .step import Plan, Step

FLOATS = ("f32", "f16", "bf16")
NO_TYPES: Mapping[str, Any] = MappingProxyType({})

Source = Model | str | os.PathLike[str]
Importance = str | os.PathLike[str] | Mapping[str, Any] | None


def plan_quantize(
    source: Source,
    type: str | int | Format,
    *,
    imatrix: Importance = None,
    keep: Keep = (),
    types: Mapping[str, str | int | Format] = NO_TYPES,
    mixed: bool = False,
    any_name: bool = False,
    allow_requantize: bool = False,
    allow_fallback: bool = True,
) -> Plan:
    """The type that llama.cpp's quantizer would choose for each tensor; see :func:`ggmlq.convert.quantize`.

    ``source``: an open file, or the path of one, which the plan keeps open. ``types``: of some tensors, by
    their whole names; ``keep`` goes before.
    """
    file = opened(source)
    imatrix = read(file, imatrix)
    mix = mixing.find(type, mixed)
    fmt = FORMATS[mix.base if mix else type]
    exceptions = keeping.rules(keep)
    for target in (fmt, *(rule.format for rule in exceptions if rule.format)):
        checks.check_target(target)
    left = {
        name: why for name in file if (why := rules.why_left(*_described(file, name), any_name)) is not None
    }
    free = [name for name in file if name not in left]
    keeping.check_used(exceptions, free, left)
    chosen = _mixed(file, mix, imatrix, free, exceptions) if mix else dict.fromkeys(free, fmt)
    chosen |= {name: FORMATS[kind] for name, kind in types.items()}
    steps = []
    for name in file:
        if name in left:
            steps.append(_left(file, name, left[name]))
        else:
            step = _chosen(file, name, chosen.get(name, fmt), exceptions)
            steps.append(_weighted(_fitting(step, allow_fallback), imatrix))
    checks.check_requantized(steps, allow_requantize)
    if imatrix:
        checks.check_named(steps, imatrix)
    checks.check_weighted(steps, imatrix, mix.wants_imatrix if mix else ())
    number = mix.number if mix else FILE_TYPES[fmt.name]
    metadata = _file_type(number) | (_origin(imatrix) if imatrix is not None else {})
    if isinstance(file, Pruned):
        metadata |= file.changes()
    return Plan(file, steps, metadata, checks.notes(steps, imatrix))


def _mixed(
    file: Model, mix: Mix, imatrix: object, names: Sequence[str], exceptions: Sequence[keeping.Rule]
) -> dict[str, Format]:
    """The types of a mix; tensors that match an exception do not count among those of their part."""
    mixer = mixing.Mixer(mix, file, imatrix is not None)
    return {
        name: mixer.choose(name, file.info(name).shape)
        for name in mixing.in_order(names)
        if keeping.first(exceptions, name) is None
    }


def plan_dequantize(source: Source, type: str | int | Format = "f32", *, keep: Keep = ()) -> Plan:
    """The plan that decodes all blocks to floats, and converts the floats that llama.cpp would convert.

    ``source`` as in :func:`plan_quantize`.
    """
    file = opened(source)
    fmt = FORMATS[type]
    if fmt.name not in FLOATS:
        raise ConvertError(
            f"dequantize to {fmt.name}: that is no type of floats; it is one of {', '.join(FLOATS)}; "
            "for blocks use quantize"
        )
    exceptions = keeping.rules(keep)
    for rule in exceptions:
        if rule.format:
            checks.check_target(rule.format)
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
    metadata = _file_type(FILE_TYPES[fmt.name])
    return Plan(file, [_fitting(step, True) for step in steps], metadata)


def opened(source: Source) -> Model:
    """The model itself, or the file at that path, opened; an incomplete one is an error."""
    file = gguf.open(source) if isinstance(source, str | os.PathLike) else source
    if isinstance(file, GGUFFile) and file.missing:
        file[file.missing[0]]  # says what is missing
    return file


def read(source: Model, imatrix: Importance) -> Mapping[str, Any] | None:
    """An importance matrix from its file, under the names that the model has."""
    if imatrix is not None and not isinstance(imatrix, Mapping):
        imatrix = read_imatrix(imatrix)
    return source.importance(imatrix) if imatrix is not None and isinstance(source, Pruned) else imatrix


def _described(file: Model, name: str) -> tuple[str, Format, tuple[int, ...]]:
    info = file.info(name)
    return name, info.format, info.shape


def _left(file: Model, name: str, why: str) -> Step:
    _, fmt, shape = _described(file, name)
    return Step(name, shape, fmt, fmt, why, left=True)


def _chosen(file: Model, name: str, fmt: Format, exceptions: Sequence[keeping.Rule]) -> Step:
    """The step to the caller's type, or to that of the first exception that matches."""
    _, before, shape = _described(file, name)
    rule = keeping.first(exceptions, name)
    if rule is None:
        return Step(name, shape, before, fmt)
    return Step(name, shape, before, rule.format or before, f"keep {rule}")


def _fitting(step: Step, allow_fallback: bool) -> Step:
    """The step, or one to llama.cpp's other type if the rows are not whole blocks."""
    columns = step.shape[-1] if step.shape else 1
    request = f"tensor {step.name!r} to {step.after.name}"
    other = rules.fallback(request, step.after, columns)
    if step.changes:
        checks.check_target(other)
    if other is step.after:
        return step
    rule = f"rows of {columns} do not fit {step.after.name} ({step.after.block_size})"
    if not allow_fallback:
        raise ConvertError(
            f"{request}: {rule}; allow llama.cpp's fallback, which is {other.name} here, or choose a type "
            "for it by its name"
        )
    why = f"{step.why}, {rule}" if step.why else rule
    return replace(step, after=other, why=why)


def _weighted(step: Step, imatrix: Mapping[str, Any] | None) -> Step:
    if imatrix is None or not step.changes:
        return step
    importance = weights.for_tensor(imatrix, step.name, step.after, step.shape)
    return replace(step, weights=importance)


def _file_type(number: int) -> dict[str, Any]:
    return {
        "general.quantization_version": Typed(rules.QUANTIZATION_VERSION, "uint32"),
        "general.file_type": Typed(number, "uint32"),
    }


def _origin(imatrix: Mapping[str, Any]) -> dict[str, Any]:
    """The keys by which llama.cpp remembers an importance matrix."""
    keys: dict[str, Any] = {}
    if isinstance(imatrix, Imatrix):
        keys["quantize.imatrix.file"] = imatrix.path
        if imatrix.datasets:
            keys["quantize.imatrix.dataset"] = imatrix.datasets[0]
    keys["quantize.imatrix.entries_count"] = Typed(len(imatrix), "uint32")
    if isinstance(imatrix, Imatrix) and imatrix.chunks:
        keys["quantize.imatrix.chunks_count"] = Typed(imatrix.chunks, "uint32")
    return keys
