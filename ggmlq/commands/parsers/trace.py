"""``ggmlq trace``: which operation of a real run goes wrong?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ._options import Commands, declare

SUMMARY = "judge every node of a real run of llama.cpp"
ABOUT = """\
Run a model in your libllama and judge every node of its graphs on its own inputs: products in the arithmetic
of their kernel, all elements by random sums and the suspicious ones one by one; other operations by oracles
with a bound for each element. The first wrong node is named; if the library crashes, its node is. Exit 0:
all is right, 1: something is wrong, 2: the run did not reach its end.
"""
EXAMPLES = """\
  ggmlq trace model.gguf --prompt 'Once upon a time' --generate 4
  ggmlq trace model.gguf --lib ~/llama.cpp/build --select 'blk.0.*' --save wrong
  ggmlq trace model.gguf --fused --bisect --repeats 3
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
    what.add_argument("--prompt", metavar="TEXT", help="the input text")
    what.add_argument("--file", type=Path, metavar="F", help="a file with that text")
    what.add_argument("--tokens", type=int, metavar="N", help="use N random tokens instead")
    parser.add_argument(
        "--generate",
        type=int,
        default=0,
        metavar="N",
        help="tokens to generate after it, one by one (default: 0)",
    )
    parser.add_argument("--select", action="append", default=[], metavar="GLOB",
                        help="only nodes or weights whose names fit: 'blk.0.*', 'Qcur-*'")  # fmt: skip
    parser.add_argument("--nodes", choices=("all", "products"), default="all",
                        help="all operations, or products and attention alone (default: all)")  # fmt: skip
    parser.add_argument("--fused", action="store_true",
                        help="judge nodes that one kernel may compute as one, so that they fuse")  # fmt: skip
    parser.add_argument("--bisect", action="store_true",
                        help="name the first nodes by which logits differ without the trace")  # fmt: skip
    parser.add_argument("--repeats", type=int, default=1, metavar="N",
                        help="trace N runs, and compare their nodes: races (default: 1)")  # fmt: skip
    parser.add_argument("--judge", choices=("all", "sample", "full"), default="all",
                        help="all elements by random sums; a few; all one by one (default: all)")  # fmt: skip
    parser.add_argument(
        "--without", default="", metavar="BUFFERS", help="weight layouts that may not be used: AMX,CPU_REPACK"
    )
    parser.add_argument("--cache", metavar="TYPE", help="type of the K and V caches: q8_0, or q8_0,f16")
    parser.add_argument(
        "--flash", choices=("auto", "on", "off"), default="auto", help="attention as one node"
    )
    parser.add_argument(
        "--threads", type=int, default=0, help="threads of the library (default: all cores, up to 16)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of random tokens (default: 0)")
    parser.add_argument(
        "--timeout",
        type=float,
        default=600,
        metavar="S",
        help="time limit for a node in seconds (default: 600)",
    )
    parser.add_argument(
        "--save", type=Path, metavar="DIR", help="write wrong nodes to DIR as npz, for ggmlq check --replay"
    )
    parser.add_argument(
        "--test-file", type=Path, metavar="OUT", help="write wrong nodes for test-backend-ops --test-file"
    )
    parser.add_argument("--no-verify", action="store_true", help="skip the second run without the trace")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="print one line for each node, not only for wrong ones"
    )
    parser.add_argument("--html", metavar="FILE", help="also write the report as an HTML page")
    parser.add_argument("--json", action="store_true", help="print JSON, one object per line")
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
