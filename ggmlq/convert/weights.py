"""The importance of one tensor's columns, taken from the importance matrix and checked: one row an expert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.text import short
from ..errors import ConvertError
from ..formats import Format
from ..gguf import Imatrix
from .rules import EMBEDDINGS

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
