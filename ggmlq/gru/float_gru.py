"""``gq.GRU``: a GRU with float weights, which runs, calibrates, and makes a FixedGRU of itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.progress import Progress
from ..base.text import short
from ..codes.code import ROUNDINGS
from ..errors import CalibrationError, ShapeError, UnsupportedError
from ..fixed.observers import OBSERVERS, Observed
from ..fixed.tables import TABLES, sigmoid
from . import weights
from .cell import cell_of
from .costs import slopes
from .fixed_gru import FixedGRU
from .onnx import read_onnx
from .torch import checked_order, read_module
from .weights import Weights, weights_of
from .widths import NAMES, STEPS, WEIGHTS, widths_of

Floats = NDArray[Any]


class GRU:
    """A GRU of one layer with float weights: run it, calibrate it, make a FixedGRU of it.

    Parameters
    ----------
    W, R : array of floats
        [3H, C] and [3H, H]; a pair of each for both directions. They are copied.
    bx, br : array of floats, optional
        [3H] each, added to the products with W and with R; zeros if left out.
    order : str
        How the gates lie along 3H: ``"zrg"`` (update, reset, new; ONNX) or ``"rzn"`` (PyTorch).

    The reset gate multiplies ``R_g h + b_rg``, as in PyTorch, cuDNN and ONNX's linear_before_reset = 1.

    >>> import numpy as np, ggmlq as gq
    >>> rng = np.random.default_rng(0)
    >>> W, R = rng.uniform(-0.2, 0.2, (48, 8)), rng.uniform(-0.2, 0.2, (48, 16))
    >>> g = gq.GRU(W.astype(np.float32), R.astype(np.float32))
    >>> x = rng.uniform(-1, 1, (20, 4, 8)).astype(np.float32)
    >>> _ = g.observe(x)
    >>> f = g.fixed("int8")
    >>> y, h = f(x)
    >>> y.shape, h.shape, bool(np.abs(y - g(x)[0]).mean() < 0.01)
    ((20, 4, 16), (4, 16), True)
    """

    def __init__(self, W: Any, R: Any, bx: Any = None, br: Any = None, *, order: str = "zrg") -> None:
        request = "GRU(W, R)"
        order = checked_order(request, order)
        self.directions: tuple[Weights, ...] = tuple(
            weights_of(request, parts, order) for parts in _by_direction(request, W, R, bx, br)
        )
        if len({(w.inputs, w.units) for w in self.directions}) > 1:
            raise ShapeError(
                f"{request}: the directions have W {[w.W.shape for w in self.directions]}, R "
                f"{[w.R.shape for w in self.directions]}; both have the same C and H; run them as two GRUs"
            )
        self._digests: list[bytes] = []
        self.reset_calibration()

    @classmethod
    def from_torch(cls, module: Any, layer: int = 0) -> GRU:
        """The weights of a layer of a ``torch.nn.GRU``, both directions if it has them.

        Anything with its attributes will do. ``batch_first`` is said in each call here.
        """
        return cls(**read_module(module, layer), order="rzn")

    @classmethod
    def from_onnx(cls, path: Any, node: str | None = None) -> GRU:
        """The weights of a GRU node of an ONNX file; of several by its name, or that of its W."""
        return cls(**read_onnx(path, node))

    # --- what it is ---------------------------------------------------------------------

    @property
    def W(self) -> Any:
        """The weights of the inputs, [3H, C], gates in the order z, r, g; a pair for both directions."""
        return self._parts("W")

    @property
    def R(self) -> Any:
        """The weights of the states, [3H, H]."""
        return self._parts("R")

    @property
    def bx(self) -> Any:
        """The biases of the inputs, [3H]."""
        return self._parts("bx")

    @property
    def br(self) -> Any:
        """The biases of the states, [3H]."""
        return self._parts("br")

    def _parts(self, name: str) -> Any:
        arrays = tuple(getattr(w, name) for w in self.directions)
        return arrays if len(arrays) > 1 else arrays[0]

    @property
    def inputs(self) -> int:
        """The number of inputs, C."""
        return self.directions[0].inputs

    @property
    def units(self) -> int:
        """The number of units, H."""
        return self.directions[0].units

    @property
    def observed(self) -> int:
        """Steps times sequences that calibration has seen."""
        return sum(observed["x"].count for observed in self._observed) // (self.inputs * len(self._observed))

    def __repr__(self) -> str:
        both = ", both directions" if len(self.directions) > 1 else ""
        return f"<GRU C={self.inputs} H={self.units}{both}, {self.observed} steps observed>"

    # --- what it does -------------------------------------------------------------------

    def __call__(self, x: Any, h0: Any = None, batch_first: bool = False) -> tuple[Floats, Floats]:
        """Run it on floats.

        Parameters
        ----------
        x : array of floats
            [T, N, C], or [N, T, C] with ``batch_first``.
        h0 : array of floats, optional
            [N, H], of both directions [2, N, H]; zeros if left out.
        batch_first : bool
            Whether sequences come first, in x and y.

        Returns
        -------
        y, h : arrays of floats
            States after each step [T, N, H] (both directions: [T, N, 2H]), and the last ones, shaped as h0.
            Computed in float64; float64 only where x is.
        """
        return self._pass("GRU(x)", x, h0, batch_first, False)

    def observe(self, x: Any, h0: Any = None, batch_first: bool = False) -> tuple[Floats, Floats]:
        """Calibrate on one more batch: run it, and add the values of all tensors to their statistics.

        Takes and returns what a call does.
        """
        digests = [w.digest() for w in self.directions]
        if self.observed and digests != self._digests:
            raise CalibrationError(self._changed("GRU.observe(x)"))
        self._digests = digests
        return self._pass("GRU.observe(x)", x, h0, batch_first, True)

    def reset_calibration(self) -> None:
        """Forget all observed batches."""
        activations = [name for name in NAMES if name not in WEIGHTS]
        self._observed = [{name: Observed() for name in activations} for _ in self.directions]
        self._digests = []

    def fixed(
        self, widths: Any = "mixed", *, tables: str = "direct", observer: str = "sqnr",
        rounding: str = "half_away", dynamic_x: bool = False,
    ) -> FixedGRU:  # fmt: skip
        """The GRU in integers, from the observed ranges.

        Parameters
        ----------
        widths : str or mapping
            ``"int8"``, ``"mixed"``, ``"int16"``, or for some tensors ``{"bits", "signed", "symmetric"}``, all
            others as in "mixed".
        tables : str
            How sigmoid and tanh become tables: ``"direct"``, ``"pwl16"`` or ``"interpolated"``.
        observer : str
            How ranges become formats: ``"sqnr"`` (the least error), ``"ema"`` (of x and h an average over
            the steps), ``"minmax"`` or ``"percentile"``.
        rounding : str
            Of floats to codes, ties ``"half_away"`` from zero or ``"half_even"``. Shifts always round ties
            away from zero.
        dynamic_x : bool
            Whether the format of x is found anew in each call, from its extremes.
        """
        request = f"GRU.fixed({short(widths)})"
        widths_by_name = widths_of(request, widths)
        for name, value, choices in (
            ("tables", tables, TABLES), ("observer", observer, OBSERVERS), ("rounding", rounding, ROUNDINGS),
        ):  # fmt: skip
            if value not in choices:
                raise UnsupportedError(
                    f"{request}: {name}={short(value)}; known are {', '.join(choices)}; pass one"
                )
        if not self.observed:
            raise CalibrationError(
                f"{request}: nothing was observed; formats come from ranges that a calibration has seen; "
                "call g.observe(x) on representative inputs first"
            )
        if self._digests != [w.digest() for w in self.directions]:
            raise CalibrationError(self._changed(request))
        cells = tuple(
            cell_of(request, w, observed, widths_by_name, tables, observer, rounding)
            for w, observed in zip(self.directions, self._observed, strict=True)
        )
        return FixedGRU(cells, tables, rounding, bool(dynamic_x))

    def _changed(self, request: str) -> str:
        return (
            f"{request}: weights have changed since they were observed; ranges belong to the weights that "
            "made them; call g.reset_calibration() and observe again"
        )

    def _pass(self, request: str, x: Any, h0: Any, batch_first: bool, observe: bool) -> tuple[Floats, Floats]:
        x = weights.inputs(request, x, self.inputs, batch_first)
        n, units, count = x.shape[1], self.units, len(self.directions)
        starts = weights.states(request, h0, count, n, units)
        kind = np.float64 if x.dtype == np.float64 else np.float32
        y = np.empty((len(x), n, count * units), kind)
        last = np.zeros((count, n, units), kind)
        with Progress(len(x) * count, "calibrating" if observe else "running", "step") as progress:
            for d, w in enumerate(self.directions):
                h = np.zeros((n, units)) if starts is None else starts[d].astype(np.float64)
                out, done = y[::-1] if d else y, 0
                for run in steps(w, x[::-1] if d else x, h):
                    if observe:
                        self._keep(d, run, h)
                    h = run["h"][-1]
                    out[done : done + len(run["h"]), :, d * units : (d + 1) * units] = run["h"]
                    done += len(run["h"])
                    progress.advance(len(run["h"]))
                last[d] = h
        return (y.swapaxes(0, 1) if batch_first else y), (last if count > 1 else last[0])

    def _keep(self, direction: int, run: dict[str, Any], h: Floats) -> None:
        by_name = slopes(run, h)
        for name, observed in self._observed[direction].items():
            observed.see(run[name], by_name[name])
            if name in STEPS:
                for values in run[name]:
                    observed.step(values)


def _by_direction(request: str, *parts: Any) -> list[tuple[Any, ...]]:
    """The arguments of each direction."""
    pairs = [isinstance(part, tuple | list) and len(part) == 2 and np.ndim(part[0]) > 0 for part in parts]
    if not any(pairs[:2]):
        return [parts]
    for name, part, pair in zip(("W", "R", "bx", "br"), parts, pairs, strict=True):
        if not pair and part is not None:
            raise ShapeError(
                f"{request}: {name} is no pair, others are; for both directions every argument is a pair of "
                "arrays, (forward, backward)"
            )
    return [tuple(None if part is None else part[d] for part in parts) for d in range(2)]


# --- The forward pass of a float GRU in float64, which yields the values of every stage by name ---

Real = NDArray[np.float64]
FEW = 1 << 18  # numbers of each kind that are held at a time


def steps(w: Weights, x: Any, h: Real) -> Iterator[dict[str, Real]]:
    """Yield the tensors of some neighbouring steps at a time, by their names in ``widths.NAMES``.

    Each is [steps, N, …]; the weights are left out. The argument ``h`` is the states before the first step,
    the tensor "h" those after each step. Weights may have any dtype; everything is computed in float64.
    """
    W, R, bx, br = (np.asarray(part, np.float64) for part in w)
    run = max(1, FEW // max(1, 3 * w.units * x.shape[1]))
    for start in range(0, len(x), run):
        part = np.asarray(x[start : start + run], np.float64)
        stages: list[dict[str, Real]] = []
        for wx in part @ W.T:
            stages.append(one(wx, h @ R.T, bx, br, h))
            h = stages[-1]["h"]
        yield {"x": part, **{name: np.stack([step[name] for step in stages]) for name in stages[0]}}


def one(wx: Real, rh: Real, bx: Real, br: Real, h: Real) -> dict[str, Real]:
    """All stages of one step, by name, from its products ``wx`` and ``rh`` [N, 3H] and the states ``h``."""
    units = h.shape[1]
    z, r, g = (slice(i * units, (i + 1) * units) for i in range(3))
    z_pre = wx[:, z] + rh[:, z] + bx[z] + br[z]
    r_pre = wx[:, r] + rh[:, r] + bx[r] + br[r]
    z_out, r_out = sigmoid(z_pre), sigmoid(r_pre)
    added = rh[:, g] + br[g]
    reset = r_out * added
    g_pre = wx[:, g] + reset + bx[g]
    g_out = np.tanh(g_pre)
    old, new = z_out * h, (1 - z_out) * g_out
    return {
        "Wx": wx, "Rh": rh, "z_pre": z_pre, "r_pre": r_pre, "z_out": z_out, "r_out": r_out,
        "Rh_add_br": added, "rRh": reset, "g_pre": g_pre, "g_out": g_out, "old": old, "new": new,
        "h": old + new,
    }  # fmt: skip
