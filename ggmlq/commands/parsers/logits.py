"""``ggmlq logits``: a run in llama.cpp beside another build's, or beside the model in float64."""

from __future__ import annotations

from pathlib import Path

from ._options import Commands, declare

SUMMARY = "find the first node at which a llama.cpp build differs from another, or from the model in float64"
ABOUT = """\
Run a model in two builds on the same tokens, and name the first node that differs by more than rounding
explains: every node of either build is judged on its own inputs, element by element; after an operation that
nobody judges inputs may be further apart than rounding. With --against-model the other run is this package's
own, in float64 and in llama.cpp's arithmetic: the two say how far roundings take each node of a whole run,
and the first node that is further off is named. Exit 0: no node differs by more than rounding explains, 1:
one does, 2: it could not run.
"""
EXAMPLES = """\
  ggmlq logits model.gguf --against ~/llama.cpp/build-new --prompt 'Once upon a time'
  ggmlq logits model.gguf --lib build-good --against build-bad --tokens 64
  ggmlq logits model.gguf --lib ~/llama.cpp/build --against-model --tokens 64 --generate 4
"""


def add(commands: Commands) -> None:
    """Declare ``ggmlq logits`` with its options and examples."""
    parser = declare(commands, "logits", "kernels", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("model", metavar="MODEL", help="a GGUF file")
    parser.add_argument(
        "--lib",
        type=Path,
        metavar="A",
        help="libllama, libggml or a build folder (default: as doctor finds it)",
    )
    other = parser.add_mutually_exclusive_group(required=True)
    other.add_argument("--against", type=Path, metavar="B", help="the other build")
    other.add_argument(
        "--against-model", action="store_true", help="the model as this library computes it, in float64"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--prompt", metavar="TEXT", help="the input text")
    what.add_argument("--tokens", type=int, metavar="N", help="use N random tokens instead")
    parser.add_argument(
        "--generate", type=int, default=0, metavar="N", help="tokens that A generates then (default: 0)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of random tokens (default: 0)")
    parser.add_argument("--cache", metavar="TYPE", help="type of the K and V caches: q8_0, or q8_0,f16")
    parser.add_argument(
        "--flash", choices=("auto", "on", "off"), default="auto", help="attention as one node"
    )
    parser.add_argument(
        "--without", default="", metavar="BUFFERS", help="weight layouts that may not be used: AMX,CPU_REPACK"
    )
    parser.add_argument("--threads", type=int, default=0, help="threads of each library")
    parser.add_argument(
        "--timeout",
        type=float,
        default=600,
        metavar="S",
        help="time limit for a node in seconds (default: 600)",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="print one line for each node")
    parser.add_argument("--json", action="store_true", help="print JSON, one object per line")
