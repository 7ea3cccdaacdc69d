"""Facts about the machine that every result of a benchmark carries. No paths of the machine."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from .. import doctor

FACTS = ("python", "packages", "gpu")  # of the report of ``ggmlq doctor``


def commit() -> str:
    """The commit that is measured; empty outside a checkout."""
    command = ["git", "describe", "--always", "--dirty"]
    root = Path(__file__).parents[2]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout.strip()


def machine() -> dict[str, Any]:
    """The CPU, the GPU and the versions."""
    facts = doctor.examine()
    cpu = {name: facts["cpu"][name] for name in ("name", "threads", "dot")}
    return {"cpu": cpu, **{name: facts[name] for name in FACTS}}
