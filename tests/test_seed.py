"""A run has one seed, which it prints, and which repeats it: also where several processes share the tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import os, pytest
@pytest.mark.parametrize("i", range(6))
def test_one(request, fresh, i):
    print("drew", request.config.option.seed, i, fresh.integers(1 << 60), "in", os.getpid())
"""


def drawn(folder, *options):
    """The seed that a run said, and what its tests drew."""
    alone = ("-rP", "-p", "no:cacheprovider", "-c", os.devnull)  # none of this tree's settings
    command = [sys.executable, "-m", "pytest", *alone, *options, folder]
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    found = {(seed, i, number) for seed, i, number in re.findall(r"drew (\d+) (\d+) (\d+)", said)}
    assert len(found) == 6
    (seed,) = {seed for seed, _, _ in found}
    assert f"fresh data of this run: --seed {seed}" in said
    return seed, found


def test_one_seed_in_all_processes(tmp_path):
    pytest.importorskip("xdist", reason="pytest-xdist is not installed (extra test)")
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_it.py").write_text(TESTS)
    seed, found = drawn(tmp_path, "-n", "2")
    assert drawn(tmp_path, "--seed", seed) == (seed, found)
    assert drawn(tmp_path)[0] != seed
