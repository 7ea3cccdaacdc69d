"""``ggmlq cache``: what was compiled and fetched on this machine, how to fill it and how to be rid of it."""

from __future__ import annotations

from ._options import Commands, add_json, declare

SUMMARY = "list, fill or remove compiled kernels and local copies of files opened by address"
ABOUT = """\
List what ggmlq stores on this disk: kernels that were compiled on this machine, and the parts of files that
were opened by address (https://, hf://). If the parts take more than 64 GiB, or GGMLQ_REMOTE_BYTES bytes,
those that were not opened for the longest time are removed; compiled kernels take half a gigabyte at most.
GGMLQ_CACHE_DIR moves the cache, or turns it off.

"fill FORMAT …" compiles the kernels that products with weights of these types take by themselves on a card,
for all numbers of rows, so that no product waits for a compiler. Kernels that come with the package need no
compiling. The card may be on another machine: its name as NVIDIA writes it, or its capability, such as sm_89.
Where no compiler is installed, the kernels that would need one are named, with the command that installs it.
"""
EXAMPLES = """\
  ggmlq cache
  ggmlq cache fill q4_K q6_K --card sm_89
  ggmlq cache --empty compiled
"""


def add(commands: Commands) -> None:
    """Declare ``ggmlq cache`` with its options and examples."""
    parser = declare(commands, "cache", "setup", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("fill", nargs="*", metavar="fill FORMAT", help="compile the kernels of these formats")
    card = "with fill: the card's name, or sm_NN; default: the card of this machine"
    parser.add_argument("--card", metavar="NAME", help=card)
    kinds = ("all", "compiled", "remote")
    parser.add_argument(
        "--empty", nargs="?", const="all", choices=kinds, help="remove what is stored; of a kind"
    )
    add_json(parser)
