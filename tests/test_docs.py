"""README and docs: their examples run, their generated tables are fresh, their files exist."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_run(page):
    """All Python examples of a page, in order, in one session."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, page.name, str(page), 0)
    said: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    runner.run(test, out=said.append)
    assert not runner.failures, "".join(said)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_exist(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#:]+)[^)]*\)", text):
        assert (page.parent / target).exists(), target
    for path in re.findall(r"`((?:ggmlq|tests|tools|docs|bench)/[\w./]+)`", text):
        assert (ROOT / path).exists(), path


TOOLS = ["format_table", "arithmetic_table", "fault_table", "format_speed_table", "cpu_table", "engine_table"]


@pytest.mark.parametrize("tool", TOOLS)
def test_generated_tables_are_fresh(tool):
    words = ["page"] * (tool == "engine_table")
    command = [sys.executable, str(ROOT / "tools" / f"{tool}.py"), *words, "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_counts_right():
    """Claims with numbers follow the code."""
    from test_decode import IN_GGUF_PY
    from test_encode import ENCODED
    from test_reference import ON_CPU, ON_CUDA

    from ggmlq.testing.rows import KINDS

    text = (ROOT / "README.md").read_text()
    assert f"gguf-py on random bytes, {len(IN_GGUF_PY)} types" in text
    assert f"{len(ENCODED)} types encode byte for byte" in text
    assert f"on {len(KINDS)} kinds of rows" in text
    assert f"{len(ON_CPU)} types multiply as llama.cpp does on a CPU, {len(ON_CUDA)} on CUDA" in text
