"""Checks of the operations' arguments; each error names the call, the values, the rule and the way out."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..arrays.array import QuantArray
from ..arrays.buffers import refuse_mask
from ..base.devices import device_of, is_host
from ..base.text import short
from ..errors import DeviceError, DTypeError, ImportanceError, NonFiniteError, ShapeError, UnsupportedError
from ..formats import FORMATS, Format

FLOAT32 = np.dtype(np.float32)
LARGEST = float(np.finfo(np.float32).max)


def as_floats(request: str, x: Any, name: str = "x", bfloat16: bool = False) -> Any:
    """An operand as an array of floats; bfloat16 becomes float32, or stays if ``bfloat16`` is True."""
    if isinstance(x, QuantArray):
        raise DTypeError(f"{request}: {name} is {x!r}; floats are expected; pass {name}.dequantize()")
    x = as_array(request, x, name, "an array of floats")
    if x.dtype.kind != "f" or x.dtype.itemsize > 8:
        if is_bfloat16(x):
            return x if bfloat16 else x.astype(np.float32)
        raise DTypeError(
            f"{request}: {name} is {x.dtype}; float16, bfloat16, float32 and float64 are taken; "
            f"convert with {name}.astype(np.float32)"
        )
    return x


def as_array(request: str, x: Any, name: str, way: str) -> Any:
    """An array over anything that a caller passes; one on a GPU stays there. ``way``: an error's advice."""
    refuse_mask(request, x)
    if not is_host(x):
        return x
    try:
        return np.asarray(x)
    except (ValueError, TypeError) as error:
        are = "are" if name.endswith("s") else "is"
        raise DTypeError(f"{request}: {name} {are} no array ({error}); pass {way}") from None


def is_whole(number: object, least: int, most: int = 2**63 - 1) -> bool:
    """True for an integer of Python or NumPy from ``least`` to ``most``; a bool is none."""
    if isinstance(number, bool) or not isinstance(number, int | np.integer):
        return False
    return least <= int(number) <= most


def finite(number: Any) -> float | None:
    """A number that float32 can hold, as a float; None for anything else."""
    try:
        value = math.nan if isinstance(number, str | bytes) or np.ndim(number) else float(number)
    except (TypeError, ValueError, OverflowError):
        return None
    return value if abs(value) <= LARGEST else None


def check_flag(request: str, name: str, value: Any) -> None:
    """Refuse what is neither true nor false, and is true for Python: a word, an array."""
    if not isinstance(value, bool | np.bool_ | int):
        raise DTypeError(f"{request}: {name} is {short(value)}; it is True or False; pass one of them")


def is_bfloat16(x: Any) -> bool:
    """True for an array of bfloat16 of ml_dtypes."""
    return getattr(getattr(x, "dtype", None), "name", "") == "bfloat16"


def check_device(request: str, place: str, weights: Any, name: str = "x", other: str = "q") -> None:
    """Refuse an operand that lies on another device (``place``) than the weights."""
    if place != weights.device:
        raise DeviceError(
            f"{request}: {name} is on {place}, {other} on {weights.device}; both must be on one device; move "
            f'{other} with {other}.to("cpu") or {other}.to("cuda"), or {name} with cupy.asarray({name}) or '
            f"{name}.get()"
        )


def check_columns(request: str, x: Any, weights: Any, name: str = "w") -> None:
    """Refuse activations whose last axis is not that of the weights, K."""
    if x.ndim == 0 or x.shape[-1] != weights.shape[-1]:
        raise ShapeError(
            f"{request}: x has shape {x.shape}, {name} {weights.shape}; the last axis of both is K; "
            f"pass x as [..., {weights.shape[-1]}]"
        )


def float_dtype(request: str, dtype: DTypeLike | None) -> np.dtype[Any]:
    """The dtype of a result from the caller's ``dtype``: float32 for None; bfloat16 is that of ml_dtypes."""
    if dtype is np.float32 or dtype is FLOAT32:  # names of dtypes take microseconds
        return FLOAT32
    if "bfloat16" in (str(dtype), getattr(dtype, "__name__", "")):
        try:
            kind: np.dtype[Any] = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
        except ImportError:
            raise UnsupportedError(
                f"{request}: dtype=bfloat16; NumPy has it from the package ml_dtypes, which is not "
                "installed; "
                "pip install ml_dtypes, or ask for float32"
            ) from None
        return kind
    try:
        kind = np.dtype(np.float32 if dtype is None else dtype)
    except (TypeError, ValueError):
        raise DTypeError(f"{request}: {short(dtype)} is no dtype; ask for np.float32") from None
    if kind.kind != "f" or kind.itemsize > 8:
        raise DTypeError(
            f"{request}: values are floats, {kind} was asked for; ask for float16, bfloat16, float32 or "
            "float64 (stored integers are in q.blocks)"
        )
    return kind


