"""A bar of the tests that are done, and CPU seconds of each file: two plugins that conftest.py registers.

``pytest -q`` shows the bar in place of dots: one line that changes on a terminal, elsewhere a line every half
minute. Any run ends with the files that took most; ``--costs FILE`` writes seconds of every test.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

EVERY = 30.0  # seconds between lines where nothing can be drawn over
REDRAWN = 0.2  # seconds between states of the line on a terminal
SLOWEST = 10  # files at the end
COLLECTING = "imports and collecting"
CACHE = "ggmlq/costs"  # CPU seconds a test, by file: what the next run weighs its tests with


def cpu_seconds() -> float:
    """CPU seconds of this process and of those that it started and that ended."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def file_of(nodeid: str) -> str:
    """The file of a test, as it stands in its id."""
    return nodeid.partition("::")[0]


class Costs:
    """CPU seconds of each test: of those that this process runs, and of those that pytest-xdist's run."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.seconds: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        """Whatever came before the first test."""
        result = yield
        self.seconds[COLLECTING] += cpu_seconds()
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """A test with its fixtures, those of a module or a session among them where it is the first."""
        begun = cpu_seconds()
        result = yield
        self.seconds[item.nodeid] += cpu_seconds() - begun
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand over what this process measured."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["costs"] = dict(self.seconds)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error) -> None:
        """Take over the seconds of a process of pytest-xdist."""
        self.seconds.update(getattr(node, "workeroutput", {}).get("costs", {}))

    def by_file(self) -> Counter[str]:
        """CPU seconds of each file."""
        total: Counter[str] = Counter()
        for nodeid, seconds in self.seconds.items():
            total[file_of(nodeid)] += seconds
        return total

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The files that took most, and a table of all tests where it is wanted."""
        files, tests = self.by_file(), Counter(file_of(nodeid) for nodeid in self.seconds)
        if not len(files) > 1 or self.config.option.collectonly:
            return
        if cache := getattr(self.config, "cache", None):
            shares = {name: files[name] / tests[name] for name in files}
            cache.set(CACHE, cache.get(CACHE, {}) | shares)
        if self.config.option.costs:
            Path(self.config.option.costs).write_text(json.dumps(self.seconds, indent=0))
        terminalreporter.section(f"CPU: {files.total():.0f} s, files that took most")
        for name, seconds in files.most_common(SLOWEST):
            terminalreporter.write_line(f"{seconds:7.1f} s  {name}")


class Meter:
    """A bar of the tests that are done and of the time left, in place of a letter for each test."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.begun = self.shown = time.monotonic()
        self.counts: Counter[str] = Counter()
        self.weights: dict[str, float] = {}
        self.usual = 1.0
        self.files: Counter[str] = Counter()  # tests that are to run, by file
        self.done: Counter[str] = Counter()
        self.writer = config.get_terminal_writer()
        self.drawn = self.writer.hasmarkup  # over itself, again and again
        self.line = ""

    def begin(self, ids: list[str]) -> None:
        """These tests will run."""
        self.files = Counter(map(file_of, ids))
        cache = getattr(self.config, "cache", None)  # pytest's own, which can be switched off
        costs = cache.get(CACHE, {}) if cache else {}
        self.weights = {name: max(costs[name], 1e-3) for name in self.files if name in costs}
        if self.weights:
            self.usual = sum(self.weights.values()) / len(self.weights)
        self.begun = time.monotonic()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:  # with pytest-xdist they are elsewhere
            self.begin([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node, ids) -> None:
        if not self.files:
            self.begin(ids)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_report_teststatus(self, report) -> Iterator[None]:
        """The outcome as always, without its letter."""
        category, _, word = yield
        return category, "", word

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count it; failures are told at once, by name."""
        hook = self.config.hook.pytest_report_teststatus
        category, _, word = hook(report=report, config=self.config)
        if not word:  # of a fixture that went well
            return
        self.counts[category] += 1
        if category in ("failed", "error"):
            self.write(f"{category}: {report.nodeid}")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.done[file_of(nodeid)] += 1
        now = time.monotonic()
        if self.done.total() < self.files.total() and now - self.shown >= (REDRAWN if self.drawn else EVERY):
            self.shown = now
            self.show()

    def share(self) -> float:
        """The part of the work that is done, each test as heavy as tests of its file were the last time."""
        weight = lambda tests: sum(n * self.weights.get(name, self.usual) for name, n in tests.items())
        return min(weight(self.done) / max(weight(self.files), 1e-9), 1.0)

    def state(self) -> str:
        """The line: how much, how many, how long, how long still."""
        share, elapsed = self.share(), time.monotonic() - self.begun
        ended = self.counts.total()
        others = [f", {n} {name}" for name, n in sorted(self.counts.items()) if name != "passed"]
        counts = f"{ended}/{self.files.total()}: {self.counts['passed']} passed{''.join(others)}"
        if "failed" not in self.counts:
            counts += ", 0 failed"
        left = f"about {clock(elapsed / share - elapsed)} left" if share else "no guess yet"
        return f"{share:4.0%}  {counts}  {clock(elapsed)}, {left}"

    def show(self) -> None:
        line = self.state()
        if not self.drawn:
            self.write(line)
            return
        cells = max(min(self.writer.fullwidth - len(line) - 4, 30), 0)
        filled = round(self.share() * cells)
        self.line = f"{line}  {'█' * filled}{'·' * (cells - filled)}"[: self.writer.fullwidth - 1]
        self.writer.write(f"\r\033[K{self.line}", flush=True)

    def write(self, line: str) -> None:
        """A line that stays, above the one that changes."""
        self.writer.write(f"\r\033[K{line}\n{self.line}" if self.line else f"{line}\n", flush=True)

    def pytest_sessionfinish(self) -> None:
        self.line = ""
        self.writer.write(f"\r\033[K{self.state()}\n" if self.drawn else f"{self.state()}\n", flush=True)


def clock(seconds: float) -> str:
    """Minutes and seconds: 4:07."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
