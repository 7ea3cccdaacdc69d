"""Tensors of 2**57 rows without an element: nothing counts through them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ggmlq as gq
from ggmlq import cli

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))
import gguf_bytes as gb  # noqa: E402

SHAPES = [[0, 2**57], [0], [0, 5], [64, 0], [0, 2**28, 2**29], [32, 2**40, 0, 2], [32, 0, 2**30]]
SECONDS = 400  # beyond any machine's; a loop over the rows would take years


def write(path, ne, kind):
    b = gb.Builder()
    path.write_bytes(b.file([], [b.info("w.weight", ne, kind, 0)]))
    return str(path)


@pytest.fixture
def command(capsys):
    """Status, output and errors of a command; a traceback would be raised here."""

    def command(*args):
        status = cli.main(list(map(str, args)))
        return status, *capsys.readouterr()

    return command


@pytest.mark.parametrize("ne", SHAPES, ids=str)
@pytest.mark.parametrize("kinds", [(gb.F32, gb.F32), (gb.F32, gb.Q8_0), (gb.Q4_0, gb.F16)], ids=str)
def test_every_command(tmp_path, command, ne, kinds):
    a, b = (write(tmp_path / f"{i}.gguf", ne, kind) for i, kind in enumerate(kinds))
    same = kinds[0] == kinds[1]
    assert command("diff", a, b)[0] == (0 if same else 1)
    assert command("diff", a, b, "--tolerance", "1e-9")[0] == 0
    assert command("info", a)[0] == 0
    assert command("show", a, "w.weight")[0] == 0
    rows = command("show", a, "w.weight", "--rows", "0:4")
    assert rows[0] == 0 or rows[2].startswith("ggmlq show: --rows ")
    assert command("validate", a)[0] == 0
    assert command("copy", a, tmp_path / "copy.gguf")[0] == 0
    for name, *args in (("dequantize",), ("quantize", "--type", "q8_0", "--allow-requantize")):
        status, _, errors = command(name, a, tmp_path / f"{name}.gguf", *args)
        assert status == 0 or "counts more than 64 bits hold" in errors  # blocks are larger than floats
    assert gq.open(a)["w.weight"].dequantize().shape == tuple(reversed(ne))


def test_importance_of_experts_that_have_no_element(tmp_path):
    path = write(tmp_path / "m.gguf", [0, 8, 2**50], gb.F32)
    matrix = {"w.weight": np.ones(0, np.float32)}
    gq.convert.quantize(path, tmp_path / "o.gguf", "q4_K", imatrix=matrix)


def test_many_short_rows_and_one_long_row_cost_what_their_bytes_cost(tmp_path):
    """2**19 matrices of one element, and a row of 2**26 in a sparse file, in little memory."""
    b = gb.Builder()
    for i in range(2):
        path = tmp_path / f"{i}.gguf"
        infos = [b.info("many", [1, 1, 2**19], gb.F32, 0), b.info("long", [2**26], gb.F32, 2**21)]
        path.write_bytes(b.file([], infos))
        with path.open("r+b") as file:
            file.truncate(file.seek(0, 2) + 2**21 + 2**28)
            file.seek(-4 - i, 2)
            file.write(b"\1")
    program = (
        "import resource, sys; import ggmlq.cli\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"  # with two maps of 256 MiB
        "sys.exit(ggmlq.cli.main(sys.argv[1:]))"
    )
    args = [sys.executable, "-c", program, "diff", str(tmp_path / "0.gguf"), str(tmp_path / "1.gguf")]
    run = subprocess.run(args, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert run.returncode == 1, run.stderr
    assert "2 tensors: 1 with the same bytes, 1 different" in run.stdout
