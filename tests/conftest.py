"""Fixtures, and a summary that names what did not run and why."""

from __future__ import annotations

import gc
import os
import secrets
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

# Before NumPy is imported: threads of its OpenBLAS wait in loops, half of the CPU time of many tests, and
# processes of pytest-xdist share the cores anyway.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import drawing
import not_run
import numpy as np
import pytest
from meter import Costs, Meter, cpu_seconds

from ggmlq.cpu.amx import permission
from ggmlq.dispatch import ladder
from ggmlq.errors import GGMLQError
from ggmlq.llama.library import Library

# The garbage collector need not look often: rewriting asserts and compiling make millions of objects, and
# looking at them was a quarter of collecting and a tenth of a run.
gc.set_threshold(100_000, 50, 20)
if find_spec(
    "numba_cuda"
):  # before kernels are imported: tests watch Numba; without it their words are blanks
    os.environ.setdefault("GGMLQ_COMPILE_HERE", "1")
DRAWS = pytest.StashKey[dict[str, drawing.Draw]]()
GOLDEN = Path(__file__).parent / "golden"
WORKERS = 4
LONG, WHOLE, SHORT = 30, 0.5, 0.25  # times as long, with --long; with slow cases; in the fast set


def pytest_addoption(parser: pytest.Parser) -> None:
    """Tests on fresh random data: repeat a run with its seed, or let them search for longer."""
    group = parser.getgroup("ggmlq")
    group.addoption("--seed", type=int, help="the seed that a run printed, to repeat it")
    group.addoption(
        "--draw",
        type=int,
        metavar="N",
        help="cases of N block formats, some of tests marked drawn and a third of slow tests, by the seed; "
        f"a run of all folders draws {drawing.FORMATS_OF_A_RUN}, one of chosen tests takes all",
    )
    group.addoption(
        "--slow", action="store_true", help="slow cases too; a run of all folders takes a third of them"
    )
    group.addoption("--all", action="store_true", help="every case: slow ones, and all that are drawn")
    group.addoption("--long", action="store_true", help=f"search {LONG} times as long in hostile tests")
    group.addoption("--costs", metavar="FILE", help="write CPU seconds of every test there, as JSON")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Processes where -n is not given: one a core, of two gigabytes each; this one alone for a file."""
    (path, *others) = config.args or ("",)
    measures = getattr(config.option, "benchmark_enable", False)
    alone = not others and Path(path.partition("::")[0]).is_file()
    return 0 if measures or alone else min(os.cpu_count() or 1, WORKERS)


class Few:
    """A plugin of the fast set: of modules that are no tests, only those that have examples are imported."""

    def __init__(self, whole: bool) -> None:
        self.whole = whole

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out modules without an example, and benchmarks in a run of all folders."""
        name = collection_path.name
        if (
            not name.endswith(".py")
            or name.startswith("test_")
            or (name.startswith("bench_") and not self.whole)
        ):
            return None
        return None if ">>>" in collection_path.read_text(encoding="utf-8") else True


@pytest.hookimpl(trylast=True)  # the terminal is there
def pytest_configure(config: pytest.Config) -> None:
    """One fresh seed a run, the same in all of its processes; a bar for whoever wants few words."""
    option = config.option
    if hasattr(config, "workerinput"):
        option.seed, option.draw, option.markexpr = config.workerinput["drawing"]
    else:
        option.seed = secrets.randbelow(10**9) if option.seed is None else option.seed
        drawing.settle(config)
    if option.markexpr == drawing.FAST:
        config.pluginmanager.register(Few(option.draw is not None), "few modules")
    config.pluginmanager.register(Costs(config), "costs")
    if option.verbose < 0 and not (hasattr(config, "workerinput") or option.collectonly):
        config.pluginmanager.register(Meter(config), "meter")


