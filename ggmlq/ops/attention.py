"""``gq.attention``: softmax(scale·q·kᵀ + mask)·v over keys and values that stay in blocks."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..arrays.array import QuantArray
from ..arrays.scaled import ScaledArray
from ..arrays.tensors import untraced
from ..arrays.weights import Divided
from ..base.devices import cuda_module, device_of, is_host, namespace, on_device_of
from ..base.text import short
from ..dispatch.checks import as_array, check_flag, finite
from ..errors import BlockIndexError, DeviceError, DTypeError, ShapeError, UnsupportedError
from .door import integers, operand
from .epilogue import Wishes, ended, result_of

SHAPES = "q is [B, H, T, D], k [B, HK, S, D] and v [B, HK, S, DV], H a multiple of HK"


class Attention(NamedTuple):
    """The operands of a call."""

    q: Any  # floats [B, H, T, D]
    k: Any  # QuantArray, ScaledArray or floats [B, HK, S, D]
    v: Any  # the same [B, HK, S, DV]
    scale: float
    causal: bool
    mask: Any  # bool or floats that broadcast to [B, H, T, S], or None
    lengths: Any  # int64 [B]: positions that there are; on the host or a GPU
    window: int  # positions that a query sees up to its own; 0 for all
    softcap: float
    sinks: Any  # floats [H], or None
    slopes: NDArray[np.float64] | None  # [H]
    device: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return (*self.q.shape[:3], self.v.shape[3])


def checked(
    request: str, q: Any, k: Any, v: Any, scale: float | None = None, causal: bool = False, mask: Any = None,
    lengths: Any = None, window: int | None = None, softcap: float = 0.0, sinks: Any = None,
    alibi: Any = 0.0,
) -> Attention:  # fmt: skip
    """The checked operands; all lie on one device."""
    floats = operand(request, q, "q", bfloat16=True)
    q, place = floats.array, floats.device
    (k, place_k), (v, place_v) = _rows(request, k, "k"), _rows(request, v, "v")
    _check_shapes(request, q.shape, k.shape, v.shape)
    if not place == place_k == place_v:
        raise DeviceError(
            f"{request}: q on {place}, k on {place_k}, v on {place_v}; all are on one device; move arrays "
            "with .to(…), cupy.asarray or .get()"
        )
    batch, heads, queries, width = q.shape
    positions = k.shape[2]
    check_flag(request, "causal", causal)
    scale = 1 / math.sqrt(width) if scale is None else _number(request, "scale", scale)
    return Attention(
        q, k, v, scale, bool(causal), _checked_mask(request, mask, (batch, heads, queries, positions), place),
        _lengths(request, lengths, batch, positions, place), _window(request, window, positions),
        _number(request, "softcap", softcap, 0), by_head(request, sinks, heads, "sinks", "logit", place),
        slopes_of(request, alibi, heads, place), place,
    )  # fmt: skip


def _rows(request: str, rows: Any, name: str) -> tuple[Any, str]:
    """Keys or values as kernels take them, and their device."""
    if isinstance(rows, QuantArray) and rows.scale is not None:  # kernels read blocks alone
        return rows.dequantize(), rows.device
    if isinstance(rows, QuantArray | ScaledArray):
        return rows, rows.device
    floats = operand(request, rows, name, bfloat16=True)
    return floats.array, floats.device


def _number(request: str, name: str, number: Any, least: float = -math.inf) -> float:
    value = finite(number)
    if value is None or value < least:
        rule = "a finite number" if least else "a finite number from 0 on, 0 for none"
        raise DTypeError(f"{request}: {name} is {short(number)}; it is {rule}; pass {name}=0.5")
    return value


def _window(request: str, window: Any, positions: int) -> int:
    """The positions that a query sees up to its own, no more than there are; 0 for all."""
    if window is None:
        return 0
    number = finite(window)
    if isinstance(window, bool) or number is None or not 1 <= number < 2**63 or number % 1:
        raise DTypeError(
            f"{request}: window is {short(window)}; it is a number of positions from 1 to 2**63 - 1, or "
            "None for all; pass 512"
        )
    return min(int(number), max(positions, 1))


def _check_place(request: str, name: str, there: str, place: str) -> None:
    """Refuse an array on a GPU where the queries are not; one on the host goes there with them."""
    if there not in ("cpu", place):
        raise DeviceError(
            f"{request}: {name} on {there}, q on {place}; both are on one device; pass {name}.get()"
        )


def by_distance(a: Attention) -> Attention:
    """The operands as kernels take them: where later positions are seen, ALiBi's distances are a mask.

    By themselves kernels add slope times (position - own), which would favour later ones.
    """
    if a.slopes is None or a.mask is not None or a.causal or a.window:
        return a
    xp, queries, positions = namespace(a.lengths), a.q.shape[2], a.k.shape[2]
    lengths = a.lengths if not is_host(a.lengths) or len({*a.lengths.tolist()}) > 1 else a.lengths[:1]
    places = xp.minimum(lengths, positions)[:, None] - queries + xp.arange(queries)
    mask = xp.arange(positions, dtype=np.float32) - places[:, None, :, None].astype(np.float32)
    return a._replace(mask=-abs(mask))


def _check_shapes(request: str, q: Any, k: Any, v: Any) -> None:
    if not len(q) == len(k) == len(v) == 4:
        way = "add axes with [None], or reshape k.reshape(B, HK, S, D)"
        raise ShapeError(f"{request}: shapes are q {q}, k {k}, v {v}; {SHAPES}; {way}")
    alike = q[0] == k[0] and k[:3] == v[:3] and q[3] == k[3]
    if not alike or not k[1] or q[1] % k[1] or not q[3]:
        raise ShapeError(f"{request}: shapes are q {q}, k {k}, v {v}; {SHAPES}; pass shapes that agree")


def _lengths(request: str, lengths: Any, batch: int, positions: int, place: str) -> Any:
    """The number of positions of each sequence: on the host, or where the caller has them."""
    if lengths is None:
        return np.full(batch, positions, np.int64)
    entries = integers(request, lengths, "lengths")
    if entries.shape != (batch,) or entries.dtype.kind not in "iu":
        raise ShapeError(
            f"{request}: lengths are {entries.dtype} {entries.shape}; there is one integer for each of "
            f"{batch} sequences; pass np.array([…])"
        )
    if not entries.on_host and entries.device == place:  # nobody waits for the device to look at them
        return entries.array.astype(np.int64, copy=False)
    numbers = (entries.array if entries.on_host else entries.array.get()).astype(np.int64)
    if numbers.size and not (numbers.min() >= 0 and numbers.max() <= positions):
        raise BlockIndexError(
            f"{request}: lengths are {numbers.tolist()}; k has {positions} positions; a length is from 0 "
            "to that; correct them"
        )
    return np.ascontiguousarray(numbers)


def _checked_mask(request: str, mask: Any, shape: tuple[int, ...], place: str) -> Any:
    if mask is None:
        return None
    if not hasattr(mask, "dtype"):
        mask = as_array(request, mask, "mask", "an array of floats or bools")
    if getattr(mask.dtype, "kind", "") == "b":  # of a tensor it has none
        there = device_of(mask)
    else:
        floats = operand(request, mask, "mask")
        mask, there = floats.array, floats.device
    try:
        np.broadcast_to(np.empty(mask.shape, "V0"), shape)
    except ValueError:
        raise ShapeError(
            f"{request}: the mask has shape {mask.shape}, scores {shape}; it is broadcast to [B, H, T, S]; "
            "pass mask[:, None] for one of each sequence"
        ) from None
    _check_place(request, "mask", there, place)
    return mask.reshape((1,) * (4 - mask.ndim) + mask.shape)


def by_head(request: str, numbers: Any, heads: int, name: str, word: str, place: str) -> Any:
    """Numbers [H] as floats, or None."""
    if numbers is None:
        return None
    floats = operand(request, numbers, name)
    if floats.shape != (heads,):
        raise ShapeError(
            f"{request}: {name} have shape {floats.shape}; there is one {word} for each of {heads} heads of "
            f"q; pass shape ({heads},)"
        )
    _check_place(request, name, floats.device, place)
    return floats.array


def slopes_of(request: str, alibi: Any, heads: int, place: str) -> NDArray[np.float64] | None:
    """The slopes of ALiBi on the host, by its largest bias or as they are."""
    alibi = as_array(request, alibi, "alibi's slopes", "an array of floats")
    if alibi.ndim:
        numbers = by_head(request, alibi, heads, "alibi's slopes", "slope", place)
        return np.asarray(numbers if is_host(numbers) else numbers.get(), np.float64)
    most = _number(request, "alibi", alibi, 0)
    return slopes(heads, most) if most else None


def slopes(heads: int, most: float) -> NDArray[np.float64]:
    """The slope of each head under ALiBi with a largest bias of ``most``, as ggml has them; ones for 0."""
    if not most:
        return np.ones(heads)
    low = 1 << (heads.bit_length() - 1)
    first, second = 2.0 ** (-most / low), 2.0 ** (-most / 2 / low)
    return np.array([first ** (h + 1) if h < low else second ** (2 * (h - low) + 1) for h in range(heads)])


# By device: kernels with their arithmetics, the usual one first.
KERNELS = {"cpu": {"cpu:rows": "f32", "cpu:amx": "bf16"}, "cuda": {"cuda:one_pass": "f16"}}
ON_HOST = "ggmlq.cpu.attention.call"


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
    name = _kernel(request, a, kernel, arithmetic, invariant)
    result = result_of(request, Wishes(out, dtype=dtype), a.shape, a.device)
    if a.device == "cpu":
        y = import_module(ON_HOST).attend(request, a, name)
    else:
        y = _on_gpu(request, a, result.dtype, invariant)
    return ended(y if out is not None else y.astype(result.dtype, copy=False), result)


def _kernel(request: str, a: Attention, kernel: str, arithmetic: str | None, invariant: bool) -> str:
    """The name of the kernel that a call names, or of the fastest in its arithmetic."""
    kernels = KERNELS[a.device.partition(":")[0]]
    words = isinstance(kernel, str) and isinstance(arithmetic, str | None)  # an array is equal to no word
    named = {name: rounding for name, rounding in kernels.items() if words and kernel in ("auto", name)}
    fit = [name for name, rounding in named.items() if arithmetic in (None, rounding)]
    if not fit:
        listed = ", ".join(f"{name!r} in {rounding!r}" for name, rounding in kernels.items())
        raise UnsupportedError(
            f"{request} on {a.device}: kernel={short(kernel)}, arithmetic={short(arithmetic)}; its kernels "
            f"and their arithmetics are {listed}; leave both out, or name one of these"
        )
    if fit[0] == "cpu:amx":
        reason = import_module(ON_HOST).refused(a.k.shape[3], a.v.shape[3], invariant)
        if reason is not None:
            raise UnsupportedError(
                f"{request}: kernel={kernel!r}, arithmetic={arithmetic!r}: 'cpu:amx' cannot be used: "
                f"{reason}; leave kernel and arithmetic out"
            )
    return fit[0]


def on_this_cpu() -> str:
    """A sentence on the kernel that ``auto`` takes on this CPU, and why."""
    if (reason := import_module("ggmlq.cpu.amx.permission").refused()) is not None:
        return f"attention: cpu:rows ({reason})"
    return 'attention: cpu:rows; arithmetic="bf16" takes cpu:amx, faster from some 16 rows of queries on'


def _on_gpu(request: str, a: Attention, kind: np.dtype[Any], invariant: bool) -> Any:
    """The result in a kind that the kernel writes: float32 for float64."""
    with on_device_of(request, a.q, a.k if isinstance(a.k, QuantArray) else None):
        return cuda_module("kernels.attention.call").attend(
            request, a, invariant, np.float32 if kind == np.float64 else kind
        )