def finite_float32(
    request: str, rows: NDArray[Any], shape: tuple[int, ...], first: int, name: str = "x"
) -> NDArray[np.float32]:
    """Rows as contiguous float32; an error names the index of the first value that is not finite."""
    with np.errstate(
        over="ignore", invalid="ignore"
    ):  # a sum is finite only if all values are, and it is quick
        values = np.ascontiguousarray(rows, np.float32)
        total = np.einsum("i->", values.reshape(-1))
    if not np.isfinite(total) and not (finite := np.isfinite(values)).all():
        row, column = np.argwhere(~finite)[0].tolist()
        index = [*row_index(first + row, shape), column]
        raise NonFiniteError(
            f"{request}: {name}{index} is {rows[row, column]}; blocks hold finite float32 values only; "
            f"clear NaN with np.nan_to_num and bring the rest into range with np.clip or a smaller unit"
        )
    return values


def row_index(row: int, shape: tuple[int, ...]) -> list[int]:
    """The leading indices of a row of an array that was flattened to rows."""
    return [int(i) for i in np.unravel_index(row, shape[:-1])] if shape[:-1] else []


def check_imatrix(request: str, fmt: Format, imatrix: Any, columns: int) -> NDArray[np.float32] | None:
    """The checked importance of columns: finite, none negative, not all 0; None if the caller passes none."""
    if imatrix is None:
        if fmt.needs_imatrix:
            without = ", ".join(f.name for f in FORMATS.values() if f.can_quantize and not f.needs_imatrix)
            raise ImportanceError(
                f"{request}: there is no imatrix; ggml encodes {fmt.name} only with one; pass "
                f"imatrix=importance (np.ones({columns}, np.float32) weighs all columns alike), "
                f"or take a format that does without: {without}"
            )
        return None
    weights = as_floats(request, imatrix, "imatrix")
    if weights.shape != (columns,):
        raise ShapeError(
            f"{request}: imatrix has shape {weights.shape}, rows have {columns} elements; "
            "an imatrix is 1-D with one weight a column"
        )
    importance = finite_float32(request, weights[None], weights.shape, 0, "imatrix").reshape(columns)
    if (importance < 0).any():
        at = int((importance < 0).argmax())
        raise ImportanceError(
            f"{request}: imatrix[{at}] is {importance[at]}; importance is a mean of squares, never negative; "
            "pass the values of llama-imatrix as they are"
        )
    if columns and not importance.any() and getattr(fmt, "imatrix", "ignored") != "ignored":
        raise ImportanceError(
            f"{request}: the imatrix is 0 everywhere; ggml would write a tensor of zeros, since nothing "
            "counts; pass imatrix=None, or np.ones for a tensor that the calibration never reached"
        )
    return importance


def check_out(request: str, out: Any, shape: tuple[int, ...], device: str) -> None:
    """Refuse an ``out`` that cannot take the result in place."""
    refuse_mask(request, out)
    if is_host(out) and not isinstance(out, np.ndarray):
        raise DTypeError(
            f"{request}: out is a {type(out).__name__}; it is an array of floats of shape {shape}; "
            f"allocate np.empty({shape}, np.float32)"
        )
    if device_of(out) != device:
        raise DeviceError(f"{request}: out is not on {device}, where x and q are; allocate it there")
    if out.shape != shape:
        raise ShapeError(
            f"{request}: out has shape {out.shape}, the result {shape}; they must agree; allocate {shape}"
        )
    float_dtype(request, out.dtype)
    if is_host(out) and not out.flags.writeable:
        raise ShapeError(f"{request}: out is read-only; pass an array that may be written to")


def check_bias(request: str, bias: Any, q: Any, name: str = "q", axis: int = 0) -> Any:
    """The checked bias: one value a row of the weights, on their device; ``name`` is that of the weights.

    With ``axis`` 1 it is one value a column, as in products along the rows of the weights.
    """
    if device_of(bias) != q.device:
        raise DeviceError(f"{request}: bias is not on {q.device}, where x and {name} are; move it there")
    bias = as_floats(request, bias, "bias")
    if bias.shape != (q.shape[axis],):
        raise ShapeError(
            f"{request}: bias has shape {bias.shape}; it is one value a {'column' if axis else 'row'} of "
            f"{name}; pass shape ({q.shape[axis]},)"
        )
    return bias
