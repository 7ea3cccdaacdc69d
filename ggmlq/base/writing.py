"""Files that appear whole, or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file beside the path and rename it, so that the path has all of it, or what it had before.

    What is no file (a terminal, a pipe) is written to as it is.
    """
    target, data = Path(path).resolve(), content.encode() if isinstance(content, str) else content
    if target.exists() and not target.is_file():
        target.write_bytes(data)
        return
    beside = target.with_name(f".ggmlq-{secrets.token_hex(8)}.part")
    try:
        with open(beside, "xb") as file:
            file.write(data)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)
