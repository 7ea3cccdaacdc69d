"""One call of a FixedGRU: check x and h0, choose a kernel, run each direction, gather the results."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..arrays.tensors import untraced
from ..base.devices import cuda_device, is_host, namespace, on_device_of
from ..dispatch import ladder
from ..dispatch.problems import Gru
from ..errors import DeviceError
from ..fixed.qformat import QFormat, format_of
from . import weights
from .cell import Cell
from .diagnostics import FAR, TALLIED, Tally
from .plan import Plan
from .weights import refuse_not_finite

REQUEST = "FixedGRU(x)"
OFTEN, FEW = 0.1, 100  # share and number of values that saturate because sums round past the end
KINDS = 256  # shapes of calls that are remembered
NAMES = [f"cuda:{index}" for index in range(256)]
INTERMEDIATE = ("z_out", "r_out", "g_out", "Rh_add_br")  # the tensors in v, in its order


class SaturationWarning(UserWarning):
    """Numbers lie outside the range that the calibration saw."""


class Fixed(Protocol):
    """The members of a FixedGRU that a call uses."""

    cells: tuple[Cell, ...]
    tallies: tuple[Tally, ...]
    rounding: str
    dynamic_x: bool
    device: str
    warned: bool
    kinds: dict[Any, Kind]
    recorded: list[Any]  # memory of CUDA graphs

    @property
    def inputs(self) -> int: ...
    @property
    def units(self) -> int: ...
    @property
    def widths(self) -> str: ...
    def plan(self, cell: Cell, x: QFormat) -> Plan: ...


class Call(NamedTuple):
    """The arguments of a kernel for one direction; its results are C-contiguous and on its device."""

    cell: Cell
    plan: Plan
    x: Any  # float32 or float64 [T, N, C], in the order of the steps; C-contiguous on the host
    even: bool  # ties of x to even
    h: Any  # states before the first step: codes [N, H] to be written to; on a device floats, or None
    y: Any  # float32 [T, N, H] to write states to, dequantized
    codes: Any  # [T, N, H] to write the same states to, as codes; or None
    v: Any  # int32 [T, N, 4H] for codes of z, r, g and R_g h + b_rg, or None
    last: Any  # on a device [N, H] for the last states, as codes if ``codes`` is there, else as floats
    counts: NDArray[np.int64]  # in the order of ``diagnostics.TALLIED``, to be added to


@untraced
def run(
    f: Fixed, x: Any, h0: Any, batch_first: bool, return_codes: bool, return_intermediates: bool, kernel: str
) -> tuple[Any, ...]:  # fmt: skip
    """Run a FixedGRU; ``FixedGRU.__call__`` has the parameters."""
    how = batch_first, return_codes, return_intermediates, kernel
    if is_ordinary(f, x, h0, batch_first):
        try:
            return _run_checked(f, x.swapaxes(0, 1) if batch_first else x, None if h0 is None else [h0], *how)
        except MemoryError:
            pass  # the path below raises it with words
    x = weights.seen(REQUEST, x, "x")
    if x.device != f.device:
        raise DeviceError(
            f"{REQUEST}: x is on {x.device}, the GRU on {f.device}; both must be on one device; "
            f"move it with f.to({x.device!r})"
        )
    x = weights.inputs(REQUEST, x, f.inputs, batch_first, f.device)
    starts = weights.states(REQUEST, h0, len(f.cells), x.shape[1], f.units, f.device)
    with on_device_of(REQUEST, x, f):
        return _run_checked(f, x, starts, *how)


def is_ordinary(f: Fixed, x: Any, h0: Any, batch_first: Any) -> bool:
    """True if x and h0 are arrays on the current device that leave nothing to check or to convert.

    This takes a microsecond; checks with errors in words take many.
    """
    if f.device == "cpu" or len(f.cells) > 1 or f.dynamic_x or type(batch_first) is not bool:
        return False
    gpu = cuda_device().driver()
    if type(x) is not gpu.array or x.dtype.char not in "fd" or x.ndim != 3 or not x.dtype.isnative:
        return False
    index, (t, n, c) = gpu.device(), x.shape
    if f.device != NAMES[index] or x.data.device_id != index or c != f.inputs:
        return False
    stream = gpu.stream(index)
    if stream.ptr and stream.is_capturing():
        return False
    if h0 is None:
        return True
    if type(h0) is not gpu.array or h0.dtype.char not in "fd" or not h0.dtype.isnative:
        return False
    state_shape = t if batch_first else n, f.units
    return bool(h0.shape == state_shape and h0.data.device_id == index)


def _run_checked(
    f: Fixed, x: Any, starts: Any, batch_first: bool, codes: bool, v: bool, kernel: str
) -> tuple[Any, ...]:
    """Run a call whose arguments are checked."""
    calls = [_call(f, d, x, starts and starts[d], codes, v) for d in range(len(f.cells))]
    kind = _kind(f, calls, kernel)
    if x.shape[0] and x.shape[1]:
        if kind.alike:
            kind.rungs[0].launch(calls)
        else:
            for rung, call in zip(kind.rungs, calls, strict=True):
                rung.launch([call])
    for d, call in enumerate(calls):
        f.tallies[d].add(call.counts, kind.totals)
        if not f.warned and call.counts.any():
            _warn(f, call, kind.totals)
    return _gathered(calls, starts, codes, v, batch_first)


class Kind(NamedTuple):
    """The facts that all calls of one shape share."""

    rungs: list[ladder.Rung]  # of the directions
    alike: bool  # whether one kernel serves all
    totals: NDArray[np.int64]  # how many numbers are counted, in the order of ``TALLIED``


def _kind(f: Fixed, calls: list[Call], kernel: str) -> Kind:
    """The kind of a call; remembered where constants are those of the calibration."""
    key: Any = (kernel, calls[0].x.shape)
    remembered = type(kernel) is str and not f.dynamic_x
    kind: Kind | None = f.kinds.get(key) if remembered else None
    if kind is None:
        rungs = [_rung(f, call, kernel) for call in calls]
        kind = Kind(rungs, all(rung is rungs[0] for rung in rungs), _totals(calls[0]))
        if remembered:
            if len(f.kinds) >= KINDS:
                f.kinds.clear()
            f.kinds[key] = kind
    return kind


def _call(f: Fixed, d: int, x: Any, h0: Any, codes: bool, v: bool) -> Call:
    """The arguments of a kernel for direction ``d``, with memory for its results."""
    cell, x = f.cells[d], x[::-1] if d else x
    h, counts = cell.formats["h"], np.zeros(len(TALLIED), np.int64)
    if x.dtype.char not in "fd":
        x = x.astype(np.float32)
    host = f.device == "cpu"
    (t, n, _), units, empty = x.shape, cell.units, np.empty if host else cuda_device().driver().empty
    state, last = h0, None
    if host:
        x = np.ascontiguousarray(x)
        state = _zeros(cell, x) if h0 is None else _states(f, cell, h0, counts)
    elif t:
        last = empty((n, units), h.dtype if codes else np.float32)
    elif h0 is not None:
        refuse_not_finite(REQUEST, h0, "h0")  # no kernel will
    return Call(
        cell, f.plan(cell, format_in_call(f, cell, x)), x, f.rounding == "half_even", state,
        empty((t, n, units), np.float32), empty((t, n, units), h.dtype) if codes else None,
        empty((t, n, 4 * units), np.int32) if v else None, last, counts,
    )  # fmt: skip


def _states(f: Fixed, cell: Cell, h0: Any, counts: NDArray[np.int64]) -> Any:
    """Codes of states on the host, and how many did not fit."""
    refuse_not_finite(REQUEST, h0, "h0")
    h, (low, high) = cell.formats["h"], cell.ranges["h"]
    free = h.unclipped(h0, f.rounding)
    state = free.clip(h.low, h.high).astype(h.dtype)
    counts[TALLIED.index("h0")] = int(((free != state) & ((h0 < low) | (h0 > high))).sum())
    return state


def _zeros(cell: Cell, x: Any) -> Any:
    """Codes of states that are zero."""
    h = cell.formats["h"]
    return namespace(x).full((x.shape[1], cell.units), min(max(h.zero, h.low), h.high), h.dtype)


def _decoded(f: QFormat, codes: Any) -> Any:
    """Floats of codes on the host or on a device."""
    if is_host(codes):
        return f.decode(codes)
    return ((codes.astype(np.float64) - f.zero) * 2.0**-f.exponent).astype(np.float32)


def format_in_call(f: Fixed, cell: Cell, x: Any) -> QFormat:
    """The format of x: that of the calibration, or with ``dynamic_x`` from its own extremes."""
    calibrated = cell.formats["x"]
    if not (f.dynamic_x and x.size):
        return calibrated
    symmetric = calibrated.signed and calibrated.zero == 0
    ends = float(x.min()), float(x.max())
    if not np.isfinite(ends).all():
        refuse_not_finite(REQUEST, x, "x")
    fmt = format_of(*ends, calibrated.bits, calibrated.signed, symmetric)
    return calibrated if fmt == calibrated else fmt


def _rung(f: Fixed, call: Call, kernel: str) -> ladder.Rung:
    """The kernel that serves a direction."""
    device, (t, n, c) = f.device.partition(":")[0], call.x.shape
    entries = max(map(len, call.plan.tables))
    problem = Gru(
        f.widths, call.plan.narrow, t, n, c, call.cell.units, _operand_bits(call), entries, device=device,
        card=ladder.current_card(device),
    )  # fmt: skip
    return ladder.choose(problem, kernel)


def _operand_bits(call: Call) -> int:
    """The bits of the widest codes that are multiplied."""
    formats = call.cell.formats
    return max(call.plan.x.bits, *(formats[name].bits for name in ("W", "R", "h")))


def _gathered(calls: list[Call], starts: Any, codes: bool, v: bool, batch_first: bool) -> tuple[Any, ...]:
    """Both directions side by side, in the order of x."""
    if len(calls) == 1 and not v and calls[0].last is not None:
        y = calls[0].codes if codes else calls[0].y
        return y.swapaxes(0, 1) if batch_first else y, calls[0].last
    xp = namespace(calls[0].x)
    ys, hs, vs = [], [], []
    for d, call in enumerate(calls):
        order = slice(None, None, -1 if d else 1)
        ys.append((call.codes if codes else call.y)[order])
        hs.append(_last(call, starts and starts[d], codes))
        if v:
            vs.append((call.v if codes else _values(call))[order])
    along = [xp.concatenate(part, -1) if len(part) > 1 else part[0] for part in (ys, vs) if part]
    y, *more = [part.swapaxes(0, 1) if batch_first else part for part in along]
    return (y, xp.stack(hs) if len(hs) > 1 else hs[0], *more)


def _last(call: Call, start: Any, codes: bool) -> Any:
    """The states after the last step."""
    if len(call.x):
        return (call.codes if codes else call.y)[-1].copy() if call.last is None else call.last
    if start is not None and not codes:  # no step, no rounding: the states that were given
        return start.astype(np.float32)
    h = call.h
    if h is None:
        h = _zeros(call.cell, call.x)
    elif not is_host(h):  # kernels do that, but none runs without steps
        rounding = "half_even" if call.even else "half_away"
        h = namespace(h).asarray(call.plan.h.encode(h.get(), rounding))
    return h if codes else _decoded(call.plan.h, h)


def _values(call: Call) -> Any:
    """The intermediates as floats."""
    h = call.cell.units
    parts = [
        _decoded(call.cell.formats[name], call.v[..., i * h : (i + 1) * h])
        for i, name in enumerate(INTERMEDIATE)
    ]
    return namespace(call.v).concatenate(parts, -1)


# --- saturation ---------------------------------------------------------------------------------


def _totals(call: Call) -> NDArray[np.int64]:
    """The number of values of each tensor in a call."""
    t, n, c = call.x.shape
    units = call.cell.units
    numbers = t * n * units
    of = {"Wx": 3 * numbers, "Rh": 3 * numbers, "x": t * n * c, FAR: t * n * c, "h0": n * units}
    return np.array([of.get(name, numbers) for name in TALLIED], np.int64)


def _warn(f: Fixed, call: Call, totals: NDArray[np.int64]) -> None:
    """A warning, once, where numbers lie outside what the calibration saw."""
    saturated = dict(zip(TALLIED, call.counts.tolist(), strict=True))
    of = dict(zip(TALLIED, totals.tolist(), strict=True))
    often = [
        name for name, whole in of.items()
        if name not in ("x", "h", FAR, *call.cell.clipped)
        and saturated[name] > (0 if name == "h0" else max(OFTEN * whole, FEW))
    ]  # fmt: skip
    if saturated[FAR]:
        often.insert(0, "x")
    if often:
        f.warned = True
        shown = ", ".join(f"{saturated[name]} of {of[name]} of {name}" for name in often[:4])
        warnings.warn(
            f"{REQUEST}: numbers lie outside the range that the calibration saw and became its end: {shown}; "
            "calibrate with inputs like these; f.diagnostics() has all counts (this is said once)",
            SaturationWarning,
            stacklevel=5,
        )
