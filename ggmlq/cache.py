"""Where compiled code is kept between processes: one place for the CPU's and the GPU's.

``GGMLQ_CACHE_DIR`` moves it; ``GGMLQ_CACHE_DIR=off`` does without.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def root() -> Path | None:
    """The place for folders of compiled code, None where it is switched off."""
    said = os.environ.get("GGMLQ_CACHE_DIR", "")
    if said.lower() in ("off", "0", "none"):
        return None
    if said:
        return Path(said).expanduser().absolute()
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "ggmlq"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "ggmlq" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "ggmlq"
