"""``ggmlq gru``: make, run and inspect a GRU in integers."""

from __future__ import annotations

import argparse

from ._options import Commands, add_force, add_json, declare

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


def add(commands: Commands) -> None:
    """Declare ``ggmlq gru`` with its options and examples."""
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
        add_json(parser)


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
        default="ema",
        help="how observed ranges become formats (ema)",
    )
    parser.add_argument(
        "--rounding",
        choices=("half_away", "half_even"),
        default="half_away",
        help="rounding of floats to codes (half_away)",
    )
    parser.add_argument("--dynamic-x", action="store_true", help="choose the format of x in each call")
    parser.add_argument(
        "--order", choices=("zrg", "rzn"), help="order of gates in an npz (zrg; rzn with PyTorch's names)"
    )
    parser.add_argument(
        "--layer", type=_layer, default=0, metavar="N", help="number of the layer, with PyTorch's names"
    )
    parser.add_argument("--node", metavar="NAME", help="name of the GRU node in an .onnx file")
    parser.add_argument("--batch-first", action="store_true", help="DATA are [N, T, C]")
    add_force(parser)


def _declare_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("gru", metavar="GRU", help="the npz that calibrate wrote")
    parser.add_argument("x", metavar="X", help="inputs [T, N, C] or [T, C], .npy or .npz")
    parser.add_argument("--output", "-o", metavar="OUT", required=True, help="the npz to write")
    parser.add_argument("--h0", metavar="FILE", help="states before the first step, .npy or .npz (zeros)")
    parser.add_argument("--codes", action="store_true", help="write integer codes instead of floats")
    parser.add_argument("--intermediates", action="store_true", help="also write v: z, r, g, R_g h + b_rg")
    parser.add_argument("--batch-first", action="store_true", help="X is [N, T, C], and so are y and v")
    parser.add_argument("--kernel", default="auto", help="a name that gq.kernels('gru') lists (auto)")
    add_force(parser)


def _layer(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a layer; write 0 or more")
    return int(text[:9])
