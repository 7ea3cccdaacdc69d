"""The table of docs/install.md: versions that pip takes today for each extra, alone and beside torch.

Each row is a dry run of pip (``pip install --dry-run --ignore-installed --report``) for the packages of an
extra as setup.cfg names them: nothing is installed. Some take minutes. For another Python than that which
runs this, its wheels are taken but markers are read as for this one.
"""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from ggmlq.base import missing

from . import Options, Texts, table

SHOWN = {
    "NumPy": ("numpy",), "Numba": ("numba",), "CuPy": ("cupy-cuda13x", "cupy-cuda12x"),
    "numba-cuda": ("numba-cuda",), "cuBLAS": ("nvidia-cublas", "nvidia-cublas-cu12"), "torch": ("torch",),
}  # fmt: skip


class Case(NamedTuple):
    """One thing that somebody installs."""

    title: str
    extra: str = ""
    beside: tuple[str, ...] = ()
    python: str = ""  # another one than that which runs this


CASES = [
    Case("ggmlq alone"),
    Case("ggmlq alone", python="3.11"),
    Case("ggmlq alone", python="3.14"),
    *(
        Case(f"`[{extra}]`", extra, python=python)
        for extra in ("cuda", "cuda-compile", "cuda12", "cuda12-compile")
        for python in ("", "3.14")
    ),
    *(
        Case(f"`[{extra}]` and torch", extra, ("torch",))
        for extra in ("cuda", "cuda-compile", "cuda12", "cuda12-compile")
    ),
    Case("`[dev]`", "dev"),
]


def texts(options: Options) -> Texts:
    """A row a case, and the day."""
    rows = [row(case, resolved(case)) for case in tqdm(CASES, desc="pip", unit="dry run")]
    day = f"As of {datetime.date.today():%d %B %Y}, on {platform.system()}, {platform.machine()}."
    yield "docs/install.md", f"{table(['asked for', 'Python', *SHOWN], rows)}\n\n{day}"


def resolved(case: Case) -> dict[str, str]:
    """Versions by name that pip would install, or {"error": …} where it knows none."""
    core, extra = missing.requirements(), missing.requirements(case.extra) if case.extra else []
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), "--disable-pip-version-check"]
        if case.python:
            command += ["--python-version", case.python, "--only-binary=:all:", "--target", folder]
        done = subprocess.run(
            [*command, *core, *extra, *case.beside], capture_output=True, text=True, check=False
        )
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return {"error": errors[-1] if errors else "pip failed"}
        installed = json.loads(report.read_text())["install"]
    return {package["metadata"]["name"].lower(): package["metadata"]["version"] for package in installed}


def row(case: Case, versions: dict[str, str]) -> list[str]:
    """A line of the table."""
    python = case.python or ".".join(platform.python_version_tuple()[:2])
    if "error" in versions:
        return [case.title, python, versions["error"], *[""] * (len(SHOWN) - 1)]
    cells = [" and ".join(versions[name] for name in names if name in versions) for names in SHOWN.values()]
    if cells[-1] and "nvidia-cudnn-cu12" in versions:
        cells[-1] += ", for CUDA 12"
    elif cells[-1]:
        cells[-1] += ", for CUDA 13"
    return [case.title, python, *cells]
