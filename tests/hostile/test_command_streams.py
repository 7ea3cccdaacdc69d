"""The command with closed streams, readers that leave, full disks, and Ctrl-C while it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ggmlq as gq

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == "nt", reason="streams and signals as Unix has them"),
]
ROOT = Path(__file__).parents[2]
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}
COMMAND = [sys.executable, "-m", "ggmlq"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A file of 200 tensors: more output than one buffer holds."""
    path = tmp_path_factory.mktemp("streams") / "model.gguf"
    w = np.random.default_rng(0).standard_normal((8, 256), np.float32)
    gq.save(path, {f"blk.{i}.ffn_up.weight": gq.quantize(w, "q8_0") for i in range(200)})
    return path


def some(model):
    return [["formats", "--json"], ["info", model], ["validate", model]]


@pytest.fixture(scope="module")
def usual(model):
    """What they print, and their status."""
    wrong = [["info", f"{model}.not"]]
    return [(arguments, run(arguments)) for arguments in some(model) + wrong]


def run(arguments, closed="", **streams):
    """The command, some of its streams closed."""
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *COMMAND, *arguments]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.run(shell, env=ENV, text=True, check=False, **streams)


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_no_status(usual, closed, fresh):
    for arguments, before in (usual[i] for i in fresh.choice(len(usual), 2, replace=False)):
        done = run(arguments, closed)
        assert done.returncode == before.returncode, (arguments, done.stderr)
        assert "Traceback" not in done.stderr
        assert ">&-" in closed or done.stdout == before.stdout


def test_nothing_is_written_into_a_file_that_took_a_streams_place(model, tmp_path):
    """With 0, 1 and 2 closed the next files to be opened have these numbers."""
    made = []
    for closed in ("", "<&- >&- 2>&-"):
        made.append(tmp_path / f"{len(closed)}.gguf")
        assert run(["dequantize", model, made[-1]], closed).returncode == 0
    assert made[0].read_bytes() == made[1].read_bytes()


def test_a_reader_that_has_seen_enough(model):
    """As ``ggmlq info F | head -1``: quiet, and no failure."""
    for arguments in [*some(model), ["info", "--help"]]:
        read, write = os.pipe()
        os.close(read)
        done = run(arguments, stdout=write)
        os.close(write)
        assert (done.returncode, done.stderr) == (0, ""), arguments


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_is_one_line(model):
    for arguments in some(model):
        with open("/dev/full", "w") as full:
            done = run(arguments, stdout=full)
        assert done.returncode == 2, arguments
        assert len(done.stderr.splitlines()) == 1
        assert "No space left" in done.stderr


STARTING = """
import os, signal, sys

class At:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPTED_AT"]:
            sys.meta_path.remove(self)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a job in the background
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, At())
"""
EARLY = [
    "ggmlq.errors",
    "numpy",
    "ggmlq.formats.q4_k",
    "ggmlq.arrays.array",
    "argparse",
    "ggmlq.cli",
    "ggmlq.commands.show",
]


@pytest.mark.parametrize("at", EARLY)
def test_an_interrupt_while_the_command_starts_is_one_line(tmp_path, at, fresh):
    """At whichever import it comes, by either way to start it."""
    (tmp_path / "sitecustomize.py").write_text(STARTING)
    env = {**ENV, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "INTERRUPTED_AT": at}
    script = tmp_path / "ggmlq"
    script.write_text("import sys\nfrom ggmlq.cli import main\nsys.exit(main())\n")
    command = COMMAND if fresh.integers(2) else [sys.executable, str(script)]
    done = subprocess.run([*command, "formats"], env=env, capture_output=True, text=True, check=False)
    assert done.stderr in ("ggmlq: interrupted\n", "ggmlq formats: interrupted\n"), at
    assert done.returncode in (-2, 130)


def test_an_interrupt_in_another_program_is_left_alone(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(STARTING)
    env = {**ENV, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "INTERRUPTED_AT": "ggmlq.arrays.array"}
    done = subprocess.run(
        [sys.executable, "-c", "import ggmlq; ggmlq.QuantArray"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.endswith("KeyboardInterrupt\n")
    assert "Traceback" in done.stderr
