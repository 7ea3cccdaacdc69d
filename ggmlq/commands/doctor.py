"""``ggmlq doctor``: what is on this machine, and what is missing."""

from __future__ import annotations

import argparse
import json

from .. import doctor
from ..base.terminal import wrapped


def run(args: argparse.Namespace) -> int:
    """Run ``ggmlq doctor``; the result is the exit status."""
    report = doctor.examine()
    print(json.dumps(report, indent=2) if args.json else wrapped(doctor.describe(report), "    "))
    return 1 if report["problems"] else 0
