"""GGUF types for Python values in metadata: the rule that chooses one, ``Typed`` to force another, errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..base.text import short
from ..errors import GGUFError
from .node import Node
from .sequence import Array
from .valuetype import MAX_DEPTH, NUMBERS, ValueType

# The first type of FOR_INT that holds an int is its type; FOR_INTS is for all ints of a list.
FOR_INT = (ValueType.UINT32, ValueType.INT32, ValueType.UINT64, ValueType.INT64)
FOR_INTS = (ValueType.INT32, ValueType.INT64)


@dataclass(frozen=True)
class Typed:
    """A metadata value with the GGUF type that it is to have.

    For a sequence ``type`` is that of the elements, for nested sequences of the innermost ones.
    Bytes may be a ``string``, which is how text that is not UTF-8 is written.

    >>> from ggmlq.gguf import Typed
    >>> metadata = {"small": Typed(64, "uint8"), "scores": Typed([1, 0.5], "float64")}
    """

    value: Any
    type: str | int | ValueType


def resolve(value: object) -> Node:
    """The node of a Python value. Raises GGUFError with the reason and the way out, without the key."""
    if isinstance(value, Typed):
        kind = ValueType.parse(value.type)
        if kind is None or kind is ValueType.ARRAY:
            names = ", ".join(k.word for k in ValueType if k is not ValueType.ARRAY)
            _refuse(f"Typed(…, {value.type!r}): there is no such type of an element; use one of {names}")
        return _node(value.value, kind, 0)
    return _node(value, None, 0)


def _node(value: Any, forced: ValueType | None, depth: int) -> Node:
    if isinstance(value, Array) and forced is None:
        forced = value.type if value.type is not ValueType.ARRAY else None
    if isinstance(value, np.ndarray):
        return _array_type(value, forced, depth)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        return _of_sequence(value, forced, depth)
    kind = _scalar_type(value) if forced is None else forced  # UINT8 is 0, so never `or`
    if kind is ValueType.STRING:
        return Node(kind, _text(value))
    return Node(kind, _number(value, kind))


def _scalar_type(value: object) -> ValueType:
    """The type of a scalar: the declared rule for Python's, their own type for NumPy's."""
    if isinstance(value, bool):
        return ValueType.BOOL
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return _of_dtype(value.dtype)
    if isinstance(value, int):
        return _smallest(FOR_INT, value, value)
    if isinstance(value, float):
        return ValueType.FLOAT32
    if isinstance(value, str):
        return ValueType.STRING
    if isinstance(value, bytes | bytearray | memoryview):
        _refuse(
            'bytes may be text or numbers; say which: Typed(data, "string") or Typed(list(data), "uint8")'
        )
    _refuse(
        f"{_shown(value)} is nothing that GGUF can hold; "
        "it holds bool, int, float, str and sequences of one of them"
    )


def _smallest(kinds: Sequence[ValueType], low: int, high: int) -> ValueType:
    for kind in kinds:
        limits = np.iinfo(NUMBERS[kind])
        if limits.min <= low and high <= limits.max:
            return kind
    names = ", ".join(kind.word for kind in kinds)
    worst = low if low < np.iinfo(np.int64).min else high
    _refuse(
        f"{_shown(worst)} fits none of {names}; write it as text or as a float, "
        'or a list that uint64 holds as Typed(list, "uint64")'
    )


def _of_dtype(dtype: np.dtype[Any]) -> ValueType:
    if dtype == np.float16:
        return ValueType.FLOAT32
    kind = ValueType.parse(dtype.name)
    if kind is None or (kind not in NUMBERS):
        _refuse(f"GGUF has no type for NumPy's {dtype}; convert it to float64, float32 or an integer type")
    return kind


# --- sequences ------------------------------------------------------------------------------


def _array_type(value: NDArray[Any], forced: ValueType | None, depth: int) -> Node:
    """A NumPy array: its dtype is its type; more than one axis are arrays of arrays."""
    if isinstance(value, np.ma.MaskedArray):
        _refuse("it is a masked array, and a file has no masks; pass x.filled(0)")
    if value.ndim == 0:
        return _node(value[()], forced, depth)
    _check_depth(depth)
    if value.ndim > 1:
        return Node(ValueType.ARRAY, [_array_type(row, forced, depth + 1) for row in value], ValueType.ARRAY)
    if value.dtype.kind not in "biuf":
        if value.dtype.kind in "UT":
            return _of_sequence(value.tolist(), forced, depth)
        _refuse(
            f"a NumPy array of {value.dtype} is nothing that GGUF can hold; pass numbers or a list of str"
        )
    kind = _of_dtype(value.dtype) if forced is None else forced
    if kind is ValueType.STRING:
        _refuse("numbers were given for text; pass a list of str")
    return Node(ValueType.ARRAY, _numbers(value, kind), kind)


def _of_sequence(value: Sequence[Any], forced: ValueType | None, depth: int) -> Node:
    _check_depth(depth)
    items = list(value)
    nested = [_is_sequence(item) for item in items]
    if any(nested) or (isinstance(value, Array) and value.type is ValueType.ARRAY):
        if not all(nested):
            _refuse_mixed(items)
        return Node(ValueType.ARRAY, [_node(item, forced, depth + 1) for item in items], ValueType.ARRAY)
    kind = _common_type(items) if forced is None else forced
    if kind is ValueType.STRING:
        return Node(ValueType.ARRAY, [_text(item) for item in items], kind)
    return Node(ValueType.ARRAY, _numbers(items, kind), kind)


def _is_sequence(item: object) -> bool:
    if isinstance(item, np.ndarray):
        return item.ndim > 0
    return isinstance(item, Sequence) and not isinstance(item, str | bytes | bytearray | memoryview)


def _common_type(items: list[Any]) -> ValueType:
    """One type for all elements; an empty list becomes INT32, the type of a list of ints."""
    if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        return _smallest(FOR_INTS, min(items, default=0), max(items, default=0))
    kinds = {_scalar_type(item) for item in {type(item): item for item in items}.values()}
    if kinds == {ValueType.FLOAT32, ValueType.FLOAT64}:
        return ValueType.FLOAT64
    if len(kinds) > 1 and all(
        isinstance(item, int | np.integer) and not isinstance(item, bool) for item in items
    ):
        return _smallest(FOR_INTS, int(min(items)), int(max(items)))
    if len(kinds) > 1:
        _refuse_mixed(items)
    return kinds.pop()


def _refuse_mixed(items: list[Any]) -> NoReturn:
    kinds = sorted({type(item).__name__ for item in items})
    if any(_is_sequence(item) for item in items):
        _refuse(
            f"a list mixes {', '.join(kinds)}; the elements of a GGUF array are all arrays or none is; "
            "flatten the list, or put each single element into a list of its own"
        )
    _refuse(
        f"a list mixes {', '.join(kinds)}; a GGUF array holds one type; convert the elements to one type, "
        'or force one with Typed(list, "float32")'
    )


def _check_depth(depth: int) -> None:
    if depth >= MAX_DEPTH:
        _refuse(f"lists lie more than {MAX_DEPTH} deep in each other; readers refuse that; flatten them")


# --- contents -------------------------------------------------------------------------------


def _text(value: object) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if not isinstance(value, str):
        _refuse(f"{_shown(value)} was given for text; pass a str")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        _refuse(
            f"the text {short(value)} has a lone surrogate at {error.start}, which UTF-8 cannot hold; "
            'replace it, or pass its bytes as Typed(data, "string")'
        )


def _number(value: Any, kind: ValueType) -> NDArray[Any]:
    if isinstance(value, bytes | bytearray | memoryview):
        _refuse(f"bytes were given for a {kind.word}; pass a number, or list(data) for an array")
    return _numbers([value], kind).reshape(())


def _numbers(values: Sequence[Any] | NDArray[Any], kind: ValueType) -> NDArray[Any]:
    """Numbers in the type's dtype and this machine's byte order, nothing lost but float precision."""
    dtype = NUMBERS[kind].newbyteorder("=")
    same = isinstance(values, np.ndarray) and values.dtype.newbyteorder("=") == dtype
    if isinstance(values, np.ndarray) and same and kind is not ValueType.BOOL:
        return values.astype(dtype)
    items = values.tolist() if isinstance(values, np.ndarray) else values
    for item in _telling(items):
        _check_number(item, kind)
    with np.errstate(over="ignore"):
        values = np.array(items, dtype)
    if dtype.kind == "f":
        wide = np.array(items, np.float64)
        lost = np.isinf(values) & np.isfinite(wide)
        if lost.any():
            _refuse(
                f"the float {float(wide[lost][0])!r} is too large for {kind.word}; "
                'write it as Typed(value, "float64")'
            )
    return values


def _telling(items: Sequence[Any]) -> Iterable[Any]:
    """The elements that decide whether all fit: of a long list of one Python type the extremes."""
    types = set(map(type, items))
    if types == {int}:
        return min(items), max(items)
    return items[:1] if types in ({float}, {bool}, {str}) else items


def _check_number(item: Any, kind: ValueType) -> None:
    """Refuse a number that the type does not hold, before NumPy could wrap it or round it."""
    item = item.item() if isinstance(item, np.generic) else item
    truth = isinstance(item, bool)
    if kind is ValueType.BOOL:
        good = truth
    elif NUMBERS[kind].kind == "f":
        good = isinstance(item, float) or (isinstance(item, int) and not truth and abs(item) < 1 << 1023)
    else:
        limits = np.iinfo(NUMBERS[kind])
        good = isinstance(item, int) and not truth and limits.min <= item <= limits.max
    if not good:
        _refuse(f"{_shown(item)} does not fit {kind.word}; change the value or the type")


def _shown(item: object) -> str:
    if isinstance(item, int) and item.bit_length() > 128:
        return f"an integer of {item.bit_length()} bits"  # Python refuses to print very long ones
    return f"{type(item).__name__} {short(item)}"


def _refuse(reason: str) -> NoReturn:
    raise GGUFError(reason)
