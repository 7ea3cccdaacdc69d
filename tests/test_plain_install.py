"""Without numba-cuda: kernels are listed, those of the package are served, others say what is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest
from stale import skip_if_stale

from ggmlq.cuda.driver import served

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
MISSING = "CUDA: CuPy is not installed; arrays on a GPU are CuPy's; pip install \"cupy-cuda"
ELSEWHERE = "\nimport os; os.environ.pop('GGMLQ_COMPILE_HERE', None)"  # which the tests set

# As PLAIN, but CuPy can be found: no product asks for it before there is a GPU.
BESIDE_CUPY = ELSEWHERE + PLAIN.replace('in ("cupy", "numba_cuda")', '== "numba_cuda"').replace(
    "sys.meta_path.insert", """
import importlib.machinery
class Found:
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name == "cupy" else None
    def create_module(self, spec):
        raise ImportError("a stand-in")
    exec_module = create_module
sys.meta_path.append(Found())
sys.meta_path.insert""")  # fmt: skip


def said(code, plain=PLAIN):
    return subprocess.run(
        [sys.executable, "-c", plain + code], capture_output=True, text=True, check=True, timeout=400
    ).stdout


def test_all_kernels_are_listed():
    text = said("print(gq.kernels())")
    (here,) = (line for line in text.splitlines() if line.startswith("cuda:warp_specialized "))
    assert here.split()[1:3] == ["16", "bf16s"]
    assert "Warp-specialised" in here
    assert "cpu:panels" in text
    assert f"No cuda kernel can run here. {MISSING}" in text


def test_by_device_and_by_format():
    assert MISSING in said("print(gq.kernels(device='cuda'))")
    assert said("print(gq.kernels(format='q4_0', device='cuda'))").startswith("No cuda kernel can run here.")
    text = said("print(gq.kernels(format='q4_0'))")
    assert "auto, M=1" in text
    assert "cuda:" not in text
    assert MISSING in text


def test_what_needs_one_says_so():
    code = """
from ggmlq import doctor
from ggmlq.dispatch import ladder
from ggmlq.dispatch.problems import Linear
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


@pytest.mark.slow
def test_beside_cupy_kernels_of_the_package_are_served():
    """All modules of the CUDA side are imported, and what comes with the package is found, without Numba."""
    skip_if_stale(served.STORE)
    code = """
from ggmlq import doctor
from ggmlq.cuda.driver.launch import FAMILIES
facts = doctor._kernels("9.0")
print(facts["served"], facts["all"], *facts["lacking"])
print(*doctor._kernel_lines(facts, {"numba-cuda": None}), sep=" ")
print(len(gq.kernels(device="cuda")), gq.kernels(device="cuda").notes)
from ggmlq.cuda.driver import served
def first(name):
    family = FAMILIES[f"ggmlq.cuda.ladder.linear.{name}.kernel"]
    return family.make(*family.cases[0])
kernel = first("r16_warp_specialized")
code = served.code_of(kernel.origin, (9, 0), True)
print(code and code[:4] == b"\\x7fELF", "numba" in sys.modules)
try:
    first("r3_vectorized").cubin((9, 0))
except gq.GGMLQError as error:
    print(type(error).__name__, error)
"""
    counts, words, listed, taken, refused = said(code, BESIDE_CUPY).splitlines()
    some, every, *lacking = counts.split()
    if int(some) < 1000 or taken.startswith("None"):
        pytest.skip("kernels in packs are stale: tools/prebuild.py compiles them")
    assert int(some) < int(every)
    assert "gru" in lacking
    assert f"{some} of {every} kernels come with the package for compute capability 9.0" in words
    assert "others cannot run, for numba-cuda is not installed; none come with it in ggmlq/cuda of: " in words
    assert listed == "20 []"
    assert taken == "True False"
    assert refused.startswith("MissingDependencyError ggmlq.cuda.ladder.linear.r3_vectorized.kernel(")
    assert "does not come with the package for compute capability 9.0" in refused
    assert 'pip install "cuda-bindings' in refused
    assert "numba-cuda>=0.30" in refused
    assert "cupy" not in refused


@pytest.mark.slow
def test_a_card_that_is_not_here_needs_no_package_for_gpus():
    """Its kernels are listed with all figures; filling the cache names what only a compiler would give."""
    skip_if_stale(served.STORE)
    code = """
from ggmlq.cli import main
from ggmlq.cuda.driver import served
card = "NVIDIA GeForce RTX 4090"
records = gq.kernels("linear", format="q4_K", card=card)
print([(r.name, r.taken, r.packed, 0 < r.floor <= r.estimate) for r in records if r.taken])
loaded = "cupy" in sys.modules, "numba" in sys.modules
print("No cuda" in repr(records), *loaded, len(gq.kernels(device="cuda")))
print(gq.kernels("linear", format="q4_K", device="cuda"))
print(main(["cache", "fill", "q4_K", "--card", card]))
served.is_served = lambda origin, capability, exact: "gemv" not in str(origin)
sys.stderr = sys.stdout
print(main(["cache", "fill", "q4_K", "--card", card]))
"""
    here = ELSEWHERE + PLAIN.replace('"cupy", "numba_cuda"', '"cupy", "cuda", "numba_cuda"')
    lines = said(code, here).splitlines()
    if "20 kernels of the package, 0 on" not in lines[3]:
        pytest.skip("kernels in packs are stale: tools/prebuild.py compiles them")
    taken, facts, listed, filled, status, lacking, *names, error, failed = lines
    assert taken == (
        "[('cuda:gemv', (range(1, 33),), True, True), ('cuda:mma_bf16', (range(33, 129),), True, True), "
        "('cuda:mma_f16', (range(129, 4097),), True, True)]"
    )
    assert facts == "False False False 20"
    assert listed.startswith(f"No cuda kernel can run here. {MISSING}")
    assert (filled, status) == ("NVIDIA GeForce RTX 4090: 20 kernels of the package, 0 on this disk now", "0")
    assert lacking.endswith(": 14 kernels of the package, 0 on this disk now")
    assert names.pop(0) == f"  {len(names)} that would have to be compiled:"
    assert {name.split("(")[0] for name in names} == {"  ggmlq.cuda.ladder.linear.r13_gemv.kernel"}
    assert "6 kernels not compiled: ggmlq.cuda.ladder.linear.r13_gemv.kernel(" in error
    assert 'pip install "cuda-bindings' in error
    assert failed == "2"


@pytest.mark.slow
def test_the_process_that_compiles_says_what_it_lacks():
    """It is asked before it imports what needs numba-cuda."""
    code = """
from ggmlq.cuda.driver import compile_worker as compiler
print(compiler.compiled("ggmlq.cuda.layouts.floats.kernel", (True,), (9, 0)))
"""
    kind, _, words = said(code, BESIDE_CUPY.replace(ELSEWHERE, "")).partition(",")
    assert kind == "('missing'"
    assert "CUDA: numba-cuda is not installed" in words