def pytest_collection(session: pytest.Session) -> None:
    """Each process of a run of all folders first imports its share of the modules: it rewrites their asserts.

    That takes 17 s of CPU, and processes that went over all modules side by side would each do all of it.
    """
    config = session.config
    if hasattr(config, "workerinput") and config.option.draw is not None:
        number = int(config.workerinput["workerid"].removeprefix("gw"))
        modules = sorted(path.stem for path in Path(__file__).parent.glob("test_*.py"))
        for name in modules[number :: config.workerinput["workercount"]]:
            with suppress(Exception, pytest.skip.Exception):  # collecting says it
                import_module(name)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out slow cases and those that were not drawn; the summary counts them."""
    config.stash[DRAWS] = drawing.leave_out(config, items)


def pytest_collection_finish() -> None:
    """All is imported, and stays: the garbage collector need not look at it, for half a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def drawn_formats(request: pytest.FixtureRequest) -> set[str]:
    """Names of the block formats of this run, for tests that go over formats themselves."""
    return drawing.formats(request.config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:
    """What pytest-xdist calls for each process: it does not hand over options that were set later."""
    option = node.config.option
    node.workerinput["drawing"] = option.seed, option.draw, option.markexpr


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error) -> None:
    """Take over the draws of a process of pytest-xdist; all draw alike."""
    draws = getattr(node, "workeroutput", {}).get("draws", {})
    node.config.stash[DRAWS] = {name: drawing.Draw(*draw) for name, draw in draws.items()}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that sums up."""
    if hasattr(session.config, "workeroutput"):
        draws = session.config.stash.get(DRAWS, {})
        session.config.workeroutput["draws"] = {name: tuple(draw) for name, draw in draws.items()}


def pytest_report_header(config: pytest.Config) -> str:
    """What repeats this run."""
    return f"fresh data: --seed {config.option.seed}"


@pytest.fixture
def matrix_unit(monkeypatch: pytest.MonkeyPatch):
    """``matrix_unit(granted)``: kernels are chosen as where Intel's matrix unit may be used, or may not."""

    def grant(granted: bool) -> None:
        monkeypatch.setattr(permission, "refused", lambda: None if granted else "no such unit")
        ladder.forget_choices()

    yield grant
    ladder.forget_choices()


@pytest.fixture
def fresh(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that are new in each run and each test; a failure shows how to repeat them."""
    seed = request.config.option.seed
    request.node.add_report_section("setup", "fresh data", f"--seed {seed}")
    return np.random.default_rng([seed, zlib.crc32(request.node.nodeid.encode())])


@pytest.fixture
def rounds(request: pytest.FixtureRequest):
    """``for i in rounds(seconds)``: again and again for so long; ``LONG`` times that with ``--long``.

    Else ``WHOLE`` times that, and where no slow cases run ``SHORT`` times. Seconds of CPU or of a clock,
    whichever are over first: some start processes and threads, some sleep.
    """
    option = request.config.option

    def count(seconds: float) -> Iterator[int]:
        seconds *= LONG if option.long else WHOLE if option.slow or option.all else SHORT
        cpu, clock, i = cpu_seconds() + seconds, time.monotonic() + seconds, 0
        while not i or (cpu_seconds() < cpu and time.monotonic() < clock):
            yield i
            i += 1

    return count


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
    from ggmlq.cuda.driver import device

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


@pytest.fixture(scope="session")
def distribution(tmp_path_factory):
    """``distribution("wheel")`` or ``"sdist"``: the file, built from a copy of this tree."""
    source, made = tmp_path_factory.mktemp("source") / "tree", tmp_path_factory.mktemp("made")
    passing = (
        "__pycache__", "*.egg-info", "build", "dist", ".git", ".venv", ".*_cache", ".hypothesis", ".whl",
    )  # fmt: skip

    def build(kind: str) -> Path:
        if not source.exists():
            shutil.copytree(Path(__file__).parents[1], source, ignore=shutil.ignore_patterns(*passing))
        code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(made)!r}))"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=source, check=True, capture_output=True, text=True
        )
        return made / done.stdout.splitlines()[-1]

    return build


@pytest.fixture(scope="session")
def wheel_file(distribution):
    """The wheel of this tree."""
    return distribution("wheel")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What did not run and why, in some lines: green is never mistaken for whole."""
    if terminalreporter.config.option.collectonly:
        return
    terminalreporter.section("not run")
    for line in not_run.summary(terminalreporter, terminalreporter.config.stash.get(DRAWS, {})):
        terminalreporter.write_line(line)
    terminalreporter.write_line(f"fresh data of this run: --seed {terminalreporter.config.option.seed}")
