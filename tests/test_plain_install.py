"""Without numba-cuda and CuPy: the kernels are listed, and what cannot run says what is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

# numba-cuda puts itself in the place of numba.cuda by a finder; without that finder it is not there.
PLAIN = """
import sys
sys.meta_path = [f for f in sys.meta_path if "numba_cuda" not in type(f).__module__]
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("cupy", "numba_cuda"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import numpy as np, ggmlq as gq
"""
MISSING = 'CUDA: numba-cuda is not installed; kernels for a GPU are written in it; pip install "ggmlq[cuda]"'


def said(code):
    return subprocess.run(
        [sys.executable, "-c", PLAIN + code], capture_output=True, text=True, check=True, timeout=400
    ).stdout


def test_all_kernels_are_listed():
    text = said("print(gq.kernels())")
    (here,) = (line for line in text.splitlines() if line.startswith("cuda:wgmma "))
    assert here.split()[1:3] == ["15", "bf16s"]
    assert "Hopper's own tensor instructions" in here
    assert "cpu:panels" in text
    assert f"No cuda kernel can run here. {MISSING}" in text


def test_the_list_is_that_of_a_machine_with_numba_cuda():
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test or cuda)")
    facts = "[(r.name, r.level, r.arithmetic, r.accumulate, r.teaches, r.caution) for r in gq.kernels()]"
    whole = subprocess.run(
        [sys.executable, "-c", f"import ggmlq as gq; print({facts})"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said(f"print({facts})") == whole.stdout


def test_by_device_and_by_format():
    assert MISSING in said("print(gq.kernels(device='cuda'))")
    assert said("print(gq.kernels(format='q4_0', device='cuda'))").startswith("No cuda kernel can run here.")
    text = said("print(gq.kernels(format='q4_0'))")
    assert "auto, M=1" in text
    assert "cuda:" not in text
    assert MISSING in text


def test_what_needs_one_says_so():
    code = """
from ggmlq import doctor, ladder
from ggmlq.problems import Linear
q = gq.quantize(np.ones((2, 32), np.float32), "q4_0")
def refused(call):
    try:
        call()
    except gq.GGMLQError as error:
        print(type(error).__name__, error)
refused(lambda: ladder.choose(Linear(q.format, 1, 2, 32, device="cuda")))
refused(lambda: gq.kernels(device="cuda")[0].launch(None, q, None))
refused(lambda: gq.linear(np.ones(32, np.float32), q, kernel="cuda:dp4a"))
refused(lambda: q.to("cuda"))
print(doctor._gpu()["error"], doctor._auto()["error"])
"""
    chosen, launched, elsewhere, moved, examined = said(code).splitlines()
    assert chosen.startswith(f"MissingDependencyError linear[q4_0, M=1, N=2, K=32, cuda]: {MISSING}")
    assert launched.startswith(f"MissingDependencyError {MISSING}")
    assert "kernel='cuda:dp4a': that is a kernel for cuda arrays, x and q are cpu arrays" in elsewhere
    assert "CuPy cannot be imported" in moved
    assert "CuPy cannot be imported" in examined
