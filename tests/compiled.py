"""C libraries for tests, made by the system's compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def library(source: Path, path: Path, *flags: str) -> Path:
    """Compile a source to a shared library; without a C compiler the test is skipped."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for the fake ggml")
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-shared", "-fPIC", "-O1", "-pthread", *flags, "-o", str(path), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the C compiler does not build the fake ggml: {done.stderr[-300:]}")
    return path
