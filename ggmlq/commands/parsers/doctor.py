"""``ggmlq doctor``: what is on this machine, and what is missing."""

from __future__ import annotations

from ._options import Commands, add_json, declare

SUMMARY = "show versions, CPU, GPU and libggml, and what is missing"
ABOUT = """\
Show what ggmlq finds on this machine, and how to install what is missing. Exit 1: a required package is
missing or does not fit.
"""
EXAMPLES = """\
  ggmlq doctor
  ggmlq doctor --json
"""


def add(commands: Commands) -> None:
    """Declare ``ggmlq doctor`` with its options and examples."""
    parser = declare(commands, "doctor", "setup", SUMMARY, ABOUT, EXAMPLES)
    add_json(parser)
