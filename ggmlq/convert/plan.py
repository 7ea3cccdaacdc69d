"""The plan of a conversion, made and checked before a byte is written: each tensor's type and its reason."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import gguf
from ..base.mixes import FILE_TYPES, Mix
from ..base.text import count, short
from ..errors import ConvertError, UnsupportedError
from ..formats import FORMATS, Format
from ..gguf import GGUFFile, Imatrix, Typed, read_imatrix
from ..gguf.companions import NEEDS
from . import rules
from . import typefile as keeping
from .model import Model, Pruned
from .rules import EMBEDDINGS
from .step import Plan, Step
from .typefile import Keep

# --- the importance of a tensor's columns, from the importance matrix: one row an expert -----

Floats = NDArray[np.float32]


def for_tensor(imatrix: Mapping[str, Any], name: str, fmt: Format, shape: tuple[int, ...]) -> Floats | None:
    """Importance [experts, K] for a tensor that becomes ``fmt``; None if missing or ignored by ``fmt``."""
    values = _values(imatrix, name, shape)
    if values is None or getattr(fmt, "imatrix", "ignored") == "ignored":
        return None
    return _checked(name, values)


def tensor_weights(imatrix: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> Floats | None:
    """Importance [experts, K] of a tensor, whatever its new type; None if the matrix lacks the tensor."""
    values = _values(imatrix, name, shape)
    return None if values is None else _checked(name, values)


def only(
    imatrix: Mapping[str, Any], include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> Mapping[str, Any] | None:
    """The rows of tensors with one of ``include`` and none of ``exclude`` in their names; None if no row."""
    names = [
        name
        for name in imatrix
        if not any(text in name for text in exclude)
        and (not include or any(text in name for text in include))
    ]
    rows = {name: imatrix[name] for name in names}
    return (imatrix.of(rows) if isinstance(imatrix, Imatrix) else rows) if rows else None


def _values(imatrix: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> Floats | None:
    if name not in imatrix or 0 in shape:
        return None
    request = f"importance of {name!r}"
    try:
        values = np.asarray(imatrix[name], np.float32)
    except (TypeError, ValueError) as error:
        raise ConvertError(
            f"{request}: {short(imatrix[name])} is no array of numbers ({error}); it is one value a column, "
            "such as gq.gguf.read_imatrix gives"
        ) from None
    experts = shape[-3] if len(shape) > 2 else 1
    if values.size != experts * shape[-1]:
        if name in EMBEDDINGS:  # looked up, not multiplied: what a file has for them is of other columns
            return None
        raise ConvertError(
            f"{request}: the matrix has {values.size} values, the tensor {_needs(experts, shape[-1])}; "
            "it was computed for another model; pass that of this one"
        )
    return values.reshape(experts, shape[-1])


def _checked(name: str, rows: Floats) -> Floats:
    request = f"importance of {name!r}"
    if not (np.isfinite(rows) & (rows >= 0)).all():
        raise ConvertError(
            f"{request}: NaN, infinite or negative values; sums of squares have none; compute it again"
        )
    empty = ~rows.any(axis=1)
    if empty.any():
        where = f" of expert {int(empty.argmax())}" if len(rows) > 1 else ""
        raise ConvertError(
            f"{request}: all {rows.shape[1]} values{where} are zero, which would weigh nothing and leave "
            "nothing; compute it on more text, or read it with gq.gguf.read_imatrix and drop this entry"
        )
    return rows


def _needs(experts: int, columns: int) -> str:
    return f"needs {columns}" + (f" for each of {experts} experts" if experts > 1 else "")


# --- checks before a byte is written, and notes for the user ---------------------------------

NAMED = 3  # tensors that an error lists


def check_target(fmt: Format) -> None:
    if fmt.name not in FILE_TYPES:
        raise ConvertError(
            f"type {fmt.name}: llama.cpp has no files of it; weights are stored as one of "
            f"{', '.join(FILE_TYPES)}"
        )
    if not fmt.can_quantize:
        able = [name for name in FILE_TYPES if FORMATS[name].can_quantize]
        raise UnsupportedError(
            f"type {fmt.name}: this version decodes it but cannot encode it; it encodes {', '.join(able)}"
        )


def check_requantized(steps: Sequence[Step], allowed: bool) -> None:
    again = [step for step in steps if step.changes and step.before.block_size > 1]
    if again and not allowed:
        raise ConvertError(
            f"{_listed(again)} {'consist' if len(again) > 1 else 'consists'} of blocks already "
            f"({_types(again)}), and quantizing again adds to their error; start from the f16, bf16 or f32 "
            "file, or say that you mean it: --allow-requantize, in Python allow_requantize=True"
        )


def check_named(steps: Sequence[Step], imatrix: Mapping[str, Any]) -> None:
    if not any(step.name in imatrix for step in steps):
        raise ConvertError(
            f"importance matrix: it has entries for {_shown(list(imatrix))}, and none of the {len(steps)} "
            "tensors has such a name; it was computed for another model; pass that of this one, or none"
        )


def check_weighted(steps: Sequence[Step], imatrix: Mapping[str, Any] | None, besides: Sequence[str]) -> None:
    bare = [
        step
        for step in steps
        if step.changes and step.weights is None and rules.wants_imatrix(step.name, step.after, besides)
    ]
    if bare:
        free = [n for n in FILE_TYPES if FORMATS[n].can_quantize and n not in rules.WANT_IMATRIX]
        lack = "there is none for them in the matrix" if imatrix is not None else "there is no matrix"
        raise ConvertError(
            f"{_listed(bare)} would become {bare[0].after.name}, which needs the importance of each column, "
            f"and {lack}; pass one that llama-imatrix computed, or choose another type for them; "
            f"{', '.join(free)} do without"
        )


def _listed(steps: Sequence[Step]) -> str:
    return f"{count(len(steps), 'tensor')} ({_shown([s.name for s in steps])})"


def _types(steps: Sequence[Step]) -> str:
    """The types of the tensors, with their numbers if there are several types: ``144 q4_K, 25 q6_K``."""
    types = Counter(step.before.name for step in steps)
    return ", ".join(f"{n} {name}" if len(types) > 1 else name for name, n in types.most_common())


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(map(repr, names[:NAMED])) + more


def notes(steps: Sequence[Step], imatrix: Mapping[str, Any] | None) -> list[str]:
    sentences = []
    again = [step for step in steps if step.changes and step.before.block_size > 1]
    if again:
        sentences.append(f"{_listed(again)} quantized a second time: their NMSE adds to the error they have")
    if imatrix is None:
        return sentences
    names = {step.name for step in steps}
    strange = [name for name in imatrix if name not in names]
    if strange:
        sentences.append(f"importance of tensors that are not here: {_shown(strange)}")
    if isinstance(imatrix, Imatrix) and imatrix.unseen:
        count = sum(map(len, imatrix.unseen.values()))
        sentences.append(
            f"the calibration never reached {count} matri{'x' if count == 1 else 'ces'} of "
            f"{_shown(list(imatrix.unseen))}: there all columns count alike"
        )
    bare = [
        step
        for step in steps
        if step.changes and getattr(step.after, "imatrix", "ignored") != "ignored" and step.weights is None
    ]
    if bare:
        sentences.append(f"{_listed(bare)} without importance in the matrix: quantized as without one")
    return sentences


# --- the plan --------------------------------------------------------------------------------

FLOATS = ("f32", "f16", "bf16")
BESIDE = "q8_0"  # the type of embeddings and head in a model of nvfp4
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
    mix = rules.find(type, mixed)
    fmt = FORMATS[mix.base if mix else type]
    exceptions = keeping.rules(keep)
    for target in (fmt, *(rule.format for rule in exceptions if rule.format)):
        check_target(target)
    left = {
        name: why for name in file if (why := rules.why_left(*_described(file, name), any_name)) is not None
    }
    free = [name for name in file if name not in left]
    keeping.check_used(exceptions, free, left)
    chosen = _mixed(file, mix, imatrix, free, exceptions) if mix else dict.fromkeys(free, fmt)
    if fmt.name == NEEDS:
        chosen |= {name: FORMATS[BESIDE] for name in free if name in rules.WANT_NO_IMATRIX}
    chosen |= {name: FORMATS[kind] for name, kind in types.items()}
    steps = []
    for name in file:
        if name in left:
            steps.append(_left(file, name, left[name]))
        else:
            step = _chosen(file, name, chosen.get(name, fmt), exceptions)
            steps.append(_weighted(_fitting(step, allow_fallback), imatrix))
    check_requantized(steps, allow_requantize)
    if imatrix:
        check_named(steps, imatrix)
    check_weighted(steps, imatrix, mix.wants_imatrix if mix else ())
    number = mix.number if mix else FILE_TYPES[fmt.name]
    metadata = _file_type(number) | (_origin(imatrix) if imatrix is not None else {})
    if isinstance(file, Pruned):
        metadata |= file.changes()
    return Plan(file, steps, metadata, notes(steps, imatrix))


def _mixed(
    file: Model, mix: Mix, imatrix: object, names: Sequence[str], exceptions: Sequence[keeping.Rule]
) -> dict[str, Format]:
    """The types of a mix; tensors that match an exception do not count among those of their part."""
    mixer = rules.Mixer(mix, file, imatrix is not None)
    return {
        name: mixer.choose(name, file.info(name).shape)
        for name in rules.in_order(names)
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
            check_target(rule.format)
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
        check_target(other)
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
    importance = for_tensor(imatrix, step.name, step.after, step.shape)
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
