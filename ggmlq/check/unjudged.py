"""Why a case has no verdict though its library computed it: an error of ours ends that case, and no run."""

from __future__ import annotations

import traceback
from pathlib import Path

from ..errors import GGMLQError


def reason(error: Exception) -> str:
    """The message of an error; of one that ggmlq does not raise on purpose also its kind and its place."""
    if isinstance(error, GGMLQError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"this machine has too little memory: {error}"
    words = (str(error).strip().splitlines() or [""])[-1]
    frames = [f"{Path(f.filename).name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)]
    return (
        f"an error of ggmlq itself, not of the library: {type(error).__name__}: {words} "
        f"({' '.join(frames[-1:])}); please report it"
    )
