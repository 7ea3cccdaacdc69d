"""``ggmlq gru``: calibrates a GRU into integers, runs it, and shows its facts."""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.progress import Progress
from ..base.terminal import paint
from ..base.text import count, size
from ..errors import ConfigError
from ..gru import FixedGRU, SaturationWarning
from . import _gru_facts, _plain, _sizes
from . import _gru_files as files

AT_ONCE = 1 << 22  # numbers of x that are run before the bar moves


def run(args: argparse.Namespace) -> int:
    """Run ``ggmlq gru``; the result is the exit status."""
    return {"calibrate": _calibrate, "run": _run, "info": _info}[args.action](args)


# --- calibrate ----------------------------------------------------------------------------------


def _calibrate(args: argparse.Namespace) -> int:
    _sizes.check_free([args.output], args.force)
    widths = _widths(args.widths, args.width)
    g = files.weights(args.weights, args.order, args.layer, args.node)
    for path in args.data:
        x, h0, _ = files.inputs(path, args.batch_first)
        y, _ = g.observe(x, h0, args.batch_first)
    f = g.fixed(
        widths, tables=args.tables, observer=args.observer, rounding=args.rounding, dynamic_x=args.dynamic_x
    )
    f.save(args.output)
    error = _error(f, x, h0, args.batch_first, y)
    facts = _gru_facts.facts(f) | {
        "observed": g.observed,
        "observer": args.observer,
        "written": args.output,
        "error": error,
    }
    if args.json:
        _plain.print_json(facts)
        return 0
    print(_gru_facts.listing(f))
    print(f"\ncalibrated on {count(g.observed, 'step')} (steps times sequences)")
    if error is not None:
        print(
            f"on {_plain.name(args.data[-1])} against floats: MSE {error['mse']:.3g}, "
            f"cosine {error['cosine']:.6f}"
        )
    print(f"wrote {_plain.name(args.output)}, {size(f.nbytes)} of codes")
    return 0


def _widths(name: str, pairs: list[str]) -> Any:
    """A name, or a mapping where single tensors have a width of their own."""
    if not pairs:
        return name
    from ..gru.widths import NAMED

    widths = {tensor: width._asdict() for tensor, width in NAMED[name].items()}
    for pair in pairs:
        tensor, equals, bits = pair.partition("=")
        if not equals or not bits.isdecimal():
            raise ConfigError(f"--width {pair}: a tensor and its bits are expected; write --width h=12")
        widths[tensor] = widths.get(tensor, {}) | {"bits": int(bits[:9])}
    return widths


def _error(f: FixedGRU, x: Any, h0: Any, batch_first: bool, y: NDArray[Any]) -> dict[str, float] | None:
    if not y.size:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SaturationWarning)
        y_fixed = FixedGRU(f.cells, f.tables, f.rounding, f.dynamic_x)(x, h0, batch_first)[0]
    outputs = y_fixed.astype(np.float64)
    want = y.astype(np.float64)
    norms = float(np.sqrt((outputs**2).sum() * (want**2).sum()))
    cosine = float((outputs * want).sum()) / norms if norms else 1.0
    return {"mse": float(((outputs - want) ** 2).mean()), "cosine": cosine}


# --- run ----------------------------------------------------------------------------------------


def _run(args: argparse.Namespace) -> int:
    _sizes.check_free([args.output], args.force)
    f = FixedGRU.load(args.gru)
    x, h0, single = files.inputs(args.x, args.batch_first)
    if args.h0 is not None:
        h0 = files.states(args.h0)
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always", SaturationWarning)
        y, h, *v = _in_parts(f, x, h0, args)
    axis = 0 if args.batch_first else 1
    arrays = {"y": y.squeeze(axis) if single else y, "h": h}
    if v:
        arrays["v"] = v[0].squeeze(axis) if single else v[0]
    files.write(args.output, arrays)
    notes = [str(record.message) for record in records if issubclass(record.category, SaturationWarning)]
    if args.json:
        shapes = {name: list(a.shape) for name, a in arrays.items()}
        _plain.print_json(
            {"written": args.output, "arrays": shapes, "notes": notes, "saturation": _gru_facts.uses(f)}
        )
        return 0
    for note in notes:
        print(paint("note:", "note"), _plain.name(note))
    shown = ", ".join(f"{name} {list(a.shape)} {a.dtype}" for name, a in arrays.items())
    print(f"wrote {_plain.name(args.output)}: {shown}")
    return 0


def _in_parts(f: FixedGRU, x: Any, h0: Any, args: argparse.Namespace) -> list[Any]:
    """The result of one call, computed in parts with a bar where no part needs later steps."""
    how: dict[str, Any] = {
        "batch_first": args.batch_first, "return_codes": args.codes,
        "return_intermediates": args.intermediates, "kernel": args.kernel,
    }  # fmt: skip
    axis = 1 if args.batch_first else 0
    steps = x.shape[axis] if x.ndim == 3 else 0
    length = max(1, AT_ONCE // max(1, x.size // max(1, steps)))
    if len(f.cells) > 1 or f.dynamic_x or steps <= length:
        return list(f(x, h0, **how))
    progress, parts = Progress(steps, "running", "step"), []
    try:
        for start in range(0, steps, length):
            part = x[:, start : start + length] if axis else x[start : start + length]
            parts.append(f(part, h0, **how))
            h0 = f.parameters["h"].decode(parts[-1][1]) if args.codes else parts[-1][1]
            progress.advance(part.shape[axis])
    finally:
        progress.close()
    y, _, *v = (
        np.concatenate(arrays, axis) if i != 1 else None for i, arrays in enumerate(zip(*parts, strict=True))
    )
    return [y, parts[-1][1], *v]


# --- info ---------------------------------------------------------------------------------------


def _info(args: argparse.Namespace) -> int:
    f = FixedGRU.load(args.gru)
    if args.json:
        _plain.print_json(_gru_facts.facts(f) | {"file": args.gru})
        return 0
    print(_gru_facts.listing(f))
    more = ", dynamic x" if f.dynamic_x else ""
    both = ", both directions" if len(f.cells) > 1 else ""
    print(
        f"\n{f.widths}, {f.inputs} inputs, {f.units} units{both}; {f.tables} tables, "
        f"{f.rounding}{more}; {size(f.nbytes)} of codes"
    )
    return 0
