"""tools/replay_bugs: its table, what it calls found and clean, and sources of commits that lack a file.

The bugs themselves are replayed by hand, for their builds take minutes: GGMLQ_HISTORY=FOLDER names a folder
with ggml's history, GGMLQ_REPLAYS=FOLDER the one for builds, and GGMLQ_REPLAY_DEFINES options of CMake.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import ROOT, load

from ggmlq.cli import command_line as command_parser

pytestmark = pytest.mark.slow

sys.path.insert(0, str(ROOT / "tools"))  # the tool's own modules
bugs, replays = load("tools", "_bugs"), load("tools", "_replays")
HISTORY = os.environ.get("GGMLQ_HISTORY")
BUG = bugs.Bug("one", "a mistake", "aaaa", "bbbb", "--ops ADD", live=("ADD(b",))


def case(name, verdict, fault="node-rows", **more):
    """A case as ggmlq check prints it."""
    return {
        "op": "ADD",
        "case": name,
        "threads": 2,
        "verdict": verdict,
        "fault": fault,
        "text": "words",
        **more,
    }


def test_the_table():
    named = [bug.name for bug in bugs.BUGS]
    assert len(set(named)) == len(named)
    here = [bug for bug in bugs.BUGS if bug.backend == "cpu"]
    assert len(here) >= 10
    assert len({word for bug in here for word in bug.says.split() if word.isupper() and len(word) > 2}) >= 6
    for bug in bugs.BUGS:
        assert bug.bad != bug.good
        command_parser().parse_args(["check", *bug.check.split()])


def test_a_bug_is_found_where_cases_are_mended():
    bad = [case("ADD(a)", "wrong"), case("ADD(b)", "wrong"), case("ADD(c)", "ok", None)]
    good = [case("ADD(a)", "ok", None), case("ADD(b)", "wrong"), case("ADD(c)", "ok", None)]
    outcome = replays.compare(BUG, bad, good, 7)
    assert (outcome.right, outcome.wrong, outcome.ran, outcome.both, outcome.new) == (True, 1, 3, 1, 0)
    assert outcome.faults == ("node-rows",)
    assert outcome.facts()["days"] == 7


def test_a_good_commit_is_clean_but_for_what_is_known():
    bad = [case("ADD(a)", "wrong"), case("ADD(b)", "ok", None), case("ADD(c)", "ok", None)]
    known = [case("ADD(a)", "ok", None), case("ADD(b)", "wrong"), case("ADD(c)", "ok", None)]
    fresh = [case("ADD(a)", "ok", None), case("ADD(b)", "ok", None), case("ADD(c)", "failed", "crash")]
    assert replays.compare(BUG, bad, known, None).right
    assert not replays.compare(BUG, bad, fresh, None).right
    assert not replays.compare(BUG, known[:1], known[:1], None).right  # nothing is wrong


def test_products_are_told_apart_without_their_library():
    one = {"again": "--types q4_0 --shapes 1x2x32 --lib /a/b --threads 2", "threads": 2}
    assert replays.key(one) == replays.key({**one, "again": one["again"].replace("/a/b", "/c")})
    assert replays.key(one) != replays.key({**one, "again": one["again"].replace("1x2", "3x2")})


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_source_is_that_of_its_commit(tmp_path):
    """A commit that includes a file which it lacks gets that of the commit which brought it."""
    history = tmp_path / "history"
    (history / "src").mkdir(parents=True)

    def git(*words):
        names = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(history), *names, *words], check=True, capture_output=True)

    def commit(text):
        (history / "src" / "CMakeLists.txt").write_text(text)
        git("add", ".")
        git("commit", "-m", "a commit")

    git("init", "-q")
    commit('include("../cmake/common.cmake")')
    (history / "cmake").mkdir()
    (history / "cmake" / "common.cmake").write_text("# common")
    commit("# later")
    builds = replays.Builds(history, tmp_path / "cache")
    source = builds._source(builds.full("HEAD^"))
    assert "include" in (source / "src" / "CMakeLists.txt").read_text()
    assert (source / "cmake" / "common.cmake").read_text() == "# common\n"
    assert builds._source(builds.full("HEAD")).joinpath("src", "CMakeLists.txt").read_text() == "# later"
    with pytest.raises(replays.ReplayError, match="no-such"):
        builds.full("no-such")


def test_the_command():
    tool = [sys.executable, str(ROOT / "tools" / "replay_bugs")]
    done = subprocess.run([*tool, "--list"], capture_output=True, text=True, check=True)
    assert "scale-bias" in done.stdout
    assert "cuda" not in done.stdout
    done = subprocess.run([*tool, ".", "no-such"], capture_output=True, text=True, check=False)
    assert done.returncode
    assert "no bug of the table" in done.stderr


@pytest.mark.skipif(HISTORY is None, reason="bugs are replayed by hand: GGMLQ_HISTORY names ggml's history")
@pytest.mark.parametrize("bug", [bug for bug in bugs.BUGS if bug.backend == "cpu"], ids=lambda bug: bug.name)
def test_replay(bug, tmp_path):
    cache = Path(os.environ.get("GGMLQ_REPLAYS", tmp_path))
    defines = tuple(os.environ.get("GGMLQ_REPLAY_DEFINES", "").split())
    outcome = replays.replay(bug, replays.Builds(Path(HISTORY), cache, 2, defines))
    assert outcome.wrong, "the bad commit is not found"
    assert not outcome.new, "the good commit is not clean"
