"""The wheel: what a user gets from pip."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

import ggmlq

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this tree, built from a copy so that nothing is left behind in it."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "ggmlq", source / "ggmlq", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q"]
    subprocess.run([*command, "-w", str(folder), str(source)], check=True, capture_output=True, text=True)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def test_every_module_and_its_data_are_in(wheel):
    packed = {name for name in wheel.namelist() if name.startswith("ggmlq/")}
    here = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "ggmlq").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == here
    assert {"ggmlq/py.typed", "ggmlq/formats/_grids.npz", "ggmlq/cpu/linear/r2_dequant.py"} <= packed


def test_nothing_else_is_in(wheel):
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {"ggmlq", f"ggmlq-{ggmlq.__version__}.dist-info"}


def test_metadata(wheel):
    info = f"ggmlq-{ggmlq.__version__}.dist-info"
    facts = message_from_string(wheel.read(f"{info}/METADATA").decode())
    assert facts["Version"] == ggmlq.__version__
    assert facts["License-Expression"] == "MIT" or facts["License"] == "MIT"
    core = sorted(need.split(">")[0] for need in facts.get_all("Requires-Dist") if "extra ==" not in need)
    assert core == ["numba", "numpy", "tqdm"], "core dependencies stay few"
    assert {"cuda", "cuda12", "test", "bench", "plot", "llama"} == set(facts.get_all("Provides-Extra"))
    assert "ggmlq = ggmlq.cli:main" in wheel.read(f"{info}/entry_points.txt").decode()


def test_the_wheel_works_alone(wheel, tmp_path):
    wheel.extractall(tmp_path)
    code = (
        "import numpy as np, ggmlq as gq, sys\n"
        "assert gq.__file__.startswith(sys.argv[1]), gq.__file__\n"
        "q = gq.quantize(np.eye(2, 256, dtype=np.float32), 'q4_0')\n"
        "raw = bytes(gq.formats['iq1_s'].dtype.itemsize)\n"
        "gq.QuantArray.from_bytes(raw, 'iq1_s', 256).dequantize()\n"
        "print((np.eye(2, 256, dtype=np.float32) @ q.T).round().tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "[[1.0, 0.0], [0.0, 1.0]]"
