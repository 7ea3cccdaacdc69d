"""``ggmlq diagnose``: is this kernel's result right, and if not, which mistake explains it?"""

from __future__ import annotations

from ._options import Commands, add_json, declare, shape

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
    """Declare ``ggmlq diagnose`` with its options and examples."""
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
    parser.add_argument("--list", action="store_true", help="list all faults")
    add_json(parser)
