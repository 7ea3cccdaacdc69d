"""Imports run down and never in a circle (tools/_rooms.py), and tools/house reports the rest."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import cache

import pytest
from scripts import load

from ggmlq.base import hooks

rooms = load("tools", "_rooms")

# Imports by name that run up: number of lines by pair of rooms. The front tells type checkers that there is
# ``gq.torch``, the one room that is written with the front's own names.
UP_BY_NAME = {("__init__.py", "torch"): 1}


MAP = '''"""What is here.

    c.py  more
    q/    some
"""

'''


@cache
def tree():
    """All files of the repository but tests."""
    return rooms.Tree()


@pytest.mark.parametrize("place", rooms.PLACES, ids=lambda place: place or "house")
def test_imports_run_down(place):
    plan = tree().plan(place)
    assert not plan.up, {arrow: [*map(str, plan.arrows[arrow])] for arrow in plan.up}
    more = {
        arrow: [*map(str, steps)]
        for arrow, steps in plan.up_by_name.items()
        if place or len(steps) > UP_BY_NAME.get(arrow, 0)
    }
    assert not more, "an import by name runs up: let the lower room call a hook (ggmlq/base/hooks.py)"


def hooks_of(files):
    """The purposes of all hooks that files make."""
    for syntax in files:
        for node in ast.walk(syntax):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Hook":
                yield from (each.value for each in node.args if isinstance(each, ast.Constant))


def test_every_hook_is_served_and_every_place_serves_one():
    syntax = {file: tree().syntax[file] for file in tree().syntax if file.startswith("ggmlq/")}
    assert sorted(hooks_of(syntax.values())) == sorted(hooks._SERVED)
    for purpose, place in hooks._SERVED.items():
        room, _, function = place.partition(":")
        body = syntax[tree().modules[f"ggmlq.{room}"]].body
        names = {node.name for node in body if isinstance(node, ast.FunctionDef)}
        assert not function or function in names, purpose


@pytest.mark.parametrize(
    "first", ["ggmlq.gguf", "ggmlq.arrays.prepared", "ggmlq.cuda.driver.coverage", "ggmlq.llama"]
)
def test_hooks_are_served_whatever_is_imported_first(first):
    code = (
        f"import {first}, sys\n"
        "from ggmlq.base.devices import cuda_device\n"
        "from ggmlq.gguf.opened import _equivalent_names\n"
        "print('cupy' in sys.modules, cuda_device().__name__, *_equivalent_names('model.norm.weight'))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert answer == "False ggmlq.cuda.driver.device output_norm.weight\n"


def test_no_files_import_each_other_in_a_circle():
    assert tree().circles == []


@pytest.fixture
def small(tmp_path):
    """A tree of a few files: a imports b, b imports c, c imports a in a function; d imports a by name."""
    files = {
        "ggmlq/__init__.py": '"""Map."""\nfrom .a import x\n',
        "ggmlq/a.py": "from . import b\nimport ggmlq.d\n",
        "ggmlq/b/__init__.py": f"{MAP}from .c import y\n",
        "ggmlq/b/q/__init__.py": "",
        "ggmlq/b/c.py": "def y():\n    from ggmlq.a import x\n",
        "ggmlq/d.py": "from importlib import import_module\nfound = import_module('.a', __package__)\n"
        "served_by({'more': 'b.c:y'})\n",
        "tools/e": "#!/usr/bin/env python3\nimport f\nimport ggmlq.a\n",
        "tools/f.py": "import os\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return rooms.Tree(tmp_path)


def test_what_is_counted(small):
    plan = small.plan("")
    assert plan.rooms == ["a.py", "b", "d.py", "tools"]
    assert sorted(plan.arrows) == [("a.py", "b"), ("a.py", "d.py"), ("b", "a.py"), ("tools", "a.py")]
    assert plan.up == [("a.py", "b")]
    assert plan.floors == 3
    assert small.circles == [["ggmlq/a.py", "ggmlq/b/__init__.py", "ggmlq/b/c.py"]]
    assert [str(step) for step in plan.arrows["tools", "a.py"]] == ["tools/e:3 -> ggmlq/a.py"]
    assert [*map(str, plan.up_by_name["d.py", "a.py"])] == ["ggmlq/d.py:2 -> ggmlq/a.py"]
    assert [*map(str, plan.by_name["d.py", "b"])] == ["ggmlq/d.py:3 -> ggmlq/b/c.py"]
    assert plan.facts()["up"][0]["imports"]
    assert small.plan("ggmlq/b").rooms == ["c.py", "q"]


def test_taste_is_a_report(small, monkeypatch, capsys):
    """Words, maps and lines of the small tree; the whole one as JSON."""
    house = load("tools", "house")
    words = house.words(small)
    assert [str(place) for place in words["docstrings that do not name the thing first"]] == [
        "ggmlq/b/__init__.py:1  What is here."
    ]
    assert [place.text for place in words["names that do not say what they hold"]] == ["found"]
    (small.root / "ggmlq" / "b" / "z.txt").touch()
    report = house.maps(small)
    assert [place.text for place in report["files that the map of their folder leaves out"]] == ["z.txt"]
    assert house.lines(small)["b"] == {
        "files": 3, "lines": 9, "imports": 2, "docstrings and comments": 4, "code": 1, "blank": 2
    }  # fmt: skip
    monkeypatch.setattr(house, "Tree", tree)
    monkeypatch.setattr(sys, "argv", ["tools/house", "rooms", "lengths", "--place", "ggmlq/gguf", "--json"])
    house.main()
    facts = json.loads(capsys.readouterr().out)
    assert facts["rooms"][0]["place"] == "ggmlq/gguf"
    assert len(facts["lengths"]) == 2
