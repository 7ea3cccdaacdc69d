"""A run has one seed, which it prints, and which repeats it and what it draws: also where several processes
share the tests. It ends with CPU seconds by file.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TESTS = """
import os, pytest
@pytest.mark.parametrize("i", range(6))
def test_one(request, fresh, i):
    print("drew", request.config.option.seed, i, fresh.integers(1 << 60), "in", os.getpid())

@pytest.mark.drawn(2, by="letter")
@pytest.mark.parametrize("letter", "abcdefgh")
@pytest.mark.parametrize("number", [1, 2])
def test_some(letter, number):
    print("took", letter, number)
"""

CONFTEST = ("conftest.py", "meter.py", "drawing.py", "not_run.py")


def drawn(folder, *options):
    """The seed that a run said, and what its tests drew."""
    alone = ("-rP", "-p", "no:cacheprovider", "-c", os.devnull)  # none of this tree's settings
    alone += ("-o", "console_output_style=classic", "--draw", "5")  # but this one, and what is tried
    command = [sys.executable, "-m", "pytest", *alone, *options, folder]
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    found = {(seed, i, number) for seed, i, number in re.findall(r"drew (\d+) (\d+) (\d+)", said)}
    assert len(found) == 6
    (seed,) = {seed for seed, _, _ in found}
    assert f"fresh data of this run: --seed {seed}" in said
    taken = re.findall(r"took (\w) (\d)", said)
    letters = sorted({letter for letter, _ in taken})
    assert len(taken) == 4
    assert len(letters) == 2
    named = re.search(r"(\d+) tests did not run: cases of test_it.py::test_some .*; it drew (.*)", said)
    assert named.groups() == ("12", ", ".join(letters))
    assert re.search(r"CPU: \d+ s, files that took most.*\n +\d+\.\d s  ", said)
    bar = re.search(r"^100%  10/10: 10 passed, 0 failed  \d+:\d\d, about 0:00 left$", said, re.MULTILINE)
    assert bool(bar) is ("-q" in options)
    return seed, found | {*taken}


FAST = """
[pytest]
addopts = -m "not slow"
testpaths = .
markers =
    slow: slow
    drawn(n): drawn
"""
CASES = """
import pytest
@pytest.mark.slow
@pytest.mark.parametrize("i", range(2))
def test_slow(i): pass

@pytest.mark.drawn(3)
@pytest.mark.parametrize("i", range(8))
def test_some(i): pass
"""


RUNS = {  # options: how many cases run
    (): 3,
    ("--slow",): 5,
    ("--all",): 10,
    ("-m", "slow"): 2,
    ("test_it.py",): 8,
    ("--draw", "5"): 3,
}
RUN_EACH = """
import sys, pytest
for options in %r:
    print("with", *options, flush=True)
    pytest.main(["-p", "no:cacheprovider", *options])
    for name in ("test_it", "conftest"):
        sys.modules.pop(name, None)
"""


def test_the_fast_set_and_more(tmp_path):
    """All folders: drawn cases, and slow ones with --slow; chosen tests: all that are not slow."""
    for name in CONFTEST:
        shutil.copy(Path(__file__).with_name(name), tmp_path)
    (tmp_path / "test_it.py").write_text(CASES)
    (tmp_path / "pytest.ini").write_text(FAST)
    command = [sys.executable, "-c", RUN_EACH % [*RUNS]]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    parts = re.split(r"^with.*\n", said, flags=re.MULTILINE)[1:]
    for (options, count), part in zip(RUNS.items(), parts, strict=True):
        assert re.search(r"(\d+) passed", part)[1] == str(count), (options, part)
        slow = "2 tests did not run: marked slow; --slow runs them, and benchmarks" in part
        assert slow is (count in (3, 8)), (options, part)


def test_one_seed_in_all_processes(tmp_path):
    pytest.importorskip("xdist", reason="pytest-xdist is not installed (extra test)")
    for name in CONFTEST:
        shutil.copy(Path(__file__).with_name(name), tmp_path)
    (tmp_path / "test_it.py").write_text(TESTS)
    seed, found = drawn(tmp_path, "-q", "-n", "2")
    assert drawn(tmp_path, "--seed", seed) == (seed, found)
    assert drawn(tmp_path)[0] != seed
