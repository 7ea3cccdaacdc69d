"""The doctor's codes and inputs of a GRU, checked: one Run for each direction, in the order of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base.devices import to_host
from ...errors import DTypeError, ShapeError
from ...fixed.qformat import QFormat
from ...gru import FixedGRU
from ...gru.run import INTERMEDIATE, format_in_call
from ...gru.weights import inputs, states

CALL = "diagnose_gru(codes, f, x)"
FAR = 1 << 40  # no code is; what lies beyond counts as this
Codes = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Run:
    """Codes and inputs of one direction of a GRU. Row t·N + n is sequence n in the t-th step that is run."""

    formats: Mapping[str, QFormat]
    codes: Mapping[str, Any]
    tables: str
    known_x: QFormat  # the format of x that calibration found
    values: NDArray[Any]  # x [T·N, C] as floats
    x: Codes  # [T·N, C]
    first: Codes  # [N, H], the states before the first step
    y: Codes  # [T·N, H], the states that were observed
    last: Codes | None  # [N, H], the last states as they were given
    v: Mapping[str, Codes]  # intermediates that were observed, [T·N, H] each
    steps: int
    sequences: int
    direction: int
    directions: int

    @property
    def units(self) -> int:
        """The number of units, H."""
        return int(self.y.shape[1])

    @property
    def before(self) -> Codes:
        """The states before each step, as observed."""
        return np.concatenate([self.first, self.y])[: len(self.y)]


def checked(codes: Any, f: FixedGRU, x: Any, h0: Any, batch_first: bool) -> list[Run]:
    """The runs, one a direction; errors say what does not fit."""
    if not isinstance(f, FixedGRU):
        raise DTypeError(
            f"{CALL}: f is {type(f).__name__}; its formats and codes say what is right; pass a FixedGRU"
        )
    x = inputs(CALL, to_host(x), f.inputs, batch_first)
    t, n = x.shape[:2]
    starts = states(CALL, None if h0 is None else to_host(h0), len(f.cells), n, f.units)
    y, last, v = _parts(codes, len(f.cells), t, n, f.units, batch_first)
    runs = []
    for d, cell in enumerate(f.cells):
        order = slice(None, None, -1) if d else slice(None)
        part = slice(d * f.units, (d + 1) * f.units)
        values = np.ascontiguousarray(x[order], np.float64 if x.dtype == np.float64 else np.float32)
        fmt = format_in_call(f, cell, values)
        start = np.zeros((n, f.units)) if starts is None else starts[d]
        inner = {} if v is None else _intermediates(v[order], part, f.units)
        runs.append(Run(
            {**cell.formats, "x": fmt}, cell.codes, f.tables, cell.formats["x"],
            values.reshape(t * n, f.inputs),
            fmt.encode(values, f.rounding).astype(np.int64).reshape(t * n, f.inputs),
            cell.formats["h"].encode(start, f.rounding).astype(np.int64),
            y[order][..., part].reshape(t * n, f.units), None if last is None else last[d], inner, t, n, d,
            len(f.cells),
        ))  # fmt: skip
    return runs


def _intermediates(v: Codes, part: slice, units: int) -> dict[str, Codes]:
    v = v[..., 4 * part.start : 4 * part.stop]
    return {
        name: v[..., i * units : (i + 1) * units].reshape(-1, units) for i, name in enumerate(INTERMEDIATE)
    }


def _parts(codes: Any, directions: int, t: int, n: int, units: int, batch_first: bool) -> Any:
    """y, h (or None) and v (or None) as int64, steps first."""
    parts = list(codes) if isinstance(codes, tuple | list) else [codes]
    if not 1 <= len(parts) <= 3:
        raise ShapeError(
            f"{CALL}: codes has {len(parts)} parts; it is y, (y, h) or (y, h, v); pass what "
            "f(x, return_codes=True) returns"
        )
    wide = directions * units
    y = _whole("y", parts[0], (t, n, wide), batch_first)
    v = _whole("v", parts[2], (t, n, 4 * wide), batch_first) if len(parts) == 3 else None
    if len(parts) == 1:
        return y, None, v
    shape = (directions, n, units)
    h = np.asarray(to_host(parts[1]))
    h = _whole("h", h[None] if directions == 1 and h.shape == shape[1:] else h, shape, False)
    return y, h, v


def _whole(name: str, codes: Any, shape: tuple[int, ...], batch_first: bool) -> Codes:
    whole = np.asarray(to_host(codes))
    if whole.dtype.kind == "f" and whole.size and (whole == np.rint(whole)).all():
        whole = np.clip(whole, -FAR, FAR).astype(np.int64)
    if whole.dtype.kind not in "iu":
        raise DTypeError(
            f"{CALL}: {name} is {whole.dtype}; codes are integers; pass those of a call with "
            "return_codes=True, or encode floats with f.parameters['h'].encode(y)"
        )
    want = (shape[1], shape[0], *shape[2:]) if batch_first else shape
    if whole.shape != want:
        raise ShapeError(
            f"{CALL}: {name} has shape {whole.shape}; with this x and f it has {want}; pass all steps of "
            "all sequences, and batch_first=True if sequences come first"
        )
    unsigned = whole.dtype.kind == "u"
    whole = (whole.clip(0, FAR) if unsigned else whole.astype(np.int64).clip(-FAR, FAR)).astype(np.int64)
    return whole.swapaxes(0, 1) if batch_first else whole
