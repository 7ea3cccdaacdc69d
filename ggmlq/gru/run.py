"""A call of a FixedGRU: check, choose a kernel, run each direction, dequantize."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .. import ladder
from ..devices import device_of
from ..errors import DeviceError
from ..fixed.qformat import QFormat, format_of
from ..problems import Gru
from . import shapes
from .cell import Cell
from .diagnostics import FAR, TALLIED, Tally
from .plan import Plan

ASKED = "FixedGRU(x)"
OFTEN, FEW = 0.1, 100  # values of a tensor: so many do not saturate for a sum that rounds past the end
INTERMEDIATE = ("z_out", "r_out", "g_out", "Rh_add_br")  # of v


class SaturationWarning(UserWarning):
    """Numbers lie outside the range that the calibration saw."""


class Fixed(Protocol):
    """What of a FixedGRU a call looks at."""

    cells: tuple[Cell, ...]
    tallies: tuple[Tally, ...]
    rounding: str
    dynamic_x: bool
    device: str
    warned: bool

    @property
    def inputs(self) -> int: ...
    @property
    def units(self) -> int: ...
    @property
    def widths(self) -> str: ...
    def plan(self, cell: Cell, x: QFormat) -> Plan: ...


class Call(NamedTuple):
    """One direction, as a kernel is given it; all arrays are C-contiguous and on its device."""

    cell: Cell
    plan: Plan
    x: Any  # float32 or float64 [T, N, C], in the order of the steps
    even: bool  # ties of x to even
    h: Any  # codes [N, H]: the states, first those before and at last those after
    y: Any  # float32 [T, N, H] to write states to, dequantized
    codes: Any  # the same as codes, or None
    v: Any  # int32 [T, N, 4H] for codes of z, r, g and R_g h + b_rg, or None
    counts: NDArray[np.int64]  # in the order of ``diagnostics.TALLIED``, to be added to


def run(
    f: Fixed,
    x: Any,
    h0: Any,
    batch_first: bool,
    return_codes: bool,
    return_intermediates: bool,
    kernel: str,
) -> tuple[Any, ...]:
    """What ``FixedGRU.__call__`` says."""
    if device_of(x) != f.device:
        raise DeviceError(
            f"{ASKED}: x is on {device_of(x)}, the GRU on {f.device}; both must be on one device; "
            f"move it with f.to({device_of(x)!r})"
        )
    x = shapes.inputs(ASKED, x, f.inputs, batch_first)
    n, units, count = x.shape[1], f.units, len(f.cells)
    starts = shapes.states(ASKED, h0, count, n, units)
    results = []
    for d, cell in enumerate(f.cells):
        call = _call(f, cell, x[::-1] if d else x, None if starts is None else starts[d])
        results.append(_launched(f, call, return_codes, return_intermediates, kernel))
    for d, call in enumerate(results):
        _tell(f, d, call)
    return _gathered(results, starts, return_codes, return_intermediates, batch_first)


def _call(f: Fixed, cell: Cell, x: Any, h0: Any) -> Call:
    x = np.ascontiguousarray(x, np.float64 if x.dtype == np.float64 else np.float32)
    fmt = format_in_call(f, cell, x)
    h, counts = cell.formats["h"], np.zeros(len(TALLIED), np.int64)
    if h0 is None:
        state = np.full((x.shape[1], cell.units), h.zero).clip(h.low, h.high).astype(h.dtype)
    else:
        free = h.unclipped(h0, f.rounding)
        state = free.clip(h.low, h.high).astype(h.dtype)
        counts[TALLIED.index("h0")] = np.count_nonzero((free != state) & _beyond(cell.ranges["h"], h0))
    return Call(cell, f.plan(cell, fmt), x, f.rounding == "half_even", state, None, None, None, counts)


def _beyond(seen: tuple[float, float], values: Any) -> Any:
    return (values < seen[0]) | (values > seen[1])


def format_in_call(f: Fixed, cell: Cell, x: Any) -> QFormat:
    """Of x: that of the calibration, or with ``dynamic_x`` from its own extremes."""
    known = cell.formats["x"]
    if not (f.dynamic_x and x.size):
        return known
    symmetric = known.signed and known.zero == 0
    found = format_of(float(x.min()), float(x.max()), known.bits, known.signed, symmetric)
    return known if found == known else found


def _launched(f: Fixed, call: Call, codes: bool, v: bool, kernel: str) -> Call:
    t, n, c = call.x.shape
    units, fmt = call.cell.units, call.plan.h
    problem = Gru(
        f.widths, call.plan.narrow, t, n, c, units, device=f.device.partition(":")[0],
        card=ladder.current_card(f.device.partition(":")[0]),
    )  # fmt: skip
    rung = ladder.choose(problem, kernel)
    call = call._replace(
        y=np.empty((t, n, units), np.float32),
        codes=np.empty((t, n, units), fmt.dtype) if codes else None,
        v=np.empty((t, n, 4 * units), np.int32) if v else None,
    )
    if t and n:
        rung.launch(call)
    return call


def _gathered(calls: list[Call], starts: Any, codes: bool, v: bool, batch_first: bool) -> tuple[Any, ...]:
    """Both directions side by side, in the order of x."""
    ys, hs, vs = [], [], []
    for d, call in enumerate(calls):
        order = slice(None, None, -1) if d else slice(None)
        ys.append((call.codes if codes else call.y)[order])
        if codes:
            hs.append(call.h)
        else:  # no step, no rounding: the states that were given
            hs.append(
                starts[d].astype(np.float32) if starts and not len(call.x) else call.plan.h.decode(call.h)
            )
        if v:
            vs.append((call.v if codes else _values(call))[order])
    along = [np.concatenate(part, -1) if len(part) > 1 else part[0] for part in (ys, vs) if part]
    y, *more = [part.swapaxes(0, 1) if batch_first else part for part in along]
    return (y, np.stack(hs) if len(hs) > 1 else hs[0], *more)


def _values(call: Call) -> NDArray[np.float32]:
    """The intermediates as floats."""
    h = call.cell.units
    parts = [
        call.cell.formats[name].decode(call.v[..., i * h : (i + 1) * h])
        for i, name in enumerate(INTERMEDIATE)
    ]
    return np.concatenate(parts, -1)


# --- saturation ---------------------------------------------------------------------------------


def _tell(f: Fixed, d: int, call: Call) -> None:
    """Add to the tally; a warning, once, where numbers lie outside what the calibration saw."""
    t, n, c = call.x.shape
    each, units = t * n * call.cell.units, call.cell.units
    of = {"Wx": 3 * each, "Rh": 3 * each, "x": t * n * c, FAR: t * n * c, "h0": n * units}
    total = np.array([of.get(name, each) for name in TALLIED], np.int64)
    f.tallies[d].add(call.counts, total)
    if f.warned:
        return
    moved = dict(zip(TALLIED, call.counts.tolist(), strict=True))
    often = [
        name for name, whole in zip(TALLIED, total.tolist(), strict=True)
        if name not in ("x", "h", FAR) and moved[name] > (0 if name == "h0" else max(OFTEN * whole, FEW))
    ]  # fmt: skip
    if moved[FAR]:
        often.insert(0, "x")
    if often:
        f.warned = True
        shown = ", ".join(f"{moved[name]} of {of.get(name, each)} of {name}" for name in often[:4])
        warnings.warn(
            f"{ASKED}: numbers lie outside the range that the calibration saw and became its end: {shown}; "
            "calibrate with inputs like these; f.diagnostics() has all counts (this is said once)",
            SaturationWarning,
            stacklevel=4,
        )
