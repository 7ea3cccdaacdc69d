"""Checks of the plan of a conversion before a byte is written, and notes for the user."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..base.mixes import FILE_TYPES
from ..base.text import count
from ..errors import ConvertError, UnsupportedError
from ..formats import FORMATS, Format
from ..gguf import Imatrix
from . import rules
from .step import Step

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
