"""``ggmlq doctor``: what is on this machine, and what is missing."""

from __future__ import annotations

import argparse

from ..base.terminal import wrapped
from . import _plain
from ._options import Commands, declare, shared

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
    parser = declare(commands, "doctor", "setup", SUMMARY, ABOUT, EXAMPLES)
    shared(parser, "--json")


def run(args: argparse.Namespace) -> int:
    from .. import doctor

    report = doctor.examine()
    if args.json:
        _plain.print_json(report)
    else:
        print(wrapped(doctor.describe(report), "    "))
    return 1 if report["problems"] else 0
