"""``ggmlq cache``: what was fetched of files elsewhere, and how to be rid of it."""

from __future__ import annotations

from ._options import Commands, add_json, declare

SUMMARY = "what is kept of files that were opened by address"
ABOUT = """\
Files that were opened by address (https://, hf://) and what of them is kept on this disk, so that it need
not be fetched again. Those that were not opened for longest go by themselves when all take more than 64
GiB, or GGMLQ_REMOTE_BYTES bytes. GGMLQ_CACHE_DIR moves the cache, or switches it off.
"""
EXAMPLES = """\
  ggmlq cache
  ggmlq cache --empty
"""


def add(commands: Commands) -> None:
    """Declare ``ggmlq cache`` with its options and examples."""
    parser = declare(commands, "cache", "setup", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("--empty", action="store_true", help="remove all of it")
    add_json(parser)
