"""Facts about a GRU in integers for ``ggmlq gru``."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.terminal import table
from ..gru import FixedGRU


def facts(f: FixedGRU) -> dict[str, Any]:
    """The facts as JSON: of the whole, and of every tensor."""
    tensors = []
    for d, cell in enumerate(f.cells):
        uses = f.diagnostics() if len(f.cells) == 1 else f.diagnostics()[d]
        for name, one in cell.formats.items():
            e = np.asarray(one.exponent)
            fact = {
                "name": name,
                "direction": d,
                "bits": one.bits,
                "signed": one.signed,
                "zero": int(one.zero),
                "exponent": [int(e.min()), int(e.max())] if e.ndim else int(e),
            }
            if name in uses:
                fact |= {"used": uses[name].used, "low": uses[name].low, "high": uses[name].high}
            tensors.append(fact)
    return {
        "widths": f.widths,
        "inputs": f.inputs,
        "units": f.units,
        "directions": len(f.cells),
        "tables": f.tables,
        "rounding": f.rounding,
        "dynamic_x": f.dynamic_x,
        "bytes": f.nbytes,
        "tensors": tensors,
    }


def uses(f: FixedGRU) -> list[dict[str, int]]:
    """The number of saturated values of each tensor, by direction."""
    diagnostics = f.diagnostics() if len(f.cells) > 1 else (f.diagnostics(),)
    return [{name: use.saturated for name, use in uses.items()} for uses in diagnostics]


def listing(f: FixedGRU) -> str:
    """A table with a line for each tensor."""
    rows = []
    for fact in facts(f)["tensors"]:
        e = fact["exponent"]
        columns = (
            [f"{fact['used']:.0%}", f"{fact['low']:.4g}", f"{fact['high']:.4g}"]
            if "used" in fact
            else [""] * 3
        )
        name = fact["name"] + ("" if len(f.cells) == 1 else (" →", " ←")[fact["direction"]])
        shown = f"{e[0]} to {e[1]}" if isinstance(e, list) else str(e)
        rows.append(
            [name, f"{'int' if fact['signed'] else 'uint'}{fact['bits']}", shown, fact["zero"], *columns]
        )
    return table(["tensor", "codes", "exponent", "zero", "range used", "low", "high"], rows)
