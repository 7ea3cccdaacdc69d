"""``Parts``: floats on several devices, such as the result of a product with sharded weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..arrays.scaled import ScaledArray
from ..base.devices import cuda_device, device_of, is_host, namespace, on_device_of
from ..base.text import short
from ..codes.scaling import laid_out
from ..dispatch.checks import as_floats
from ..errors import DeviceError, DTypeError, ShapeError
from .team import Team, canonical, team_of

# --- cuts of weights: where the part of each device begins and ends -----------------------------
# Rows of one product are the columns of the next one, so both are cut by one rule: at multiples of 256, the
# longest block, where each device gets enough of them to be even; else at multiples of 32 (of 128 for codes
# with scales, as activations have their tiles), else anywhere. Columns are cut between blocks or tiles, rows
# of a ScaledArray between tiles.

Spans = tuple[tuple[int, int], ...]
COARSE, FINE, TILE = 256, 32, 128  # elements
EVEN = 4  # steps of 256 that a device must have


def spans(request: str, q: Any, count: int, axis: Any, cuts: Sequence[int] | None = None) -> Spans:
    """The begin and the end of each device's part along the axis that is cut."""
    length, unit = measures(q, axis)
    if cuts is not None:
        return _spans_at(request, length, unit, count, cuts)
    step = _step(length, unit, count, axis, TILE if isinstance(q, ScaledArray) else FINE)
    units = -(-length // step)
    if units < count:
        what = {0: "rows", 1: f"columns, in blocks or tiles of {unit}"}.get(axis, axis)
        raise ShapeError(
            f"{request}: {length} {what} are not enough for {count} devices; each has one at least; cut "
            "another axis, or name fewer devices"
        )
    ends = [min(length, step * (units * i // count)) for i in range(count + 1)]
    ends[-1] = length
    return tuple(pairwise(ends))


def _step(length: int, unit: int, count: int, axis: Any, fine: int) -> int:
    if axis in ("experts", "heads"):
        return 1
    if length >= EVEN * count * math.lcm(unit, COARSE):
        return math.lcm(unit, COARSE)
    step = math.lcm(unit, fine)
    if -(-length // step) >= count:
        return step
    return 1 if axis == 0 and -(-length // unit) < count else unit


def measures(q: Any, axis: Any) -> tuple[int, int]:
    """The length of an axis, and the unit that all cuts are multiples of."""
    if axis == "experts":
        return len(q), 1
    if axis == "heads":
        return q.shape[1], 1
    if axis == 1:
        return q.shape[-1], q.unit
    n = q.shape[-2]
    r = q.tiling.r if isinstance(q, ScaledArray) else 1
    return n, r if r <= n and (q.ndim == 2 or n % r == 0) else 1


def _spans_at(request: str, length: int, unit: int, count: int, cuts: Sequence[int]) -> Spans:
    """Cuts that the caller names: as ``s.cuts`` gives them, without the ends."""
    whole = isinstance(cuts, Sequence | np.ndarray) and all(
        isinstance(n, int | np.integer) and not isinstance(n, bool) for n in cuts
    )
    ends = [0, *(int(n) for n in cuts), length] if whole else []
    if len(ends) != count + 1 or any(a >= b for a, b in pairwise(ends)) or any(n % unit for n in ends[1:-1]):
        raise ShapeError(
            f"{request}: cuts={short(cuts)}; {count} devices need {count - 1} rising numbers between 0 and "
            f"{length}, multiples of {unit}; pass those of an array that goes with it, s.cuts, or none"
        )
    return tuple(pairwise(ends))


def piece(q: Any, axis: Any, first: int, end: int) -> Any:
    """A part of an array, a view where the array's own slices are views."""
    if axis == "experts":
        return q[first:end]
    if axis == 1:
        return q[..., first:end]
    if axis == "heads":
        return q[:, first:end]
    if q.ndim == 2:
        return q[first:end]
    if isinstance(q, ScaledArray) and measures(q, 0)[1] > 1 and q.tiling.r < q.tiling.rows:
        return _tiles(q, first, end)
    return q[:, first:end]


def _tiles(q: ScaledArray, first: int, end: int) -> ScaledArray:
    """Rows of every expert, with whole tiles of scales: a plain slice would bring one scale a row."""
    experts, n, _ = q.shape
    r = q.tiling.r
    with on_device_of(f"rows {first} to {end} of each expert of {q!r}", q.codes):
        xp = namespace(q.codes)
        parts = []
        for part in q.parts()[1:]:
            scales = part.reshape(experts, n // r, -1)[:, first // r : -(-end // r)]
            parts.append(laid_out(xp, part, xp.ascontiguousarray(scales.reshape(-1, scales.shape[-1]))))
        scales, *zeros = parts
        return ScaledArray(q.codes[:, first:end], scales, q.code, q.tile, *zeros)


# --- floats on several devices ------------------------------------------------------------------


class Parts:
    """Parts of a result on several devices, which the next product takes as they are.

    Each part is a plain array on its device, ready in the order of that device's current stream.

    >>> import numpy as np, ggmlq as gq
    >>> s = gq.parallel.shard(gq.quantize(np.eye(64, dtype=np.float32), "q8_0"), ["cpu", "cpu"])
    >>> y = gq.parallel.linear(np.ones(64, np.float32), s)
    >>> y, y.parts[1].shape, y.gather().shape
    (<Parts (64,) in 32 + 32, float32, cpu, cpu>, (32,), (64,))
    """

    def __init__(self, parts: Sequence[Any], spans: Spans | None, team: Team) -> None:
        """``spans``: begin and end of each part on the last axis; None: every part is the whole."""
        self.parts: tuple[Any, ...] = tuple(parts)
        self.spans = spans
        self.team = team
        self._graph_memory: list[Any] = []  # of copies in CUDA graphs, where the driver tells no end

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of the parts."""
        return self.team.devices

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole."""
        shape: tuple[int, ...] = self.parts[0].shape
        return shape if self.spans is None else (*shape[:-1], self.spans[-1][1])

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of every part."""
        dtype: np.dtype[Any] = self.parts[0].dtype
        return dtype

    def gather(self, device: str | None = None) -> Any:
        """The whole as one array: on the first device, or on another one of them."""
        home = self.devices[0] if device is None else str(device)
        if home not in self.devices:
            if home == "cpu":
                return self.gather().get()
            raise DeviceError(
                f'gather({device!r}) of {self!r}: it has no part there; one of its devices, or "cpu", can '
                "have the whole; leave the device out"
            )
        with self.team.run(home, self._graph_memory) as run:
            return gathered(run, self.parts, self.spans, self.shape, home, self.devices)

    def map(self, function: Callable[..., Any], *others: Parts) -> Parts:
        """``function(part, *parts of others)`` on each device, for example an activation function.

        It gets and gives plain arrays, and works element by element along the last axis.

        >>> import numpy as np, ggmlq as gq
        >>> x = gq.parallel.replicate(np.ones(4, np.float32), ["cpu", "cpu"])
        >>> x.map(lambda a, b: a + b, x).gather()
        array([2., 2., 2., 2.], dtype=float32)
        """
        request = f"map(function) of {self!r}"
        for other in others:
            if not isinstance(other, Parts):
                raise DTypeError(
                    f"{request}: an operand is a {type(other).__name__}; all are Parts, on the same devices; "
                    "pass gq.parallel.replicate(x, devices) for what is the same everywhere"
                )
            if other.devices != self.devices or other.spans != self.spans:
                raise ShapeError(
                    f"{request}: an operand is {other!r}; operands are cut alike on the same devices; shard "
                    "the weights of both alike, or with cuts=s.cuts"
                )
        results = []
        with self.team.run(self.devices[0], self._graph_memory) as run:
            run.fork()
            for position, part in enumerate(self.parts):
                with run.on(position):
                    results.append(function(part, *(other.parts[position] for other in others)))
        for part, result in zip(self.parts, results, strict=True):
            if getattr(result, "shape", None) != part.shape or device_of(result) != device_of(part):
                raise ShapeError(
                    f"{request}: the function made {type(result).__name__} of shape "
                    f"{getattr(result, 'shape', None)} from {part.shape}; it gives an array like the part, "
                    "on its device"
                )
        return Parts(results, self.spans, self.team)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if self.devices[0] != "cpu":
            raise DeviceError(
                f'np.asarray({self!r}): it is not on the host; use y.gather("cpu"), or y.gather() for an '
                "array on a device"
            )
        return np.asarray(self.gather(), dtype)

    def __repr__(self) -> str:
        cut = "" if self.spans is None else f" in {' + '.join(str(end - first) for first, end in self.spans)}"
        same = ", the same on each" if self.spans is None and len(self.parts) > 1 else ""
        return f"<Parts {self.shape}{cut}, {self.dtype}, {', '.join(self.devices)}{same}>"


def gathered(
    run: Any, parts: Sequence[Any], spans: Spans | None, shape: tuple[int, ...], home: str,
    devices: Sequence[str], out: Any = None,
) -> Any:  # fmt: skip
    """One array at home, from slices of the last axis or, without ``spans``, from one of the equal parts."""
    if spans is None:
        at = devices.index(home) if home in devices else 0
        room = run.room(at, shape, parts[at].dtype)
        run.fork()
        return run.take(at, parts[at], room)
    rooms = [run.room(p, part.shape, part.dtype) for p, part in enumerate(parts)]
    run.fork()
    return joined(run, parts, spans, shape, rooms, out)


def joined(
    run: Any, parts: Sequence[Any], spans: Spans, shape: tuple[int, ...], rooms: Sequence[Any], out: Any
) -> Any:
    """The parts brought to one device and joined along the last axis, in ``out`` where there is one."""
    here = [run.take(p, part, room) for p, (part, room) in enumerate(zip(parts, rooms, strict=True))]
    if len(here) == 1 and out is None:
        return here[0]
    with run.at_home():
        y = namespace(here[0]).empty(shape, here[0].dtype) if out is None else out
        for (first, end), part in zip(spans, here, strict=True):
            y[..., first:end] = part
    return y


def silu(x: Any) -> Any:
    """``x / (1 + exp(-x))`` of an array on any device: between the two halves of a feed-forward block."""
    xp = np if is_host(x) else cuda_device().cupy()
    with np.errstate(over="ignore"):  # exp(-x) may be infinite: then it is 0
        return x / (1 + xp.exp(-x))


def replicate(x: Any, devices: Any) -> Parts:
    """Copies of an array on every device, for several products with sharded weights.

    >>> import numpy as np, ggmlq as gq
    >>> gq.parallel.replicate(np.ones((2, 8), np.float32), ["cpu", "cpu"])
    <Parts (2, 8), float32, cpu, cpu, the same on each>
    """
    text = "replicate(x, devices)"
    names = canonical(text, devices)
    x = as_floats(text, x)
    if is_host(x) != (names[0] == "cpu"):
        raise DeviceError(f"{text}: x is on {device_of(x)}; move it to one of them, cupy.asarray(x)")
    team = team_of(names, None)
    held_memory: list[Any] = []
    with team.run(device_of(x), held_memory) as run:
        run.fork()
        results = Parts(run.give([x] * len(names)), None, team)
    results._graph_memory = held_memory
    return results
