"""What ``ggmlq doctor`` says at its end: what to install, by what is there and what the driver knows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ggmlq import doctor
from ggmlq.base import missing

WHOLE = {"jinja2": "3", "matplotlib": "3", "argcomplete": "3", "ml_dtypes": "0.5"}
GPU = {"cupy-cuda13x": "14", "numba-cuda": "0.30"}


def ways(packages, driver=None, cublas=True, libggml=True):
    return [each["install"] for each in missing.advice(WHOLE | packages, driver, cublas, libggml)]


@pytest.mark.parametrize(
    ("packages", "driver", "words"),
    [
        ({}, None, 'a driver, then pip install "cupy-cuda13x>=14"'),
        ({}, 11080, "a newer driver"),
        ({}, 12040, '"nvidia-cublas-cu12'),
        ({}, 13000, '"nvidia-cublas>=13'),
        ({}, 14010, '"cupy-cuda13x'),
        (GPU, 12090, 'pip uninstall cupy-cuda13x, then pip install "cupy-cuda12x'),
        (GPU | {"cupy-cuda12x": "14"}, 13000, "pip uninstall cupy-cuda12x cupy-cuda13x"),
    ],
)
def test_for_a_gpu(packages, driver, words):
    way, *compiler = ways(packages, driver)
    assert words in way
    assert [each.partition("numba-cuda")[1] for each in compiler] == ["numba-cuda"] * len(compiler)


def test_nothing_where_all_is_there():
    assert ways(GPU, 13000) == []
    assert ways(GPU) == ["a driver"]
    assert ways({"cupy-cuda12x": "14", "numba-cuda": "0.30"}, 13000) == []  # an older one serves as well


def test_a_compiler_is_an_extra_of_its_own():
    (way,) = ways({"cupy-cuda13x": "14"}, 13000)
    assert '"numba-cuda>=' in way
    assert '"nvidia-nvvm>=13' in way
    assert "cupy" not in way
    (way,) = ways({"cupy-cuda12x": "14"}, 13000)
    assert '"nvidia-cuda-nvcc-cu12' in way


def test_cublas_and_libggml():
    (way,) = ways(GPU, 13000, cublas=False)
    assert '"nvidia-cublas' in way
    (way,) = ways(GPU, 13000, libggml=False)
    assert "GGMLQ_LIBGGML" in way


def test_extras_are_told_by_the_names_of_their_packages(monkeypatch, tmp_path):
    """From the sources or from what is installed: ``pip install "ggmlq[report]"`` installs a stranger's."""
    installed = ["numpy>=2.0", 'jinja2>=3.1.6; extra == "report"', "cupy; extra == 'cuda'"]
    assert missing.install("report") == 'pip install "jinja2>=3.1.6"'
    assert missing.install("cuda-compile", beside="cuda").startswith('pip install "cuda-bindings')
    monkeypatch.setattr(missing, "SETUP", tmp_path / "setup.cfg")
    monkeypatch.setattr("importlib.metadata.requires", lambda name: installed)
    assert missing.install("report") == 'pip install "jinja2>=3.1.6"'
    assert missing.install("cuda") == "pip install cupy"
    assert missing.install("plot") == "install the packages of its extra plot"


@pytest.mark.parametrize(("driver", "cupy"), [(None, 13), (11040, 12), (12090, 12), (13000, 13), (14000, 13)])
def test_the_extra_for_a_driver(driver, cupy, monkeypatch):
    monkeypatch.setattr(missing, "driver", lambda: driver)
    assert f"cupy-cuda{cupy}x" in missing.install_for_gpu()
    assert "numba-cuda" in missing.install_compiler()


def test_nobody_is_told_to_install_the_name():
    """The project is on no index; whoever took its name there would be installed."""
    tree = Path(__file__).parents[1]
    files = [*tree.glob("*.md"), *tree.glob("docs/*.md"), *tree.glob("ggmlq/**/*.py"), *tree.glob("tools/*")]
    telling = re.compile(r"pip install\W+(-\w+\W+)*ggmlq\b")
    hits = [
        path.name for path in files if path.is_file() and telling.search(path.read_text(errors="replace"))
    ]
    assert set(hits) <= {"missing.py"}  # which says why not


def test_the_doctor_ends_with_it():
    report = doctor.examine()
    report["advice"] = missing.advice(dict.fromkeys(WHOLE), 13000, True, False)
    lines = doctor.describe(report).splitlines()
    assert [line for line in lines[-6:] if " pip install " in line] == lines[-6:]
    assert doctor.describe(report | {"advice": []}).endswith("nothing is missing")


def test_a_driver_is_a_number_or_none():
    found = missing.driver()
    assert found is None or found >= 1000


def test_modules_of_torch_without_torch():
    """An error with the command that installs it, where torch is missing; the package itself does without."""
    code = """if True:
        import sys
        sys.modules["torch"] = None
        import ggmlq as gq
        try:
            import ggmlq.torch
        except gq.errors.MissingDependencyError as error:
            print(error)
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "torch is not installed; pip install" in run.stdout
