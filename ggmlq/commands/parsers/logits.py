"""``ggmlq logits``: two builds of llama.cpp on one model, and the first node at which one goes wrong."""

from __future__ import annotations

from pathlib import Path

from ._options import Commands, declare

SUMMARY = "find the first node at which two llama.cpp builds differ"
ABOUT = """\
Run a model in two builds on the same tokens, and name the first node that differs by more than rounding
explains: every node of either build is judged on its own inputs, element by element; after an operation that
nobody judges inputs may be further apart than rounding. Exit 0: both are right, 1: a node differs by more
than rounding explains, 2: it could not run.
"""
EXAMPLES = """\
  ggmlq logits model.gguf --against ~/llama.cpp/build-new --prompt 'Once upon a time'
  ggmlq logits model.gguf --lib build-good --against build-bad --tokens 64
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
    parser.add_argument("--against", type=Path, metavar="B", required=True, help="the other build")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--prompt", metavar="TEXT", help="the input text")
    what.add_argument("--tokens", type=int, metavar="N", help="use N random tokens instead")
    parser.add_argument(
        "--generate", type=int, default=0, metavar="N", help="tokens that A generates then (default: 0)"
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
