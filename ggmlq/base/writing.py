"""Files that appear whole, or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from .system import replace


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file beside the path and rename it, so that the path has all of it, or what it had before.

    The folder must be one to write to; a file that was there gives its permissions. What is no file (a
    terminal, a pipe) is written to as it is.
    """
    place, data = Path(path), content.encode() if isinstance(content, str) else content
    before = place.stat() if place.exists() else None
    if before is not None and not place.is_file():
        place.write_bytes(data)
        return
    target = place.resolve()  # of a link
    beside = target.with_name(f".ggmlq-{secrets.token_hex(8)}.part")
    try:
        with open(beside, "xb") as file:
            file.write(data)
        if before is not None:
            os.chmod(beside, stat.S_IMODE(before.st_mode))
        replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)
