"""What ``ggmlq doctor`` says at its end: what to install, by what is there and what the driver knows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ggmlq import doctor, missing

WHOLE = {"jinja2": "3", "matplotlib": "3", "argcomplete": "3", "ml_dtypes": "0.5"}
GPU = {"cupy-cuda13x": "14", "numba-cuda": "0.30"}


def ways(packages, driver=None, cublas=True, libggml=True):
    return [each["install"] for each in missing.advice(WHOLE | packages, driver, cublas, libggml)]


@pytest.mark.parametrize(
    ("packages", "driver", "words"),
    [
        ({}, None, 'a driver, then pip install "ggmlq[cuda]"'),
        ({}, 11080, "a newer driver"),
        ({}, 12040, '"ggmlq[cuda12]"'),
        ({}, 13000, '"ggmlq[cuda]"'),
        ({}, 14010, '"ggmlq[cuda]"'),
        ({"cupy-cuda13x": "14"}, 13000, '"ggmlq[cuda]"'),  # without numba-cuda
        (GPU, 12090, 'pip uninstall cupy-cuda13x, then pip install "ggmlq[cuda12]"'),
        (GPU | {"cupy-cuda12x": "14"}, 13000, "pip uninstall cupy-cuda12x cupy-cuda13x"),
    ],
)
def test_for_a_gpu(packages, driver, words):
    (way,) = ways(packages, driver)
    assert words in way


def test_nothing_where_all_is_there():
    assert ways(GPU, 13000) == []
    assert ways(GPU) == ["a driver"]
    assert ways({"cupy-cuda12x": "14", "numba-cuda": "0.30"}, 13000) == []  # an older one serves as well


def test_cublas_and_libggml():
    (way,) = ways(GPU, 13000, cublas=False)
    assert '"ggmlq[cuda]"' in way
    (way,) = ways(GPU, 13000, libggml=False)
    assert "GGMLQ_LIBGGML" in way


def test_every_extra_that_is_named_exists():
    setup = (Path(__file__).parents[1] / "setup.cfg").read_text()
    known = set(re.findall(r"^(\w+) =$", setup.partition("[options.extras_require]")[2], flags=re.MULTILINE))
    said = " ".join(
        [*ways(dict.fromkeys(WHOLE), 12000, libggml=False), *ways({}, 13000), *missing.EXTRA.values()]
    )
    named = set(re.findall(r"ggmlq\[(\w+)\]", said))
    assert named == {"report", "plot", "completion", "llama", "cuda", "cuda12"}
    assert named <= known


def test_the_doctor_ends_with_it():
    report = doctor.examine()
    report["advice"] = missing.advice(dict.fromkeys(WHOLE), 13000, True, False)
    lines = doctor.describe(report).splitlines()
    assert [line for line in lines[-6:] if " pip install " in line] == lines[-6:]
    assert doctor.describe(report | {"advice": []}).endswith("nothing is missing")


def test_a_driver_is_a_number_or_none():
    found = missing.driver()
    assert found is None or found >= 1000
