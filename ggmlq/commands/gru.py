"""``ggmlq gru``: calibrates a GRU into integers, runs it, and shows its facts."""

from __future__ import annotations

import argparse
import warnings
from typing import TYPE_CHECKING, Any

from ..base.progress import Progress
from ..base.terminal import paint
from ..base.text import count, size
from ..errors import ConfigError
from . import _files, _plain
from ._options import Commands, declare, flag, natural, shared

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..gru import FixedGRU

SUMMARY = "make, run and inspect a GRU in integers"
ABOUT = """\
A GRU in integers: calibrate makes it from float weights and representative inputs, run applies it, info
shows the format of every number. docs/gru.md describes the computation.
"""
EXAMPLES = """\
  ggmlq gru calibrate weights.npz speech.npy --output speech.gru.npz
  ggmlq gru calibrate model.onnx a.npz b.npz --widths int8 --width h=12 -o small.npz
  ggmlq gru run speech.gru.npz new.npy --output y.npz
  ggmlq gru info speech.gru.npz
"""
CALIBRATE = """\
Make a GRU in integers. WEIGHTS is an .onnx file with a GRU node, or an npz with W [3H, C], R [3H, H] and bx,
br [3H] (pairs [2, …] for both directions), or with PyTorch's names: np.savez("weights.npz",
**{k: v.numpy() for k, v in module.state_dict().items()}). DATA are npy files, or npz with an array x:
[T, N, C], or [T, C] for one sequence. The GRU runs once on all of them in floats: more data gives better
ranges.
"""
RUN = """\
Run a GRU in integers on X, and write y (and h, the last states) to an npz. X is an npy file, or an npz with
an array x and optionally h0.
"""
INFO = "Show the format of every tensor of a GRU in integers, and the part of its range used in calibration."
AT_ONCE = 1 << 22  # numbers of x that are run before the bar moves


def add(commands: Commands) -> None:
    parser = declare(commands, "gru", "models", SUMMARY, ABOUT, EXAMPLES)
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    make = declare(
        actions, "calibrate", "", "make a GRU from float weights and inputs", CALIBRATE, _of("calibrate")
    )
    _declare_calibrate(make)
    run = declare(actions, "run", "", "apply a GRU to inputs", RUN, _of("run"))
    _declare_run(run)
    about = declare(actions, "info", "", "show its formats, and their use in calibration", INFO, _of("info"))
    about.add_argument("gru", metavar="GRU", help="the npz that calibrate wrote")
    for parser in (make, run, about):
        shared(parser, "--json")


def _of(action: str) -> str:
    """The examples of one action."""
    return "".join(line for line in EXAMPLES.splitlines(keepends=True) if f"gru {action} " in line)


def _declare_calibrate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("weights", metavar="WEIGHTS", help="float weights, .npz or .onnx")
    parser.add_argument("data", nargs="+", metavar="DATA", help="representative inputs, .npy or .npz")
    parser.add_argument("--output", "-o", metavar="OUT", required=True, help="the npz to write")
    parser.add_argument(
        "--widths", choices=("int8", "mixed", "int16"), default="mixed", help="bits of all tensors (mixed)"
    )
    parser.add_argument(
        "--width", action="append", default=[], metavar="T=BITS", help="bits of one tensor, as h=12"
    )
    parser.add_argument(
        "--tables",
        choices=("direct", "pwl16", "interpolated"),
        default="direct",
        help="how the tables of the gates are filled (direct)",
    )
    parser.add_argument(
        "--observer",
        choices=("ema", "minmax", "sqnr", "percentile"),
        default="sqnr",
        help="how observed ranges become formats (sqnr)",
    )
    parser.add_argument(
        "--rounding",
        choices=("half_away", "half_even"),
        default="half_away",
        help="rounding of floats to codes (half_away)",
    )
    flag(parser, "--dynamic-x", "choose the format of x in each call")
    parser.add_argument(
        "--order", choices=("zrg", "rzn"), help="order of gates in an npz (zrg; rzn with PyTorch's names)"
    )
    parser.add_argument(
        "--layer",
        type=natural,
        default=0,
        metavar="N",
        help="number of the layer, with PyTorch's names",
    )
    parser.add_argument("--node", metavar="NAME", help="name of the GRU node in an .onnx file")
    flag(parser, "--batch-first", "DATA are [N, T, C]")
    shared(parser, "--force")


