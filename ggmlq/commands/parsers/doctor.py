"""``ggmlq doctor``: what is on this machine, and what is missing."""

from __future__ import annotations

from ._options import Commands, add_json, declare

SUMMARY = "versions, CPU, GPU and libggml as ggmlq finds them"
ABOUT = """\
What ggmlq finds on this machine, and why something is not there. Exit 1 where a required package is missing
or does not fit.
"""
EXAMPLES = """\
  ggmlq doctor
  ggmlq doctor --json
"""


def add(commands: Commands) -> None:
    """Declare ``ggmlq doctor`` with its options and examples."""
    parser = declare(commands, "doctor", "setup", SUMMARY, ABOUT, EXAMPLES)
    add_json(parser)
