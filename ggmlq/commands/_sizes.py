"""Sizes as people write them, and files that are there already."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ..base.text import size as shown
from ..errors import GGUFError
from ._plain import name


def tell(files: Iterable[tuple[str, int]], dry: bool) -> None:
    """Print the files that were written, or would be."""
    for path, nbytes in files:
        print(f"would write {name(path)}, {shown(nbytes)}" if dry else f"wrote {name(path)}")
    if dry:
        print("nothing was written (--dry-run)")


def check_free(paths: Iterable[str], force: bool, sources: Iterable[str] = ()) -> None:
    """Raise an error where a file of these names exists and is none of ``sources``."""
    existing = [path for path in sources if os.path.exists(path)]
    for path in paths:
        if not force and os.path.lexists(path):
            if os.path.exists(path) and any(os.path.samefile(path, other) for other in existing):
                continue
            raise GGUFError(
                f"{path} is there already; it would be replaced and its bytes lost; name another file, or "
                "say that you mean it: --force"
            )
