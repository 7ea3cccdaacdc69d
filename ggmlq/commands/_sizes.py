"""Sizes as people write them, and files that are there already."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable

from ..errors import GGUFError
from ..text import size as shown
from ._plain import name

UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
UNITS |= {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
MOST = 1 << 62


def size(text: str) -> int:
    """``500M``, ``4GB``, ``2.5GiB`` as bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)((?:[kKMGT]i?)?)B?", text)
    unit = (found[2] if found[2] != "K" else "k") if found else ""
    n = int(float(found[1]) * UNITS[unit]) if found and len(found[1]) < 20 else 0
    if not 0 < n < MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 500M, 4GB or 2.5GiB")
    return n


def bits(text: str) -> float:
    """``4.5bpw`` or ``4.5`` as bits a weight."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+) ?(?:bpw|bits?)?", text)
    if found is None or not 0 < float(found[1]) <= 64:
        raise argparse.ArgumentTypeError(f"{text!r} is no target; write bits a weight, as 4.5bpw")
    return float(found[1])


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or not int(text[:18]):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of things; write 1 or more")
    return int(text)


def tell(files: Iterable[tuple[str, int]], dry: bool) -> None:
    """Which files were written, or would be."""
    for path, nbytes in files:
        print(f"would write {name(path)}, {shown(nbytes)}" if dry else f"wrote {name(path)}")
    if dry:
        print("nothing was written (--dry-run)")


def add_force(parser: argparse.ArgumentParser) -> None:
    """``--force``."""
    parser.add_argument("--force", action="store_true", help="replace OUT where it is there already")


def check_free(paths: Iterable[str], force: bool, own: Iterable[str] = ()) -> None:
    """No file of these names is there, but those of ``own``, which the user named as the source too."""
    mine = [path for path in own if os.path.exists(path)]
    for path in paths:
        if not force and os.path.lexists(path):
            if os.path.exists(path) and any(os.path.samefile(path, other) for other in mine):
                continue
            raise GGUFError(
                f"{path} is there already; it would be replaced and its bytes lost; name another file, or "
                "say that you mean it: --force"
            )
