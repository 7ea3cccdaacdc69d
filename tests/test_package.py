"""The wheel and the source distribution: what a user gets from pip."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

import ggmlq

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(wheel_file):
    return zipfile.ZipFile(wheel_file)


@pytest.mark.slow
def test_every_module_and_its_data_are_in(wheel):
    packed = {name for name in wheel.namelist() if name.startswith("ggmlq/")}
    here = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "ggmlq").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == here
    assert {"ggmlq/py.typed", "ggmlq/formats/_grids.npz", "ggmlq/cpu/linear/r2_dequant.py"} <= packed


@pytest.mark.slow
def test_nothing_else_is_in(wheel):
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {"ggmlq", f"ggmlq-{ggmlq.__version__}.dist-info"}


@pytest.mark.slow
def test_metadata(wheel):
    info = f"ggmlq-{ggmlq.__version__}.dist-info"
    facts = message_from_string(wheel.read(f"{info}/METADATA").decode())
    assert facts["Version"] == ggmlq.__version__
    assert facts["License-Expression"] == "MIT" or facts["License"] == "MIT"
    core = sorted(need.split(">")[0] for need in facts.get_all("Requires-Dist") if "extra ==" not in need)
    assert core == ["numba", "numpy", "tqdm"], "core dependencies stay few"
    extras = {
        "bfloat16", "cuda", "cuda-compile", "cuda12", "cuda12-compile", "nccl", "nccl12", "torch", "llama",
        "dask", "mpi", "remote", "report", "plot", "completion",
        "bench", "dev", "docs", "hosts", "lint", "test", "test-cuda",
    }  # fmt: skip
    assert extras == set(facts.get_all("Provides-Extra"))
    assert "ggmlq = ggmlq.cli:main" in wheel.read(f"{info}/entry_points.txt").decode()


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_ladder_is_a_benchmark_of_the_wheel(wheel, tmp_path):
    """Run twice, the second time beside the first: ordered names, groups by shape, columns of figures."""
    wheel.extractall(tmp_path)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--pyargs",
               "ggmlq.testing.ladder_bench", "-k", "q4_0 and M1- and (tiles or panels)", "--benchmark-enable",
               "--benchmark-sort=name", "--benchmark-max-time=0.01", "--benchmark-columns=min"]  # fmt: skip
    outputs = []
    for more in ("--benchmark-save=first", "--benchmark-compare"):
        done = subprocess.run(
            [*command, more],
            cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
        outputs.append(done.stdout)
    first, second = outputs
    assert "'q4_0 M=1 N=4096 K=4096 on cpu: names, GFLOP/s, GB/s, of the roof': 2 tests" in first
    steps = re.findall(r"^(\d\d_\w+) +([\d.]+) +([\d.]+) +(\d+)%", first, re.MULTILINE)
    assert [step[0] for step in steps] == ["04_tiles", "06_panels"]
    operations, nbytes = 2 * 4096**2, 4096 * 4096 // 32 * 18 + 4 * 8192
    for _, rate, speed, _ in steps:
        assert float(rate) / float(speed) == pytest.approx(operations / nbytes, rel=0.02)
    runs = re.findall(r"^(\d\d_\w+) .*\((NOW|0001_first)\)", second, re.MULTILINE)
    assert sorted(runs) == [
        (step, run) for step in ("04_tiles", "06_panels") for run in ("0001_first", "NOW")
    ]
    assert [step for step, _ in runs] == sorted(step for step, _ in runs)


@pytest.mark.slow
def test_the_page_on_an_index_leads_nowhere_wrong(wheel):
    """Nothing there is relative to this tree, which an index does not have."""
    page = wheel.read(f"ggmlq-{ggmlq.__version__}.dist-info/METADATA").decode().partition("\n\n")[2]
    assert page.startswith("# ggmlq")
    assert len(page) > 2000
    assert not re.findall(r"\]\((?!https?:)|<img|<picture", page)


@pytest.fixture(scope="module")
def unpacked(distribution, tmp_path_factory):
    """The source distribution, unpacked."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(distribution("sdist")) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.iterdir())


@pytest.mark.slow
def test_the_source_distribution_is_the_whole_tree(unpacked):
    made = ("egg-info", "PKG-INFO", "__pycache__", "_cache", "build", "dist", "demo.gguf")  # by tools/demo
    kept = {path.relative_to(ROOT).as_posix() for path in files_of(ROOT)}
    packed = {path.relative_to(unpacked).as_posix() for path in files_of(unpacked)}
    missing = {name for name in kept - packed if not any(word in name for word in made)}
    assert not missing - {".gitignore", ".gitattributes"}


def files_of(folder):
    """Files of a tree, as far as they belong to it."""
    for name in (".ci", ".github", "bench", "dask", "docs", "mpi", "ggmlq", "tests", "tools"):
        yield from (path for path in (folder / name).rglob("*") if path.is_file() and path.suffix != ".pyc")
    yield from (path for path in folder.iterdir() if path.is_file() and path.name != ".git")


@pytest.mark.slow
def test_its_tests_run_on_their_own(unpacked):
    """A few run, after all of some folders and files were imported."""
    files = ["test_catalogue.py", "test_errors.py", "test_metrics.py", "test_encode.py", "test_diagnose.py"]
    files = [*(f"tests/{name}" for name in files), "tests/llama", "bench/bench_gguf.py"]
    env = {**os.environ, "PYTHONPATH": str(unpacked)}
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *files]
    command += ["-k", "test_catalogue or test_errors or test_metrics or bench_gguf"]
    done = subprocess.run(command, cwd=unpacked, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.slow
def test_it_claims_what_was_tried(wheel):
    """Pythons that the test of the plain wheel knows and that were at hand; Linux."""
    facts = message_from_string(wheel.read(f"ggmlq-{ggmlq.__version__}.dist-info/METADATA").decode())
    claimed = {
        line for line in facts.get_all("Classifier") if re.search(r"Python :: 3\.|Operating System", line)
    }
    pythons = {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)}
    assert claimed == pythons | {"Operating System :: POSIX :: Linux"}
    assert "Python 3.11 to 3.13" in facts.get_payload()


@pytest.mark.slow
def test_it_is_small(wheel_file):
    """12 MB, 0.3 for the tiles of y @ q, and 0.1 for eleven families of models and the doctor of ports."""
    assert wheel_file.stat().st_size < 12.4e6
