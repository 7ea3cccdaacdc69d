"""``gq.cache_error``: the error of attention when keys, values or both are kept in a type of few bits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.devices import to_host
from ..base.progress import Progress
from ..base.text import table
from ..errors import DTypeError
from ..formats import FORMATS
from ..ops.attention import attention
from ..ops.cache import Rotation
from ..ops.quantize import quantize

TYPES = ("f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "mxfp4")
HEADER = ["type", "bits", "rotated", "keys", "values", "both"]


class CacheError(NamedTuple):
    """Errors of attention with a cache of one type: squares of what is off, beside those of the result."""

    type: str
    bits: float  # a number of the cache
    rotated: bool
    keys: float  # where keys alone are in that type
    values: float
    both: float


class CacheErrors(list[CacheError]):
    """Errors, type after type; ``print`` shows them as a table."""

    def __str__(self) -> str:
        return table(
            HEADER,
            [
                [row.type, f"{row.bits:g}", "yes" * row.rotated, *(f"{error:.2e}" for error in row[3:])]
                for row in self
            ],
        )


def averaged(tables: Sequence[CacheErrors]) -> CacheErrors:
    """The means of errors, line by line, of tables of the same types."""
    means = CacheErrors()
    for rows in zip(*tables, strict=True):
        errors = (sum(numbers) / len(rows) for numbers in zip(*(row[3:] for row in rows), strict=True))
        means.append(CacheError(*rows[0][:3], *errors))
    return means


def cache_error(
    q: Any, k: Any, v: Any, types: Iterable[str] | str = TYPES, rotate: Iterable[bool | int] = (False, True),
    **options: Any,
) -> CacheErrors:  # fmt: skip
    """The cost of a cache in few bits: the error of attention for each type, keys and values apart.

    Parameters
    ----------
    q, k, v : arrays of floats
        Queries [B, H, T, D], keys [B, HK, S, D] and values [B, HK, S, DV], as a model has them.
    types : names
        Types of the cache.
    rotate : bools or ints
        Without and with the rotation of ``gq.KVCache(rotate=…)``; a number is the seed of its signs.
    **options
        Those of :func:`ggmlq.attention`, such as ``causal=True``.

    >>> import numpy as np, ggmlq as gq
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = (rng.standard_normal((1, 2, 64, 64), np.float32) for _ in "qkv")
    >>> k[..., 5] *= 20                        # a column of outliers, as keys have them
    >>> for row in gq.cache_error(q, k, v, "q4_0", causal=True):
    ...     print(row.rotated, row.keys < 0.02, row.values < 0.02)
    False False True
    True True True
    """
    request = "cache_error(q, k, v)"
    q, k, v = (_floats(request, x, name) for x, name in ((q, "q"), (k, "k"), (v, "v")))
    want = attention(q, k, v, **options)
    names = [types] if isinstance(types, str) else list(types)
    rows, rotations = CacheErrors(), list(rotate)
    with Progress(len(names) * len(rotations), "attention by type", unit="types") as progress:
        for name in names:
            for rotation in rotations:
                errors = _errors(q, k, v, want, name, rotation, options)
                rows.append(CacheError(name, FORMATS[name].bits_per_weight, rotation is not False, *errors))
                progress.advance(1)
    return rows


def _errors(
    q: Any, k: Any, v: Any, want: Any, name: str, rotate: bool | int, options: dict[str, Any]
) -> tuple[float, float, float]:
    """Errors with keys, values and both in a type."""
    turn_v = None
    keys, queries, values = k, q, v
    if rotate is not False:
        turn_k, turn_v = (Rotation(x.shape[-1], int(rotate)) for x in (k, v))
        queries, keys, values = turn_k.forward(q), turn_k.forward(k), turn_v.forward(v)
    keys, values = quantize(keys, name), quantize(values, name)

    def back(y: NDArray[np.float32]) -> NDArray[np.float32]:
        return y if turn_v is None else turn_v.back(y)

    results = (
        attention(queries, keys, v, **options),
        back(attention(q, k, values, **options)),
        back(attention(queries, keys, values, **options)),
    )
    exact = want.astype(np.float64)
    by_keys, by_values, by_both = (float(((y - exact) ** 2).sum() / (exact**2).sum()) for y in results)
    return by_keys, by_values, by_both


def _floats(request: str, x: Any, name: str) -> NDArray[np.float32]:
    floats = np.asarray(to_host(x))
    if floats.dtype.kind != "f" and floats.dtype.name != "bfloat16":
        raise DTypeError(f"{request}: {name} is {floats.dtype}; it is an array of floats; convert it")
    return floats.astype(np.float32)
