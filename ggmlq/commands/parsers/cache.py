"""``ggmlq cache``: what was fetched of files elsewhere, and how to be rid of it."""

from __future__ import annotations

from ._options import Commands, add_json, declare

SUMMARY = "list or remove local copies of files opened by address"
ABOUT = """\
List the files that were opened by address (https://, hf://), and their parts that are stored on this disk,
so that they need not be downloaded again. If all take more than 64 GiB, or GGMLQ_REMOTE_BYTES bytes, those
that were not opened for the longest time are removed. GGMLQ_CACHE_DIR moves the cache, or turns it off.
"""
EXAMPLES = """\
  ggmlq cache
  ggmlq cache --empty
"""


def add(commands: Commands) -> None:
    """Declare ``ggmlq cache`` with its options and examples."""
    parser = declare(commands, "cache", "setup", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("--empty", action="store_true", help="remove all stored parts")
    add_json(parser)
