"""``ggmlq diagnose``: is this kernel's result right, and if not, which mistake explains it?"""

from __future__ import annotations

import argparse
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.progress import long_work
from ..base.terminal import paint, table, wrapped
from ..base.text import printable
from ..errors import DumpError, ShapeError
from . import _plain
from ._options import Commands, declare, flag, shape, shared

if TYPE_CHECKING:
    from ..arrays.array import QuantArray
    from ..arrays.dumps import Dump
    from ..arrays.scaled import ScaledArray
    from ..faults import Diagnosis

SUMMARY = "find the mistake that explains a kernel's wrong result"
ABOUT = """\
Judge Y, the result of a kernel for activations X and weights W. Y and X are npy, npz (arrays y and x) or raw
float32; W is a GGUF file, an npz (raw, format, shape) or raw bytes. One npz with all arrays is enough, such
as those of `ggmlq check --save`, or of a product with scales: y, w_codes, w_scales, w_code, w_tile (and
w_zeros), and x or x_codes … Exit 0: right, 1: wrong, 2: could not judge.
"""
EXAMPLES = """\
  ggmlq diagnose case.npz                              a file that `ggmlq check --save` wrote
  ggmlq diagnose y.npy x.npy model.gguf --tensor blk.0.ffn_up.weight
  ggmlq diagnose y.bin x.bin w.bin --format q4_K --weights-shape 4096x4096
  ggmlq diagnose --list
"""


