"""``ggmlq trace``: which operation of a real run goes wrong?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ._options import Commands, declare

SUMMARY = "judge every product of a real run of llama.cpp"
ABOUT = """\
Run a model through a libllama of yours and judge every matrix product of it: each on its own inputs, in the
arithmetic in which it was made, all elements by random sums and the suspicious ones one by one. What is
wrong is diagnosed; where the library dies, the node is named. Exit 0 where all is right, 1 where something
is wrong, 2 where it could not run to its end.
"""
EXAMPLES = """\
  ggmlq trace model.gguf --prompt 'Once upon a time' --generate 4
  ggmlq trace model.gguf --lib ~/llama.cpp/build --select 'blk.0.*' --save wrong
  ggmlq trace model.gguf -- llama-completion -p Hello -n 8     a command of llama.cpp in place of a prompt
"""


def add(commands: Commands) -> None:
    """Declare ``ggmlq trace`` with its options and examples."""
    parser = declare(
        commands,
        "trace",
        "kernels",
        SUMMARY,
        ABOUT,
        EXAMPLES,
        usage="ggmlq trace MODEL [options] [-- COMMAND …]",
    )
    parser.add_argument("model", metavar="MODEL", help="a GGUF file")
    parser.add_argument(
        "--lib", type=Path, help="libllama, libggml or a build folder (default: as doctor finds it)"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--prompt", metavar="TEXT", help="the text that is run")
    what.add_argument("--file", type=Path, metavar="F", help="a file with that text")
    what.add_argument("--tokens", type=int, metavar="N", help="so many random tokens instead")
    parser.add_argument(
        "--generate", type=int, default=0, metavar="N", help="tokens after it, one by one (default: 0)"
    )
    parser.add_argument("--select", action="append", default=[], metavar="GLOB",
                        help="only nodes or weights with such names: 'blk.0.*', 'Qcur-*'")  # fmt: skip
    parser.add_argument("--judge", choices=("all", "sample", "full"), default="all",
                        help="all elements by random sums; a few; or one by one (default: all)")  # fmt: skip
    parser.add_argument(
        "--without", default="", metavar="BUFFERS", help="layouts not to be used: AMX,CPU_REPACK"
    )
    parser.add_argument("--cache", metavar="TYPE", help="of the K and V caches: q8_0, or q8_0,f16")
    parser.add_argument(
        "--flash", choices=("auto", "on", "off"), default="auto", help="attention as one node"
    )
    parser.add_argument("--threads", type=int, default=0, help="of the library (default: all, up to 16)")
    parser.add_argument("--seed", type=int, default=0, help="of random tokens (default: 0)")
    parser.add_argument(
        "--timeout", type=float, default=600, metavar="S", help="seconds for a node (default: 600)"
    )
    parser.add_argument("--save", type=Path, metavar="DIR", help="write wrong products to DIR as npz")
    parser.add_argument("--no-verify", action="store_true", help="no second run without the trace")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="a line for each node, not only for the bad"
    )
    parser.add_argument("--html", metavar="FILE", help="also write it as an HTML page, which loads nothing")
    parser.add_argument("--json", action="store_true", help="print JSON, a record a line")
    _take_words_behind(parser)


def _take_words_behind(parser: argparse.ArgumentParser) -> None:
    """``MODEL --json -- llama-completion -p Hello``: argparse would take no positionals after an option."""
    parse = parser.parse_known_args

    def split(args: Any = None, namespace: Any = None) -> Any:
        words = list(args or [])
        at = words.index("--") if "--" in words else len(words)
        options, unknown = parse(words[:at], namespace)
        options.program = words[at + 1 :]
        return options, unknown

    parser.parse_known_args = split  # type: ignore[method-assign]
