"""The integer constants that the kernels of a FixedGRU need for one direction; no step changes them.

Shifts become the amounts of ``fixed/shift.py``, zero points become corrections of sums, and biases are
shifted once to the scale of the sum that they are added to. The plan also bounds all sums, from the codes of
the weights: kernels compute in int32 where everything fits it, else in int64; a GRU that fits neither is
refused before anything runs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..fixed.qformat import QFormat
from ..fixed.shift import Amounts, amounts, shifted_array
from . import step
from .cell import Cell

Ints = NDArray[Any]
BITS = {True: (30, 31), False: (61, 63)}  # of narrow sums and of wide ones, and the bit of their sign
SURE = 17  # a left shift that takes every number but 0 beyond the ends of 16 bits


class Rows(NamedTuple):
    """The constants of a product of matrices, one number for each of 3H rows; see ``step.product``."""

    correction: Ints  # zero point times sum of the row
    left: Ints
    half: Ints
    negative: Ints
    right: Ints


class Plan(NamedTuple):
    """Constants of one direction, for one format of x."""

    narrow: bool  # everything fits int32
    k: Ints  # constants that all units share, at the places that step.py names
    wx: Rows
    rh: Rows
    bias_z: Ints  # [H] each: biases, zero point and the end of the table
    bias_r: Ints
    bias_g: Ints
    bias_added: Ints
    tables: tuple[Ints, Ints, Ints]  # deviations of z, r and g
    x: QFormat
    h: QFormat


def plan_of(request: str, cell: Cell, x: QFormat) -> Plan:
    """The plan of a direction: in int32 if possible, else in int64."""
    for narrow in (True, False):
        try:
            return _Planner(cell, x, narrow).plan()
        except _TooWide as error:
            reason = error
    raise ConfigError(
        f"{request}: {reason}; sums are kept in int64; calibrate on inputs and weights in an ordinary unit, "
        "or take formats that lie closer together"
    )


class _TooWide(Exception):
    """A number that has too many bits."""


class _Planner:
    def __init__(self, cell: Cell, x: QFormat, narrow: bool) -> None:
        self.cell, self.f, self.narrow = cell, {**cell.formats, "x": x}, narrow
        self.bits, self.top = BITS[narrow]
        self.kind = np.int32 if narrow else np.int64

    def plan(self) -> Plan:
        f, codes, units = self.f, self.cell.codes, self.cell.units
        z, r, g = (slice(i * units, (i + 1) * units) for i in range(3))
        k = np.zeros(step.SIZE, np.int64)
        biases: dict[str, Any] = {}
        for name, part, target, parts in (
            ("z", z, "z_pre", ("bx", "br")), ("r", r, "r_pre", ("bx", "br")),
            ("g", g, "g_pre", ("bx",)), ("a", g, "Rh_add_br", ("br",)),
        ):  # fmt: skip
            biases[name] = np.sum([self._bias(bias, part, target) for bias in parts], axis=0)
        for pre, at in (("z", step.Z_PRE), ("r", step.R_PRE), ("g", step.G_PRE)):
            k[at : at + 2] = 0, f[f"{pre}_pre"].high - f[f"{pre}_pre"].low
        for name, at in (("Wx", step.WX), ("Rh", step.RH), ("Rh_add_br", step.ADDED), ("rRh", step.RESET),
                         ("old", step.OLD), ("new", step.NEW), ("h", step.H)):  # fmt: skip
            k[at : at + 2] = f[name].low - f[name].zero, f[name].high - f[name].zero
        self._sums(k, biases)
        self._products(k)
        k[step.ONE] = self._fits(1 << f["z_out"].exponent, "1 in the scale of z_out")
        for name in ("z", "r", "g"):
            biases[name] = biases[name] + (f[f"{name}_pre"].zero - f[f"{name}_pre"].low)
        z_table, r_table, g_table = (
            np.ascontiguousarray(codes[f"table_{name}"].astype(np.int64) - f[f"{name}_out"].zero, self.kind)
            for name in ("z", "r", "g")
        )
        bias_z, bias_r, bias_g, bias_a = (np.ascontiguousarray(bias, self.kind) for bias in biases.values())
        wx, rh = self._rows("W", "x", "Wx"), self._rows("R", "h", "Rh")
        return Plan(
            self.narrow, k.astype(self.kind), wx, rh, bias_z, bias_r, bias_g, bias_a,
            (z_table, r_table, g_table), f["x"], f["h"],
        )  # fmt: skip

    def _most(self, name: str) -> int:
        """The largest deviation of a tensor."""
        f = self.f[name]
        return max(f.high - f.zero, f.zero - f.low)

    def _rows(self, weights: str, activations: str, result: str) -> Rows:
        f = self.f
        codes = self.cell.codes[weights].astype(np.int64)
        most = np.abs(codes).sum(1) * self._most(activations)
        raw = np.abs(codes).sum(1) * max(abs(f[activations].low), f[activations].high + 1)
        correction = self.cell.row_sums[weights] * f[activations].zero
        for bound in (most, raw, correction):
            self._fits(int(np.abs(bound).max(initial=0)), f"a sum of {weights} times {activations}")
        n = f[weights].exponent + f[activations].exponent - f[result].exponent
        shifts = self._capped(n, most, f"{weights} times {activations} in the scale of {result}")
        return Rows(*(np.ascontiguousarray(part, self.kind) for part in (correction, *shifts)))

    def _bias(self, name: str, part: slice, result: str) -> Ints:
        codes = self.cell.codes[name][part].astype(np.int64)
        n = self.f[name].exponent[part] - self.f[result].exponent
        n = np.where(codes == 0, 0, n)
        self._left(np.abs(codes), n, f"{name} in the scale of {result}")
        return shifted_array(codes, n)

    def _sums(self, k: Ints, biases: dict[str, Any]) -> None:
        """Shifts of terms that are added before anything is clamped."""
        for name, at, terms in (
            ("z_pre", "z", (("Wx", step.WX_Z), ("Rh", step.RH_Z))),
            ("r_pre", "r", (("Wx", step.WX_R), ("Rh", step.RH_R))),
            ("g_pre", "g", (("Wx", step.WX_G), ("rRh", step.RESET_G))),
            ("Rh_add_br", "a", (("Rh", step.RH_ADDED),)),
            ("h", "", (("old", step.OLD_H), ("new", step.NEW_H))),
        ):
            total = int(np.abs(biases[at]).max(initial=0)) + (1 << 18) if at else 0
            for term, place in terms:
                n, most = self.f[term].exponent - self.f[name].exponent, self._most(term)
                self._left(np.int64(most), np.int64(n), f"{term} in the scale of {name}")
                k[place : place + 4] = amounts(n, self.top)
                total += most << max(-n, 0)
            self._fits(total, f"the terms of {name}")

    def _products(self, k: Ints) -> None:
        """Shifts of products that are clamped at once."""
        f = self.f
        one = (1 << max(f["z_out"].exponent, 0)) + self._most("z_out")
        for a, most_a, b, result, place in (
            ("r_out", self._most("r_out"), "Rh_add_br", "rRh", step.R_ADDED),
            ("z_out", self._most("z_out"), "h", "old", step.Z_OLD),
            ("z_out", one, "g_out", "new", step.Z_NEW),
        ):
            most = np.array([most_a * self._most(b)], np.int64)
            n = np.array([f[a].exponent + f[b].exponent - f[result].exponent])
            shift = self._capped(n, most, f"{a} times {b} in the scale of {result}")
            k[place : place + 4] = [int(part[0]) for part in shift]

    def _capped(self, n: Any, most: Ints, what: str) -> Amounts:
        """Amounts of shifts whose result is clamped; to the left no further than surely reaches the end."""
        self._fits(int(most.max(initial=0)), what)
        room = self.bits - np.frexp(most.astype(np.float64))[1]
        n = np.where(most == 0, 0, n)
        if (bad := (-n > room) & (room < SURE)).any():
            raise _TooWide(f"{what} is shifted left by {int(-n[bad].min())} bits")
        return amounts(np.maximum(n, -np.maximum(room, 0)), self.top)

    def _left(self, most: Any, n: Any, what: str) -> None:
        bits = np.where(most == 0, 0, np.frexp(np.asarray(most, np.float64))[1] + np.maximum(-n, 0))
        if (bits > self.bits).any():
            raise _TooWide(f"{what} has {int(np.max(bits))} bits")

    def _fits(self, most: int, what: str) -> int:
        if most >> self.bits:
            raise _TooWide(f"{what} has {most.bit_length()} bits")
        return most
