"""A call of a FixedGRU: check, choose a kernel, run each direction, dequantize."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .. import ladder
from ..devices import cuda_device, device_of, is_host, namespace, on_device_of
from ..errors import DeviceError
from ..fixed.qformat import QFormat, format_of, half_away
from ..problems import Gru
from ..tensors import array_of, is_tensor
from . import shapes
from .cell import Cell
from .diagnostics import FAR, TALLIED, Tally
from .plan import Plan
from .weights import refuse_not_finite

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
    recorded: list[Any]  # memory of CUDA graphs

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
    h: Any  # codes [N, H] of the states before the first step, to be written to; on a device None for zeros
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
    if is_tensor(x):
        x = array_of(ASKED, x)
    if device_of(x) != f.device:
        raise DeviceError(
            f"{ASKED}: x is on {device_of(x)}, the GRU on {f.device}; both must be on one device; "
            f"move it with f.to({device_of(x)!r})"
        )
    x = shapes.inputs(ASKED, x, f.inputs, batch_first, f.device)
    n, units, count = x.shape[1], f.units, len(f.cells)
    starts = shapes.states(ASKED, h0, count, n, units, f.device)
    results = []
    with on_device_of(ASKED, x, f):
        for d, cell in enumerate(f.cells):
            call = _call(f, cell, x[::-1] if d else x, None if starts is None else starts[d])
            results.append(_launched(f, call, return_codes, return_intermediates, kernel))
        for d, call in enumerate(results):
            _tell(f, d, call)
        return _gathered(results, starts, return_codes, return_intermediates, batch_first)


def _call(f: Fixed, cell: Cell, x: Any, h0: Any) -> Call:
    xp = namespace(x)
    x = xp.ascontiguousarray(x, np.float64 if x.dtype == np.float64 else np.float32)
    fmt = format_in_call(f, cell, x)
    h, counts = cell.formats["h"], np.zeros(len(TALLIED), np.int64)
    if h0 is None:
        state = _zeros(cell, x) if is_host(x) else None
    else:
        free = _unclipped(h, h0, f.rounding)
        state = free.clip(h.low, h.high).astype(h.dtype)
        saturated = (free != state) & _beyond(cell.ranges["h"], h0)
        if is_host(x) or not cuda_device().capturing(x.device.id):
            refuse_not_finite(ASKED, h0, "h0")
            counts[TALLIED.index("h0")] = int(saturated.sum())
    return Call(cell, f.plan(cell, fmt), x, f.rounding == "half_even", state, None, None, None, counts)


def _zeros(cell: Cell, x: Any) -> Any:
    """Codes of states that are zero."""
    h = cell.formats["h"]
    return namespace(x).full((x.shape[1], cell.units), min(max(h.zero, h.low), h.high), h.dtype)


def _unclipped(h: QFormat, values: Any, rounding: str) -> Any:
    """Codes of states without ends, as float64."""
    if is_host(values):
        return h.unclipped(values, rounding)
    v = values.astype(np.float64) * 2.0**h.exponent
    return (np.rint(v) if rounding == "half_even" else half_away(v)) + h.zero


def _decoded(f: QFormat, codes: Any) -> Any:
    """Floats of codes on the host or on a device."""
    if is_host(codes):
        return f.decode(codes)
    return ((codes.astype(np.float64) - f.zero) * 2.0**-f.exponent).astype(np.float32)


def _beyond(seen: tuple[float, float], values: Any) -> Any:
    return (values < seen[0]) | (values > seen[1])


def format_in_call(f: Fixed, cell: Cell, x: Any) -> QFormat:
    """Of x: that of the calibration, or with ``dynamic_x`` from its own extremes."""
    known = cell.formats["x"]
    if not (f.dynamic_x and x.size):
        return known
    symmetric = known.signed and known.zero == 0
    ends = float(x.min()), float(x.max())
    if not np.isfinite(ends).all():
        refuse_not_finite(ASKED, x, "x")
    found = format_of(*ends, known.bits, known.signed, symmetric)
    return known if found == known else found


def _launched(f: Fixed, call: Call, codes: bool, v: bool, kernel: str) -> Call:
    t, n, _ = call.x.shape
    units, fmt = call.cell.units, call.plan.h
    rung = ladder.choose(_problem(f, call), kernel)
    empty = namespace(call.x).empty
    call = call._replace(
        y=empty((t, n, units), np.float32),
        codes=empty((t, n, units), fmt.dtype) if codes else None,
        v=empty((t, n, 4 * units), np.int32) if v else None,
    )
    if t and n:
        rung.launch(call)
    return call


def _problem(f: Fixed, call: Call) -> Gru:
    device, (t, n, c) = f.device.partition(":")[0], call.x.shape
    entries = max(map(len, call.plan.tables))
    return Gru(
        f.widths, call.plan.narrow, t, n, c, call.cell.units, _operand_bits(call), entries, device=device,
        card=ladder.current_card(device),
    )  # fmt: skip


def _operand_bits(call: Call) -> int:
    """Of the codes that are multiplied, the widest."""
    formats = call.cell.formats
    return max(call.plan.x.bits, *(formats[name].bits for name in ("W", "R", "h")))


def _gathered(calls: list[Call], starts: Any, codes: bool, v: bool, batch_first: bool) -> tuple[Any, ...]:
    """Both directions side by side, in the order of x."""
    xp = namespace(calls[0].x)
    ys, hs, vs = [], [], []
    for d, call in enumerate(calls):
        order = slice(None, None, -1) if d else slice(None)
        ys.append((call.codes if codes else call.y)[order])
        if len(call.x):
            hs.append((call.codes if codes else call.y)[-1].copy())
        elif starts and not codes:  # no step, no rounding: the states that were given
            hs.append(starts[d].astype(np.float32))
        else:
            h = _zeros(call.cell, call.x) if call.h is None else call.h
            hs.append(h if codes else _decoded(call.plan.h, h))
        if v:
            vs.append((call.v if codes else _values(call))[order])
    along = [xp.concatenate(part, -1) if len(part) > 1 else part[0] for part in (ys, vs) if part]
    y, *more = [part.swapaxes(0, 1) if batch_first else part for part in along]
    return (y, xp.stack(hs) if len(hs) > 1 else hs[0], *more)


def _values(call: Call) -> Any:
    """The intermediates as floats."""
    h = call.cell.units
    parts = [
        _decoded(call.cell.formats[name], call.v[..., i * h : (i + 1) * h])
        for i, name in enumerate(INTERMEDIATE)
    ]
    return namespace(call.v).concatenate(parts, -1)


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
