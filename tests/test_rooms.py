"""The plan of the house: its rooms, and that no import runs up or in a circle (tools/rooms.py)."""

from __future__ import annotations

import pytest
from scripts import load
from sources import tree

# Place: the most rooms and arrows that it may have. Two rooms of the house have the names that users write:
# ggmlq.torch and gq.model.
MOST = {"": (41, 293), "ggmlq/cuda": (18, None), "ggmlq/cpu": (18, None)}


@pytest.mark.parametrize("place", MOST, ids=lambda place: place or "house")
def test_rooms_are_few_and_imports_run_down(place):
    plan = tree().plan(place)
    rooms, arrows = MOST[place]
    picture = load("tools", "rooms").table([plan])
    assert not plan.up, picture
    assert not plan.circles, picture
    assert len(plan.rooms) <= rooms, f"{', '.join(plan.rooms)}\n{picture}"
    assert arrows is None or len(plan.arrows) <= arrows, picture


def test_no_files_import_each_other_in_a_circle():
    assert tree().circles == []


@pytest.fixture
def small(tmp_path):
    """A tree of five files: a imports b, b imports c, c imports a in a function; d hands names on."""
    files = {
        "ggmlq/__init__.py": '"""Map."""\nfrom .a import x\n',
        "ggmlq/a.py": "from . import b\n",
        "ggmlq/b/__init__.py": '"""Map.\n\n    c.py  more\n"""\n\nfrom .c import y\n',
        "ggmlq/b/c.py": "def y():\n    from ggmlq.a import x\n",
        "tools/e": "#!/usr/bin/env python3\nimport f\nimport ggmlq.a\n",
        "tools/f.py": "import os\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return load("tools", "rooms").Tree(tmp_path)


def test_what_is_counted(small):
    plan = small.plan("")
    assert plan.rooms == ["a.py", "b", "tools"]
    assert sorted(plan.arrows) == [("a.py", "b"), ("b", "a.py"), ("tools", "a.py")]
    assert plan.up == [("a.py", "b")]
    assert plan.floors == 2
    assert small.circles == [["ggmlq/a.py", "ggmlq/b/__init__.py", "ggmlq/b/c.py"]]
    assert [str(step) for step in plan.arrows["tools", "a.py"]] == ["tools/e:3 -> ggmlq/a.py"]
    assert plan.facts()["up"][0]["imports"]
    assert small.plan("ggmlq/b").rooms == ["c.py"]
