"""``gq.attention``: softmax(scale·q·kᵀ + mask)·v over keys and values that stay in blocks."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..arrays.array import QuantArray
from ..arrays.scaled import ScaledArray
from ..arrays.tensors import untraced
from ..arrays.weights import Divided
from ..base.devices import cuda_module, device_of, on_device_of
from ..base.text import short
from ..dispatch.checks import check_flag, check_out, float_dtype, is_bfloat16
from ..errors import ShapeError, UnsupportedError
from ..formats import FORMATS, Format
from .attending import Attention, by_distance, checked

# By device: kernels with their arithmetics, the usual one first.
KERNELS = {"cpu": {"cpu:rows": "f32", "cpu:amx": "bf16"}, "cuda": {"cuda:one_pass": "f16"}}
STEP = 32  # columns of a tile of Intel's matrix unit


@untraced
def attention(
    q: Any, k: Any, v: Any, *, scale: float | None = None, causal: bool = False, mask: Any = None,
    lengths: Any = None, window: int | None = None, softcap: float = 0.0, sinks: Any = None,
    alibi: Any = 0.0, kernel: str = "auto", arithmetic: str | None = None, invariant: bool = False,
    out: Any = None,
    dtype: DTypeLike | None = None,
) -> Any:  # fmt: skip
    """Attention of queries over keys and values that stay in their blocks.

    Scores and results are sums of float32. On a CPU they are sums of the decoded keys and values, and the
    bits of a row depend on no other row and on no number of threads. By ``arithmetic="bf16"`` Intel's matrix
    unit multiplies (``"cpu:amx"``): queries, keys, values and weights are rounded to bfloat16. On a GPU they
    are rounded to 16 bits: to bfloat16 for keys or values of bfloat16, else to float16, of at most 65504. A
    query that sees no position gets zeros.

    Parameters
    ----------
    q : array of floats
        Queries [B, H, T, D] of any kind of floats.
    k, v : QuantArray, ScaledArray or array of floats
        Keys [B, HK, S, D] and values [B, HK, S, DV], of types of their own; H is a multiple of HK, whose
        heads are shared by neighbours. v may be columns of k: ``k[..., :512]``. Both may be divided among
        devices by heads: ``gq.parallel.shard(k, devices, axis="heads")``.
    scale : float, optional
        The factor of scores; 1 / sqrt(D) by default.
    causal : bool
        The last query is at the last position, those before it each one earlier; none sees a later position.
    mask : array, optional
        Broadcast to [B, H, T, S]: True where a query sees a position; or floats that are added to scores,
        minus infinity where it does not. Values there must be finite.
    lengths : array of int, optional
        The number of positions of each sequence, [B], at most S. On a GPU it may lie there: nothing waits for
        it, and larger numbers count as S.
    window : int, optional
        A query sees so many positions up to its own, and no later one: as with ``causal=True``. For one to
        both sides pass a mask.
    softcap : float
        Scores s become ``softcap * tanh(s / softcap)`` before the mask.
    sinks : array of floats, optional
        Logits [H] that take part in the sum of the softmax alone.
    alibi : float or array of floats
        The largest bias of ALiBi, or slopes [H]: scores get -slope times the distance of a position, an
        earlier or a later one, from the query's own; or with a mask slope times that.
    kernel, arithmetic : str, optional
        ``"auto"``, ``"cpu:rows"``, ``"cpu:amx"`` or ``"cuda:one_pass"``; None, ``"f32"``, ``"bf16"`` or on a
        GPU ``"f16"``.
    invariant : bool
        Rows do not depend on the rows beside them, as in ``"cpu:rows"`` anyway. On a GPU it takes longer for
        many rows, and positions are added up in parts of equal length.
    out, dtype : array; dtype
        The result goes into ``out``, of any floats; or it is a new array of ``dtype``, float32 by default.

    >>> import numpy as np, ggmlq as gq
    >>> rng = np.random.default_rng(0)
    >>> k, v = (gq.quantize(rng.standard_normal((1, 2, 100, 64)), "q8_0") for _ in range(2))
    >>> q = rng.standard_normal((1, 8, 4, 64), np.float32)
    >>> y = gq.attention(q, k, v, causal=True)
    >>> bool(gq.nmse(y, gq.reference.attention(q, k, v, causal=True)) < 1e-11)
    True
    """
    request = "attention(q, k, v)"
    if isinstance(k, Divided):
        return k.run(
            "attention", q, v, scale=scale, causal=causal, mask=mask, lengths=lengths, window=window,
            softcap=softcap, sinks=sinks, alibi=alibi, kernel=kernel, arithmetic=arithmetic,
            invariant=invariant, out=out, dtype=dtype,
        )  # fmt: skip
    check_flag(request, "invariant", invariant)
    a = by_distance(checked(request, q, k, v, scale, causal, mask, lengths, window, softcap, sinks, alibi))
    place = device_of(a.q)
    name = _kernel(request, a, place, kernel, arithmetic, invariant)
    kind = float_dtype(request, dtype)
    if out is not None:
        check_out(request, out, a.shape, place)
        kind = out.dtype
    result = _on_host(request, a, name) if place == "cpu" else _on_gpu(request, a, kind, invariant)
    if out is not None:
        out[...] = result
        return out
    return result.astype(kind, copy=False)


def _kernel(
    request: str, a: Attention, place: str, kernel: str, arithmetic: str | None, invariant: bool
) -> str:
    """The name of the kernel that a call names, or of the fastest in its arithmetic."""
    kernels = KERNELS[place.partition(":")[0]]
    words = isinstance(kernel, str) and isinstance(arithmetic, str | None)  # an array is equal to no word
    named = {name: rounding for name, rounding in kernels.items() if words and kernel in ("auto", name)}
    fit = [name for name, rounding in named.items() if arithmetic in (None, rounding)]
    if not fit:
        listed = ", ".join(f"{name!r} in {rounding!r}" for name, rounding in kernels.items())
        raise UnsupportedError(
            f"{request} on {place}: kernel={short(kernel)}, arithmetic={short(arithmetic)}; its kernels and "
            f"their arithmetics are {listed}; leave both out, or name one of these"
        )
    if fit[0] == "cpu:amx" and (reason := _refused(a, invariant)) is not None:
        raise UnsupportedError(
            f"{request}: kernel={kernel!r}, arithmetic={arithmetic!r}: 'cpu:amx' cannot be used: {reason}; "
            "leave kernel and arithmetic out"
        )
    return fit[0]


def on_this_cpu() -> str:
    """A sentence on the kernel that ``auto`` takes on this CPU, and why."""
    if (reason := import_module("ggmlq.cpu.amx.permission").refused()) is not None:
        return f"attention: cpu:rows ({reason})"
    return 'attention: cpu:rows; arithmetic="bf16" takes cpu:amx, faster from some 16 rows of queries on'


def _refused(a: Attention, invariant: bool) -> str | None:
    """None if the matrix unit can take a call, or the reason why not."""
    if invariant:
        return "with invariant=True rows keep their bits in 'cpu:rows' alone"
    for width in (a.k.shape[3], a.v.shape[3]):
        if width % STEP or not width:
            return f"its tiles hold {STEP} columns, and rows have {width}"
    refused: str | None = import_module("ggmlq.cpu.amx.permission").refused()
    return refused


def _on_gpu(request: str, a: Attention, kind: np.dtype[Any], invariant: bool) -> Any:
    """The result in a kind that the kernel writes: float32 for float64."""
    with on_device_of(request, a.q, a.k if isinstance(a.k, QuantArray) else None):
        return cuda_module("attention.call").attend(
            request, a, invariant, np.float32 if kind == np.float64 else kind
        )


def _on_host(request: str, a: Attention, kernel: str) -> NDArray[np.float32]:
    result = np.empty(a.shape, np.float32)
    if result.size:
        with np.errstate(over="ignore", invalid="ignore"):
            _attend(request, a, result, kernel)
    return result


def _attend(request: str, a: Attention, result: NDArray[np.float32], kernel: str = "cpu:rows") -> None:
    drive = import_module("ggmlq.cpu.attention.drive")
    (k, k_raw), (v, v_raw) = _rows(request, a.k, "k"), _rows(request, a.v, "v")
    same = k is v and k_raw.ctypes.data == v_raw.ctypes.data and k_raw.strides == v_raw.strides
    slopes, sinks = (None if n is None else np.ascontiguousarray(n, np.float32) for n in (a.slopes, a.sinks))
    drive.attend(
        np.ascontiguousarray(a.q, np.float32), drive.Rows(k, k_raw), drive.Rows(v, v_raw),
        same and a.v.shape[3] <= a.k.shape[3], a.lengths, _mask(a, drive.padded(a.k.shape[2])), sinks, slopes,
        drive.Options(a.scale, a.softcap, a.causal, a.window), result,
        import_module("ggmlq.cpu.amx.unit").Unit if kernel == "cpu:amx" else None,
    )  # fmt: skip


def _rows(request: str, rows: Any, name: str) -> tuple[Format, NDArray[np.uint8]]:
    """The format and the bytes of keys or values, [B, HK, S, bytes]."""
    if isinstance(rows, QuantArray):
        if rows.format.name != "f32" and not import_module("ggmlq.cpu.unpack").has_walk(rows.format):
            raise UnsupportedError(
                f"{request}: {name} is {rows!r}; attention reads f16, bf16, f32 and types of blocks; pass "
                f"{name}.dequantize()"
            )
        return rows.format, rows.raw
    if isinstance(rows, ScaledArray):
        rows = rows.dequantize()
    stem = "bf16" if is_bfloat16(rows) else "f16" if rows.dtype == np.float16 else "f32"
    floats = rows if stem != "f32" or rows.dtype == np.float32 else rows.astype(np.float32)
    if floats.strides[3] != floats.itemsize or not floats.dtype.isnative or floats.shape[3] == 1:
        floats = np.ascontiguousarray(floats, floats.dtype.newbyteorder("="))
    if not floats.shape[3]:
        raise ShapeError(f"{request}: rows of {name} are empty, {floats.shape}; pass rows with columns")
    return FORMATS[stem], floats.view(np.uint8)


def _mask(a: Attention, positions: int) -> NDArray[np.float32] | None:
    """The mask as float32 over whole tiles of positions; axes that it is broadcast along have stride 0."""
    if a.mask is None:
        return None
    mask = np.where(a.mask, np.float32(0), np.float32(-np.inf)) if a.mask.dtype.kind == "b" else a.mask
    whole = np.zeros((*mask.shape[:3], positions), np.float32)
    whole[..., : a.k.shape[2]] = mask
    return np.broadcast_to(whole, (*a.q.shape[:3], positions))