def _declare_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("gru", metavar="GRU", help="the npz that calibrate wrote")
    parser.add_argument("x", metavar="X", help="inputs [T, N, C] or [T, C], .npy or .npz")
    parser.add_argument("--output", "-o", metavar="OUT", required=True, help="the npz to write")
    parser.add_argument("--h0", metavar="FILE", help="states before the first step, .npy or .npz (zeros)")
    flag(parser, "--codes", "write integer codes instead of floats")
    flag(parser, "--intermediates", "also write v: z, r, g, R_g h + b_rg")
    flag(parser, "--batch-first", "X is [N, T, C], and so are y and v")
    parser.add_argument("--kernel", default="auto", help="a name that gq.kernels('gru') lists (auto)")
    shared(parser, "--force")


def run(args: argparse.Namespace) -> int:
    return {"calibrate": _calibrate, "run": _run, "info": _info}[args.action](args)


def _calibrate(args: argparse.Namespace) -> int:
    from . import _gru

    _files.check_free([args.output], args.force)
    widths = _widths(args.widths, args.width)
    g = _gru.weights(args.weights, args.order, args.layer, args.node)
    for path in args.data:
        x, h0, _ = _gru.inputs(path, args.batch_first)
        y, _ = g.observe(x, h0, args.batch_first)
    f = g.fixed(
        widths, tables=args.tables, observer=args.observer, rounding=args.rounding, dynamic_x=args.dynamic_x
    )
    f.save(args.output)
    error = _error(f, x, h0, args.batch_first, y)
    facts = _gru.facts(f) | {
        "observed": g.observed,
        "observer": args.observer,
        "written": args.output,
        "error": error,
    }
    if args.json:
        _plain.print_json(facts)
        return 0
    print(_gru.listing(f))
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
    import numpy as np

    from ..gru import FixedGRU, SaturationWarning

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


def _run(args: argparse.Namespace) -> int:
    from ..gru import FixedGRU, SaturationWarning
    from . import _gru

    _files.check_free([args.output], args.force)
    f = FixedGRU.load(args.gru)
    x, h0, single = _gru.inputs(args.x, args.batch_first)
    if args.h0 is not None:
        h0 = _gru.states(args.h0)
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always", SaturationWarning)
        y, h, *v = _in_parts(f, x, h0, args)
    axis = 0 if args.batch_first else 1
    arrays = {"y": y.squeeze(axis) if single else y, "h": h}
    if v:
        arrays["v"] = v[0].squeeze(axis) if single else v[0]
    _gru.write(args.output, arrays)
    notes = [str(record.message) for record in records if issubclass(record.category, SaturationWarning)]
    if args.json:
        shapes = {name: list(a.shape) for name, a in arrays.items()}
        _plain.print_json(
            {"written": args.output, "arrays": shapes, "notes": notes, "saturation": _gru.uses(f)}
        )
        return 0
    for note in notes:
        print(paint("note:", "note"), _plain.name(note))
    shown = ", ".join(f"{name} {list(a.shape)} {a.dtype}" for name, a in arrays.items())
    print(f"wrote {_plain.name(args.output)}: {shown}")
    return 0


def _in_parts(f: FixedGRU, x: Any, h0: Any, args: argparse.Namespace) -> list[Any]:
    """The result of one call, computed in parts with a bar where no part needs later steps."""
    import numpy as np

    how: dict[str, Any] = {
        "batch_first": args.batch_first, "return_codes": args.codes,
        "return_intermediates": args.intermediates, "kernel": args.kernel,
    }  # fmt: skip
    axis = 1 if args.batch_first else 0
    steps = x.shape[axis] if x.ndim == 3 else 0
    length = max(1, AT_ONCE // max(1, x.size // max(1, steps)))
    if len(f.cells) > 1 or f.dynamic_x or steps <= length:
        return list(f(x, h0, **how))
    parts = []
    with Progress(steps, "running", "step") as progress:
        for start in range(0, steps, length):
            part = x[:, start : start + length] if axis else x[start : start + length]
            parts.append(f(part, h0, **how))
            h0 = f.parameters["h"].decode(parts[-1][1]) if args.codes else parts[-1][1]
            progress.advance(part.shape[axis])
    y, _, *v = (
        np.concatenate(arrays, axis) if i != 1 else None for i, arrays in enumerate(zip(*parts, strict=True))
    )
    return [y, parts[-1][1], *v]


def _info(args: argparse.Namespace) -> int:
    from ..gru import FixedGRU
    from . import _gru

    f = FixedGRU.load(args.gru)
    if args.json:
        _plain.print_json(_gru.facts(f) | {"file": args.gru})
        return 0
    print(_gru.listing(f))
    more = ", dynamic x" if f.dynamic_x else ""
    both = ", both directions" if len(f.cells) > 1 else ""
    print(
        f"\n{f.widths}, {f.inputs} inputs, {f.units} units{both}; {f.tables} tables, "
        f"{f.rounding}{more}; {size(f.nbytes)} of codes"
    )
    return 0
