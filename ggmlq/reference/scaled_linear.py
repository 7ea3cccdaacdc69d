"""The oracle of ``scaled_linear``: products of codes with scales, in float64 or as a program sums them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.scaled import ScaledArray
from ..base.devices import to_host
from ..codes.tiling import expanded
from ..dispatch.checks import check_columns
from ..errors import UnsupportedError
from ..ops.operands import check_pair, check_weights
from .multiply import Planar, product
from .operands import Wide

SLAB = 1 << 22  # elements of either operand at a time
STEP = 32  # products that Hopper's tensor cores add at a time, in FP8
BITS = 13  # bits after the leading one that they keep of a sum
SUMS = ("exact", "float32", "fp22")


def scaled_linear(
    x: Any, w: ScaledArray, accumulate: str = "exact", promote: int | None = None
) -> NDArray[np.float64]:
    """``x [..., K] @ w [N, K].T`` on the host.

    Parameters
    ----------
    x, w : ScaledArray
        On any device. Floats x are taken as they are.
    accumulate : str
        ``"exact"``: everything in float64. ``"float32"``: the sums of a group of K that shares its scales,
        and those of the groups, are rounded to float32 after each step of 32. ``"fp22"``: as Hopper's
        tensor cores do with FP8: within a group of K a sum keeps 13 bits behind the leading one, truncated
        after each step of 32; groups are added in float32.
    promote : int, optional
        For the last two: the products after which a sum is added in float32, if scales change less often.

    >>> import numpy as np, ggmlq as gq
    >>> rng = np.random.default_rng(0)
    >>> x, w = (gq.quantize_scaled(rng.random((8, 4096)), "e4m3", (1, None)) for _ in "xw")
    >>> exact = gq.reference.scaled_linear(x, w)
    >>> for promote in (4096, 128):
    ...     y = gq.reference.scaled_linear(x, w, "fp22", promote)
    ...     print(f"{np.abs(y - exact).mean() / exact.mean():.0e}")
    3e-03
    1e-04
    """
    request = "reference.scaled_linear(x, w)"
    if accumulate not in SUMS:
        raise UnsupportedError(
            f"{request}: accumulate={accumulate!r}; sums are {', '.join(SUMS)}; pass one of these"
        )
    check_weights(request, w)
    x, w = to_host(x), to_host(w)
    if not isinstance(x, ScaledArray):
        floats = np.asarray(x, np.float64)
        check_columns(request, floats, w)
        return np.asarray(floats @ w.dequantize(np.float64).T)
    check_pair(request, x, w)
    rows, columns = x.tiling.rows, w.shape[0]
    y = np.empty((rows, columns))
    step = max(1, SLAB // max(w.shape[1], 1))
    with np.errstate(all="ignore"):
        for i in range(0, rows, step):
            for j in range(0, columns, step):
                a, b = slice(i, min(i + step, rows)), slice(j, min(j + step, columns))
                if accumulate == "exact":
                    y[a, b] = _exact(x, a, w, b)
                else:
                    y[a, b] = _stepwise(x, a, w, b, accumulate, promote)
    return y.reshape(*x.shape[:-1], columns)


def _exact(x: ScaledArray, a: slice, w: ScaledArray, b: slice) -> Wide:
    group = max(1, min(x.tiling.c, w.tiling.c))
    starts = np.arange(0, x.tiling.columns, group)
    lengths = np.diff([*starts, x.tiling.columns])
    return product(_planar(x, a, starts), _planar(w, b, starts), lengths)


def _planar(s: ScaledArray, rows: slice, starts: NDArray[Any]) -> Planar:
    """Rows of an operand, its offsets and sums by the groups that start there."""
    codes, scales, zeros = _rows(s, rows)
    scaled = codes * scales
    sums = np.add.reduceat(scaled, starts, axis=1) if starts.size else np.zeros((len(codes), 0))
    if zeros is None:
        return Planar(scaled, None, sums)
    offset = np.broadcast_to(scales * zeros, scaled.shape)[:, starts]
    return Planar(scaled, offset, sums)


def _rows(s: ScaledArray, rows: slice) -> tuple[Wide, Wide, Wide | None]:
    """Codes, scales and zero points of some rows, the latter broadcast along them."""
    m, numbers = s.matrix(), np.arange(rows.start, rows.stop)
    over = m.over._replace(rows=len(numbers), r=1)
    tiles = numbers // m.over.r
    codes = m.code.decode(m.codes[rows]).astype(np.float64)
    scales = expanded(np, m.scales[tiles], over).astype(np.float64)
    zeros = None if m.zeros is None else expanded(np, m.zeros[tiles], over).astype(np.float64)
    return codes, scales, zeros


def _stepwise(x: ScaledArray, a: slice, w: ScaledArray, b: slice, sums: str, promote: int | None) -> Wide:
    """Step by step of 32 products, the sums of a group kept in few bits, the groups in float32."""
    qa, sa, za = _rows(x, a)
    qb, sb, zb = _rows(w, b)
    qa, qb = qa if za is None else qa - za, qb if zb is None else qb - zb
    sa, sb = (np.broadcast_to(s, q.shape) for s, q in ((sa, qa), (sb, qb)))
    k = x.tiling.columns
    group = min(x.tiling.c, w.tiling.c, promote or k)
    total = np.zeros((len(qa), len(qb)), np.float32)
    for start in range(0, k, max(group, 1)):
        stop, inner = min(start + group, k), np.zeros(total.shape)
        for at in range(start, stop, STEP):
            part = slice(at, min(at + STEP, stop))
            inner = _rounded(inner + qa[:, part] @ qb[:, part].T, sums)
        scale = sa[:, start, None].astype(np.float32) * sb[:, start].astype(np.float32)
        total += inner.astype(np.float32) * scale
    return total.astype(np.float64)


def _rounded(values: Wide, sums: str) -> Wide:
    """The sum as an accumulator holds it."""
    if sums == "float32":
        return values.astype(np.float32).astype(np.float64)
    mantissa, exponent = np.frexp(values)  # 0.5 … 1: the leading bit and BITS more
    cut = np.ldexp(np.trunc(np.ldexp(mantissa, BITS + 1)), -BITS - 1)
    return np.where(np.isfinite(values), np.ldexp(cut, exponent), values)
