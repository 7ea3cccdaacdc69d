"""Files of ``ggmlq gru``: float weights under several names, inputs, states, results."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from ..arrays.dumps import Dump
from ..base.terminal import table
from ..base.text import short
from ..errors import DumpError
from ..gru import GRU, FixedGRU
from ..gru.files import write_arrays, write_error

NAMES = ("W", "R", "bx", "br")
TORCH = ("weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l")


def weights(path: str, order: str | None, layer: int, node: str | None) -> GRU:
    """A GRU with float weights, from an .onnx file or from an npz."""
    if path.endswith(".onnx"):
        return GRU.from_onnx(path, node)
    dump = Dump(path)
    if not dump.is_archive:
        raise DumpError(
            f"{path}: weights are several arrays, this is no npz; write np.savez(…, W=W, R=R, bx=bx, br=br)"
        )
    if "W" in dump and "R" in dump:
        parts = {name: dump.array(name) for name in NAMES if name in dump}
        both = parts["R"].ndim == 3
        return GRU(**{n: tuple(a) if both else a for n, a in parts.items()}, order=order or "zrg")
    stems = [
        name[: -len(f"weight_ih_l{layer}")] for name in dump.names if name.endswith(f"weight_ih_l{layer}")
    ]
    if not stems:
        raise DumpError(
            f"{path}: it holds {short(', '.join(dump.names))}; weights are W and R (and bx, "
            f"br), or weight_ih_l{layer}, weight_hh_l{layer} …; rename them"
        )
    if len(stems) > 1:
        raise DumpError(
            f"{path}: it holds several GRUs: {short(', '.join(stems))}; write one of them to an npz"
        )
    return _torch(dump, stems[0], layer)


def _torch(dump: Dump, stem: str, layer: int) -> GRU:
    suffixes = (str(layer), f"{layer}_reverse")
    names = [f"{part}{suffix}" for part in TORCH for suffix in suffixes]
    state = {name: dump.array(stem + name) for name in names if stem + name in dump}
    module = SimpleNamespace(
        state_dict=lambda: state, num_layers=layer + 1, bidirectional=f"weight_ih_l{layer}_reverse" in state
    )
    return GRU.from_torch(module, layer)


def inputs(path: str, batch_first: bool) -> tuple[Any, Any, bool]:
    """X as three axes, h0 or None, and whether it was one sequence of two axes."""
    dump = _arrays(path)
    x = dump.array("x")
    h0 = dump.array("h0") if dump.is_archive and "h0" in dump else None
    if x.ndim == 2:
        return (x[None] if batch_first else x[:, None]), h0, True
    return x, h0, False


def states(path: str) -> Any:
    """States before the first step: h0, h (as run writes it), or the only array."""
    dump = _arrays(path)
    return dump.array("h" if dump.is_archive and "h0" not in dump else "h0")


def _arrays(path: str) -> Dump:
    dump = Dump(path)
    if not (dump.is_array or dump.is_archive):
        raise DumpError(f"{path}: it is no npy or npz file; write it with np.save or np.savez(…, x=x)")
    return dump


def write(path: str, arrays: dict[str, Any]) -> None:
    """Write an npz, in full or not at all."""
    try:
        write_arrays(path, arrays)
    except OSError as error:
        raise DumpError(f"{path}: {write_error(error)}") from error


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
            use = uses[name]
            fact |= {"used": use.used, "low": use.low, "high": use.high}
            tensors.append(fact | {"cost": None if np.isnan(use.cost) else use.cost})
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
        cost = "" if fact["cost"] is None else f"{fact['cost']:.1e}"
        columns = [f"{fact['used']:.0%}", f"{fact['low']:.4g}", f"{fact['high']:.4g}", cost]
        name = fact["name"] + ("" if len(f.cells) == 1 else (" →", " ←")[fact["direction"]])
        shown = f"{e[0]} to {e[1]}" if isinstance(e, list) else str(e)
        rows.append(
            [name, f"{'int' if fact['signed'] else 'uint'}{fact['bits']}", shown, fact["zero"], *columns]
        )
    return table(["tensor", "codes", "exponent", "zero", "range used", "low", "high", "cost"], rows)
