"""Fixtures, and a summary that names what did not run and why."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from ggmlq.errors import GGMLQError
from ggmlq.llama.library import Library

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def libggml() -> Library:
    """The libggml of this machine; tests that ask for it are skipped where there is none."""
    try:
        return Library()
    except GGMLQError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def cupy():
    """CuPy with a GPU; tests that ask for it are skipped where there is none."""
    from ggmlq.cuda import device

    try:
        return device.cupy()
    except GGMLQError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def golden():
    """Ggml's own outputs: ``golden("q4_K")`` is a dict of arrays."""
    loaded: dict[str, dict[str, np.ndarray]] = {}

    def load(name: str) -> dict[str, np.ndarray]:
        if name not in loaded:
            with np.load(GOLDEN / f"{name.lower()}.npz") as arrays:
                loaded[name] = dict(arrays)
        return loaded[name]

    return load


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each reason why something did not run: green is never mistaken for whole."""
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        place = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[place.removeprefix("Skipped: ")] += 1
    terminalreporter.section("not run")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} tests did not run: {reason}")
    if not reasons:
        terminalreporter.write_line("nothing: every test ran")
