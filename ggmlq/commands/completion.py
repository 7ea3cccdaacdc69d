"""``ggmlq completion``: what a shell reads to complete commands, options, files and names of tensors."""

from __future__ import annotations

import argparse

from ._completion import script


def run(args: argparse.Namespace) -> int:
    """Run ``ggmlq completion``; the result is the exit status."""
    print(script(args.shell))
    return 0
