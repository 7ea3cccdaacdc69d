"""``gq.FixedGRU``: a GRU in integers, with its call, its files and its diagnostics."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ..base.devices import cuda_device
from ..base.text import short
from ..errors import DeviceError
from ..fixed.qformat import QFormat
from . import files
from .cell import Cell
from .diagnostics import Diagnostics, Tally
from .plan import Plan, plan_of
from .run import SaturationWarning, run
from .widths import named

__all__ = ["FixedGRU", "SaturationWarning"]


class FixedGRU:
    """A GRU that computes in integers; :meth:`ggmlq.GRU.fixed` makes it, :meth:`load` reads it.

    ``f.parameters`` has the format of every tensor (``.exponent .zero .bits .signed``) and ``f.codes`` the
    integers of W, R, bx, br and of the three tables, whose entry for a code q of the input is
    ``q - least code``; of both directions they are pairs. Any program that computes what
    ``docs/gru.md`` says from these finds the same codes.
    """

    def __init__(
        self, cells: tuple[Cell, ...], tables: str, rounding: str, dynamic_x: bool, device: str = "cpu"
    ) -> None:
        self.cells, self.tables, self.rounding, self.dynamic_x = cells, tables, rounding, dynamic_x
        self.device = device
        self.tallies = tuple(Tally() for _ in cells)
        self.warned = False
        self.kinds: dict[Any, Any] = {}
        self.recorded: list[Any] = []
        for cell in cells:
            self.plan(cell, cell.formats["x"])  # it raises here where int64 is too narrow

    # --- what it is ---------------------------------------------------------------------

    @property
    def parameters(self) -> Any:
        """The format of each tensor by its name; of both directions a pair."""
        return self._by_direction([cell.formats for cell in self.cells])

    @property
    def codes(self) -> Any:
        """W R bx br table_z table_r table_g as integers, read-only; of both directions a pair."""
        return self._by_direction([cell.codes for cell in self.cells])

    def _by_direction(self, parts: list[Any]) -> Any:
        return parts[0] if len(parts) == 1 else tuple(parts)

    @property
    def inputs(self) -> int:
        """The number of inputs, C."""
        return self.cells[0].inputs

    @property
    def units(self) -> int:
        """The number of units, H."""
        return self.cells[0].units

    @cached_property
    def widths(self) -> str:
        """``"int8"``, ``"mixed"``, ``"int16"`` or ``"other"``."""
        return named(self.cells[0].formats)

    @property
    def nbytes(self) -> int:
        """Bytes of all codes."""
        return sum(int(array.nbytes) for cell in self.cells for array in cell.codes.values())

    def __repr__(self) -> str:
        both = ", both directions" if len(self.cells) > 1 else ""
        more = ", dynamic x" if self.dynamic_x else ""
        return (
            f"<FixedGRU {self.widths} C={self.inputs} H={self.units}{both}, {self.tables} tables{more}, "
            f"{self.device}>"
        )

    def plan(self, cell: Cell, x: QFormat) -> Plan:
        """The constants of kernels for a format of x; they are kept for the format of the calibration."""
        if x is not cell.formats["x"]:
            return plan_of("FixedGRU(x)", cell, x)
        plan: Plan = cell.prepared("plan", lambda _: plan_of("GRU.fixed()", cell, x))
        return plan

    # --- what it does -------------------------------------------------------------------

    def __call__(
        self, x: Any, h0: Any = None, batch_first: bool = False, return_codes: bool = False,
        return_intermediates: bool = False, kernel: str = "auto",
    ) -> tuple[Any, ...]:  # fmt: skip
        """Run it: floats to codes, integers only inside, codes to floats.

        Parameters
        ----------
        x : array of floats
            [T, N, C], or [N, T, C] with ``batch_first``, on the device of the GRU; float64 is quantized as
            such, all others as float32.
        h0 : array of floats, optional
            [N, H], of both directions [2, N, H]; zeros if left out. States that an earlier call returned
            become the same codes again, so a sequence may be run in parts.
        batch_first : bool
            Whether sequences come first, in x, y and v.
        return_codes : bool
            Give y, h (and v) as integer codes; their formats are ``f.parameters["h"]`` and those of v.
        return_intermediates : bool
            Give v as well: z, r, g and R_g h + b_rg of each step, [T, N, 4H].
        kernel : str
            ``"auto"`` or a name in ``gq.kernels("gru")``; the codes are the same.

        Returns
        -------
        y, h or y, h, v
            [T, N, H] and [N, H]; of both directions [T, N, 2H], [2, N, H], and v [T, N, 8H].
        """
        return run(self, x, h0, batch_first, return_codes, return_intermediates, kernel)

    def diagnostics(self) -> Any:
        """The share of values that left each tensor's format, the part of it that calibration used,
        and the error that its rounding makes in the next state.

        A mapping from tensors to ``Use`` that prints as a table; of both directions a pair.
        """
        return self._by_direction([
            Diagnostics(tally, cell) for tally, cell in zip(self.tallies, self.cells, strict=True)
        ])  # fmt: skip

    # --- elsewhere ----------------------------------------------------------------------

    def to(self, device: str) -> FixedGRU:
        """A GRU of the same codes for arrays on ``"cpu"``, ``"cuda"`` or ``"cuda:1"``."""
        if device == self.device:
            return self
        kind, _, number = str(device).partition(":")
        if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
            raise DeviceError(f"FixedGRU.to({short(device)}): no such device; devices are cpu and cuda")
        if kind == "cuda":
            with cuda_device().named(device):
                device = f"cuda:{cuda_device().current()}"
        return FixedGRU(self.cells, self.tables, self.rounding, self.dynamic_x, device)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to an npz file, in full or not at all: integers and formats, no float weights."""
        facts = {"tables": self.tables, "rounding": self.rounding, "dynamic_x": self.dynamic_x}
        files.save(path, self.cells, facts)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> FixedGRU:
        """Read a file of :meth:`save`; one whose parts do not agree is refused."""
        cells, facts = files.load(path)
        return cls(cells, facts["tables"], facts["rounding"], facts["dynamic_x"])

    def _facts(self) -> tuple[Any, ...]:
        return self.cells, self.tables, self.rounding, self.dynamic_x, self.device

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (
            [
                (dict(cell.formats), dict(cell.codes), dict(cell.ranges), dict(cell.costs))
                for cell in self.cells
            ],
            *self._facts()[1:],
        )


def _restored(cells: list[tuple[Mapping[str, Any], ...]], *facts: Any) -> FixedGRU:
    return FixedGRU(tuple(Cell(*parts) for parts in cells), *facts)
