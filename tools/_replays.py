"""Builds commits of ggml, and lets ``ggmlq check`` judge the one with a bug and the one without."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from _bugs import Bug

OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON", "-DGGML_BUILD_TESTS=OFF",
    "-DGGML_BUILD_EXAMPLES=OFF",    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON", "-DCMAKE_INSTALL_RPATH=$ORIGIN",
)  # fmt: skip
COMMON = "cmake/common.cmake"  # some commits of March 2025 include it and lack it
BAD = ("wrong", "differs", "failed", "refused", "WRONG", "DIFFERS", "FAILED")
LAST = 12  # lines of a build that failed


class ReplayError(Exception):
    """A step that failed, with its last words."""


@dataclass(frozen=True)
class Builds:
    """Builds of commits out of one history, in a folder of their own that keeps them."""

    history: Path
    cache: Path
    jobs: int = 2
    defines: tuple[str, ...] = ()

    def git(self, *words: str, at: Path | None = None) -> str:
        """The output of git in the history, or in another folder."""
        return self._run(["git", "-C", str(at or self.history), *words]).strip()

    def full(self, commit: str) -> str:
        """The whole name of a commit."""
        return self.git("rev-parse", "--verify", f"{commit}^{{commit}}")

    def day(self, commit: str) -> date:
        """The day on which a commit came into this history."""
        return date.fromisoformat(self.git("log", "-1", "--format=%cs", commit))

    def library(self, commit: str, backend: str, more: tuple[str, ...] = ()) -> Path:
        """The folder with the libraries of a commit, which is built unless it was before."""
        full = self.full(commit)
        defines = [*self.defines, *more]
        name = re.sub(r"[^\w.-]", "_", "-".join([full[:12], backend, *defines]))
        folder = self.cache / "libraries" / name
        if folder.is_dir():
            return folder
        print(f"building {commit} for {backend} in {self.cache}", file=sys.stderr, flush=True)
        source = self._source(full)
        build = self.cache / "builds" / name.partition("-")[2]  # one for all commits: few files change
        options = [f"-D{define}" for define in defines]
        if backend != "cpu":
            options.append(f"-DGGML_{backend.upper()}=ON")
        targets = ["ggml", "ggml-cpu"] + ([] if backend == "cpu" else [f"ggml-{backend}"])
        ninja = ["-G", "Ninja"] if shutil.which("ninja") else []
        self._run(["cmake", *ninja, "-S", str(source), "-B", str(build), *OPTIONS, *launchers(), *options])
        self._run(["nice", "cmake", "--build", str(build), "-j", str(self.jobs), "--target", *targets])
        fresh = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        for path in sorted(build.rglob("*.so*")):
            shutil.copy2(path, fresh / path.name, follow_symlinks=False)
        fresh.rename(folder)
        return folder

    def _source(self, full: str) -> Path:
        """A work tree at a commit; the history itself is only read."""
        source = self.cache / "source"
        if not (source / ".git").exists():
            self.cache.mkdir(parents=True, exist_ok=True)
            shared = ["git", "clone", "-q", "--shared", "--no-checkout", str(self.history), str(source)]
            self._run(shared)
        self.git("checkout", "-q", "-f", full, at=source)
        self.git("clean", "-qfd", at=source)
        lists = source / "src" / "CMakeLists.txt"
        if COMMON in lists.read_text() and not (source / COMMON).exists():
            first = self.git("log", "--all", "--diff-filter=A", "--format=%H", "--", COMMON).split()[-1]
            (source / COMMON).parent.mkdir(exist_ok=True)
            (source / COMMON).write_text(self.git("show", f"{first}:{COMMON}") + "\n")
        return source

    def _run(self, words: Sequence[str]) -> str:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            last = "\n".join((done.stdout + done.stderr).splitlines()[-LAST:])
            raise ReplayError(f"{shlex.join(words)}\n{last}")
        return done.stdout


def launchers() -> list[str]:
    """Options that use ccache, where it is there."""
    if not shutil.which("ccache"):
        return []
    return [f"-DCMAKE_{language}_COMPILER_LAUNCHER=ccache" for language in ("C", "CXX")]


def check(library: Path, options: str) -> list[dict[str, Any]]:
    """The cases of ``ggmlq check`` on a library, as its JSON has them."""
    words = [sys.executable, "-m", "ggmlq", "check", "--lib", str(library), *shlex.split(options), "--json"]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library)}  # its own libraries, whatever RUNPATH says
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    try:
        cases: list[dict[str, Any]] = json.loads(done.stdout)["cases"]
    except ValueError as error:
        raise ReplayError(f"{shlex.join(words)}\n{done.stderr[-600:]}") from error
    return cases


def key(case: dict[str, Any]) -> str:
    """A case in words, the same for the same case of another library."""
    if "op" in case:
        return f"{case['case']} on {case['threads']} threads"
    return re.sub(r" --lib \S+", "", case["again"])


@dataclass(frozen=True)
class Outcome:
    """A bug's two commits as the check sees them."""

    bug: Bug
    days: int | None  # that the bug stood
    wrong: int  # cases that are wrong in the bad commit and right in the good one
    ran: int
    both: int  # cases that are wrong in both, for whatever reason
    new: int  # cases that are wrong in the good commit alone
    faults: tuple[str, ...] = ()
    text: str = ""

    @property
    def right(self) -> bool:
        """True where the bug is found, and the commit that mends it is clean."""
        return self.wrong > 0 and not self.new

    def facts(self) -> dict[str, Any]:
        """The outcome as JSON has it."""
        return {
            "bug": self.bug.name, "says": self.bug.says, "bad": self.bug.bad, "good": self.bug.good,
            "check": self.bug.check, "days": self.days, "wrong": self.wrong, "ran": self.ran,
            "both": self.both, "new": self.new, "faults": list(self.faults), "text": self.text,
            "right": self.right,
        }  # fmt: skip


def replay(bug: Bug, builds: Builds) -> Outcome:
    """Build both commits, check both, and compare the cases that are wrong."""
    bad, good = (check(builds.library(c, bug.backend, bug.defines), bug.check) for c in (bug.bad, bug.good))
    days = (builds.day(bug.good) - builds.day(bug.since)).days if bug.since else None
    return compare(bug, bad, good, days)


def compare(bug: Bug, bad: list[dict[str, Any]], good: list[dict[str, Any]], days: int | None) -> Outcome:
    """The outcome from the cases of both commits."""
    wrong = {key(case): case for case in bad if case["verdict"] in BAD}
    still = {key(case) for case in good if case["verdict"] in BAD}
    mended = [case for name, case in wrong.items() if name not in still]
    new = [name for name in still - wrong.keys() if not name.startswith(bug.live)]
    faults = Counter(
        case["fault"] or case["verdict"] for case in mended if case["fault"] or case["verdict"] != "wrong"
    )
    text = next((case["text"] for case in mended if case["text"]), "") or ""
    ran = sum(case["verdict"] not in ("not run", "not judged", "NOT RUN") for case in bad)
    names = tuple(name for name, _ in faults.most_common())
    return Outcome(bug, days, len(mended), ran, len(wrong) - len(mended), len(new), names, text)
