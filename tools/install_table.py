#!/usr/bin/env python3
"""Write the table of docs/install.md: versions that pip takes today for each extra, alone and beside torch.

    python tools/install_table.py [--print]

Each row is a dry run of pip (``pip install --dry-run --ignore-installed --report``) for the packages of an
extra as setup.cfg names them: nothing is installed. Some take minutes. For another Python than that which
runs this, its wheels are taken but markers are read as for this one.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from _page import put, settle, table
from tqdm import tqdm

from ggmlq.base import missing

PAGE = Path(__file__).parents[1] / "docs" / "install.md"
BEGIN = "<!-- table: tools/install_table.py -->"
SHOWN = {
    "NumPy": ("numpy",), "Numba": ("numba",), "CuPy": ("cupy-cuda13x", "cupy-cuda12x"),
    "numba-cuda": ("numba-cuda",), "cuBLAS": ("nvidia-cublas", "nvidia-cublas-cu12"), "torch": ("torch",),
}  # fmt: skip


class Wish(NamedTuple):
    """One thing that somebody installs."""

    words: str
    extra: str = ""
    beside: tuple[str, ...] = ()
    python: str = ""  # another one than that which runs this


WISHES = [
    Wish("ggmlq alone"),
    Wish("ggmlq alone", python="3.11"),
    Wish("ggmlq alone", python="3.14"),
    *(
        Wish(f"`[{extra}]`", extra, python=python)
        for extra in ("cuda", "cuda-compile", "cuda12", "cuda12-compile")
        for python in ("", "3.14")
    ),
    *(
        Wish(f"`[{extra}]` and torch", extra, ("torch",))
        for extra in ("cuda", "cuda-compile", "cuda12", "cuda12-compile")
    ),
    Wish("`[test]`", "test"),
]


def resolved(wish: Wish) -> dict[str, str]:
    """Versions by name that pip would install, and {"error": …} where it finds none."""
    core, extra = missing.requirements(), missing.requirements(wish.extra) if wish.extra else []
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), "--disable-pip-version-check"]
        if wish.python:
            command += ["--python-version", wish.python, "--only-binary=:all:", "--target", folder]
        done = subprocess.run(
            [*command, *core, *extra, *wish.beside], capture_output=True, text=True, check=False
        )
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return {"error": errors[-1] if errors else "pip failed"}
        installed = json.loads(report.read_text())["install"]
    return {each["metadata"]["name"].lower(): each["metadata"]["version"] for each in installed}


def row(wish: Wish, versions: dict[str, str]) -> list[str]:
    """A line of the table."""
    python = wish.python or ".".join(platform.python_version_tuple()[:2])
    if "error" in versions:
        return [wish.words, python, versions["error"], *[""] * (len(SHOWN) - 1)]
    cells = [" and ".join(versions[name] for name in names if name in versions) for names in SHOWN.values()]
    if cells[-1] and "nvidia-cudnn-cu12" in versions:
        cells[-1] += ", for CUDA 12"
    elif cells[-1]:
        cells[-1] += ", for CUDA 13"
    return [wish.words, python, *cells]


def main() -> int:
    """Run pip and write the table, or print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--print", action="store_true", help="print the table instead of writing the page")
    asked = parser.parse_args()
    rows = [row(wish, resolved(wish)) for wish in tqdm(WISHES, desc="pip", unit="dry run")]
    text = table(["asked for", "Python", *SHOWN], rows)
    text += f"\n\nAs of {datetime.date.today():%d %B %Y}, on {platform.system()}, {platform.machine()}."
    if asked.print:
        print(text)
        return 0
    return settle(PAGE, put(PAGE.read_text(), BEGIN, text), check=False)


if __name__ == "__main__":
    sys.exit(main())