def add(commands: Commands) -> None:
    parser = declare(commands, "diagnose", "kernels", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("y", nargs="?", metavar="Y", help="the kernel's result [M, N]")
    parser.add_argument("x", nargs="?", metavar="X", help="the activations [M, K]")
    parser.add_argument("weights", nargs="?", metavar="W", help="the weights [N, K]")
    parser.add_argument("--tensor", metavar="NAME", help="name of the tensor, if W is a GGUF file")
    parser.add_argument(
        "--arithmetic", metavar="A", help="arithmetic that the kernel claims, see docs/arithmetic.md"
    )
    parser.add_argument(
        "--repeat", action="append", default=[], metavar="FILE",
        help="another result of the same run; shows races",
    )  # fmt: skip
    parser.add_argument("--shape", type=shape, metavar="MxN", help="shape of a raw Y")
    parser.add_argument("--format", metavar="F", help="type of raw weights")
    parser.add_argument("--weights-shape", type=shape, metavar="NxK", help="shape of raw weights")
    parser.add_argument(
        "--ids", metavar="FILE",
        help="ids [T, U] of experts, npy or in an npz: X is [T, K] or [T, U, K], W [E, N, K], Y [T, U, N]",
    )  # fmt: skip
    parser.add_argument(
        "--make-input", metavar="FILE", help="write activations on which the faults differ most (npz)"
    )
    flag(
        parser,
        "--unit-vectors",
        "write unit vectors there: y is then the kernel's own weights, column by column",
    )
    flag(parser, "--list", "list all faults")
    shared(parser, "--json")


def run(args: argparse.Namespace) -> int:
    import numpy as np

    from ..arrays.dumps import Dump
    from ..faults import diagnose
    from ..trace.saved import is_node
    from . import _check, _dumps

    if args.list:
        return _listed(args.json)
    if args.y is None:
        raise DumpError("there is no Y: pass Y, X and W, or an npz that holds all; --list names the faults")
    if is_node(args.y):
        return _check.diagnose_node(args.y, args.json)
    dump = Dump(args.y)
    if args.weights is None and not dump.is_archive:
        raise DumpError(f"{args.y} alone has no activations; pass Y, X and W, or an npz that holds all")
    w = _dumps.scaled(dump, "w")
    if w is not None:
        return _scaled(args, dump, w)
    _refuse_colon(args)
    q = _dumps.weights(
        _dumps.WeightsFile(args.weights or args.x or args.y, args.tensor, args.format, args.weights_shape)
    )
    ids = _ids(args.ids, dump)
    if q.ndim != (2 if ids is None else 3):
        raise ShapeError(
            f"{q!r}: weights are a matrix [N, K]; say --weights-shape NxK, or name another tensor; those "
            "of experts are [E, N, K], with --ids"
        )
    x = _dumps.floats(Dump(args.x) if args.weights else dump, "x", None, q.shape[-1])
    n, lines = q.shape[-2], prod(x.shape[:-1]) if ids is None else ids.size
    most = max(_dumps.SPARE, 8 * lines * n)  # bytes of y, be it float64
    y = _dumps.floats(dump, "y", args.shape, n, most)
    repeats = [_dumps.floats(Dump(path), "y", args.shape, n, most) for path in args.repeat]
    if "repeats" in dump:  # what `ggmlq check --save` keeps besides: further results, and the claim
        repeats += list(np.atleast_1d(_dumps.floats(dump, "repeats", None, n)))
    claim = args.arithmetic or (dump.text("claim") if "claim" in dump else "") or None
    lost = dump.array("unwritten", most) if "unwritten" in dump and ids is None else None
    with long_work("looking for what explains Y"):
        diagnosis = diagnose(y, x, q, arithmetic=claim, repeats=repeats, ids=ids, unwritten=lost)
    if args.make_input and ids is not None:
        raise DumpError("--make-input makes activations for one matrix; leave it out with ids of experts")
    if args.unit_vectors and not args.make_input:
        raise DumpError("--unit-vectors says what --make-input FILE writes; name the file too")
    if args.make_input:
        args.make_input = _write_input(args.make_input, q, args.unit_vectors)
    _say(args, diagnosis)
    if args.make_input and not args.json:
        path = _plain.name(args.make_input)
        print(
            f"wrote {path}: x, and the weights as raw, format and shape; ggmlq check --replay {path} runs it"
        )
    return 0 if diagnosis.ok else 1


def _refuse_colon(args: argparse.Namespace) -> None:
    """Refuse ``model.gguf:blk.0.ffn_up.weight``, which other programs take, and name the option."""
    path, _, tensor = (args.weights or "").rpartition(":")
    if path and not Path(args.weights).exists() and Path(path).is_file():
        raise DumpError(
            f"W {args.weights}: there is no such file, but {path} is one; a tensor of it is named by an "
            f"option: {path} --tensor {tensor}"
        )


def _ids(path: str | None, dump: Dump) -> Any:
    """The ids of experts: from a file of their own, or from the npz that holds all."""
    from ..arrays.dumps import Dump
    from . import _dumps

    if path is not None:
        return Dump(path).array("ids", _dumps.SPARE)
    return dump.array("ids", _dumps.SPARE) if "ids" in dump else None


def _scaled(args: argparse.Namespace, dump: Dump, w: ScaledArray) -> int:
    """Diagnose a product of arrays with scales, all of it from one npz."""
    from ..arrays.dumps import Dump
    from ..faults import diagnose
    from . import _dumps

    if args.x or args.make_input:
        raise DumpError(
            f"{args.y} holds w_codes: y, x and w of a product with scales are read from this one file, "
            "and inputs are made for block formats; leave X, W and --make-input out"
        )
    x = _dumps.scaled(dump, "x")
    rows = x if x is not None else _dumps.floats(dump, "x", None, w.shape[-1])
    most = max(_dumps.SPARE, 8 * prod(rows.shape[:-1]) * w.shape[0])
    y = _dumps.floats(dump, "y", args.shape, w.shape[0], most)
    repeats = [_dumps.floats(Dump(path), "y", args.shape, w.shape[0], most) for path in args.repeat]
    with long_work("looking for what explains Y"):
        diagnosis = diagnose(y, rows, w, arithmetic=args.arithmetic, repeats=repeats)
    _say(args, diagnosis)
    return 0 if diagnosis.ok else 1


def _say(args: argparse.Namespace, diagnosis: Diagnosis) -> None:
    if args.json:
        _plain.print_json(diagnosis.as_dict())
    else:
        print(_described(diagnosis))


def _described(diagnosis: Diagnosis) -> str:
    verdict = paint(diagnosis.fault, "good" if diagnosis.ok else "bad")
    parts = [f"{verdict} (confidence {diagnosis.confidence:.2f})", wrapped(printable(diagnosis.text), "    ")]
    if diagnosis.alternatives:
        parts.append(f"as likely: {', '.join(diagnosis.alternatives)}")
    parts.append(table(["figure", "value"], diagnosis.figures.items()))
    return "\n\n".join(parts)


def _listed(as_json: bool) -> int:
    from ..faults.catalogue import CATALOGUE, EXPERTS, GRU_FAULTS, NODES, SCALED

    others = SCALED | EXPERTS | NODES | GRU_FAULTS
    faults = [*CATALOGUE.values(), *(fault for name, fault in others.items() if name not in CATALOGUE)]
    if as_json:
        _plain.print_json([fault.__dict__ for fault in faults])
        return 0
    for fault in faults:
        print(f"{fault.id}\n    {fault.says}")
        if fault.wrong:
            print(f"    wrong: {fault.wrong}\n    right: {fault.right}\n    look:  {fault.look}")
        if fault.bugs:
            print(f"    seen:  {fault.bugs}")
    return 0


def _write_input(name: str, q: QuantArray, units: bool) -> str:
    """Write activations for a diagnosis; the path, to which NumPy adds .npz if it has another ending."""
    import numpy as np

    from ..faults import telling_input, unit_input

    q, path = q.to("cpu"), name if name.endswith(".npz") else f"{name}.npz"
    try:
        np.savez_compressed(
            path, x=(unit_input if units else telling_input)(q), raw=np.asarray(q.raw),
            format=np.array(q.format.name), shape=np.array(q.shape),
        )  # fmt: skip
    except OSError as error:
        raise DumpError(f"--make-input {path}: cannot be written: {error.strerror}; name another") from error
    return path
