"""The seam of compilers: what the environment picks, and what numba-cuda-mlir makes of kernels.

All other tests compile with numba-cuda, so here numba-cuda-mlir alone does, in a process of its own: the
words of kernels are those of one compiler. It gets the smallest case of each family. Of what numba-cuda makes
of the same kernel only the PTX is looked at that comes with the package.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import is_dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import ggmlq as gq
from ggmlq.base import missing
from ggmlq.cuda.intrinsics import compilers
from ggmlq.formats import BlockFormat

ROOT = Path(__file__).parents[1]
HERE = missing.has("numba_cuda")
BOTH = HERE and missing.has("numba_cuda_mlir")
beside_both = pytest.mark.skipif(not BOTH, reason="numba-cuda-mlir is not installed beside numba-cuda")
# Family: the beginning of the error with which its smallest case does not compile. Only ever fewer.
GAPS: dict[str, str] = {}
INSTRUCTIONS = (
    "mma.sync",
    "ldmatrix",
    "cp.async.cg",
    "bar.sync",
    "st.global",
)  # of tensor cores and around them


# --- in the process of numba-cuda-mlir ---------------------------------------------------------


def weight_of(case):
    """A measure of a case: its largest number, then offsets and bits of its format."""
    fmt = next((value for value in case if isinstance(value, BlockFormat)), None)
    others = [value for value in case if value is not fmt]
    fields = [each for value in others for each in (vars(value).values() if is_dataclass(value) else [value])]
    numbers = [each for each in fields if isinstance(each, int) and not isinstance(each, bool)]
    return (max(numbers, default=0), *((fmt.has_offset, fmt.bits_per_weight) if fmt else ()))


def smallest(name):
    """The kernel of a family that takes the least to compile, and the capability to compile it for."""
    from ggmlq.cuda.machine.coverage import families

    family = families()[name]
    kernel = family.make(*min(family.cases, key=weight_of))
    return kernel, kernel.least if kernel.exact else max(kernel.least, (9, 0))


def compiled(name):
    """The error of a family's smallest case; if it compiles, the words of a launch, and those of its code."""
    from ggmlq.cuda.machine import launch

    kernel, capability = smallest(name)
    try:
        text = None if kernel.lto else kernel.ptx(capability)
        kernel.assemble(capability, text)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    words = sum(map(launch._word_count, kernel.parameters))
    return {"words": words, "parameters": words if text is None else parameters(text)}


def parameters(text):
    """The number of parameters of the kernel in PTX."""
    return re.search(r"\.entry \w+\((.*?)\)", text, re.DOTALL)[1].count(".param")


def ptx_of(name, number):
    """The PTX of one case of a family."""
    from ggmlq.cuda.machine.coverage import families

    family = families()[name]
    return family.make(*family.cases[number]).ptx((9, 0))


def small_kernels():
    """The PTX of kernels with one operator each, by name."""
    from ggmlq.cuda.intrinsics import ptx
    from ggmlq.cuda.intrinsics.language import types, uint32
    from ggmlq.cuda.machine.launch import Kernel

    def larger(at, a, b):
        ptx.store4(at, max(a, b))

    def least(at, a, b):
        ptx.store4(at, min(a, b, uint32(7)))

    def unequal(at, a, b):
        ptx.store4(at, uint32(ptx.float_of(a) != ptx.float_of(b)))

    words = types.uint64, types.uint32, types.uint32
    functions = (larger, least, unequal)
    return {f.__name__: Kernel(f.__name__, f, *words, threads=32).ptx((9, 0)) for f in functions}


def patches():
    """The number of branches between which a kernel's epilogue switches, where results become codes."""
    from ggmlq.cuda.machine.coverage import families

    family = families()["ggmlq.cuda.scaled_linear.r9_persistent.kernel"]
    kernel = next(k for case in family.cases if "to e4m3" in (k := family.make(*case)).name)
    return kernel.ptx((9, 0)).count("{.reg .b32 at;")


def target():
    """The target in the PTX of a kernel for Hopper alone."""
    kernel, capability = smallest("ggmlq.cuda.linear.r15_wgmma.kernel")
    return re.search(r"\.target (\w+)", kernel.ptx(capability))[1]


def answer():
    """Answer requests, a line each: the name of a function above, and its arguments."""
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(globals()[name](*arguments)), file=answers, flush=True)


# --- here --------------------------------------------------------------------------------------


def environment(**more):
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    return {**os.environ, "GGMLQ_COMPILE_HERE": "1", "PYTHONPATH": path, **more}


@pytest.fixture(scope="module")
def mlir():
    """The functions above in a process of numba-cuda-mlir."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import test_compilers; test_compilers.answer()"],
        env=environment(GGMLQ_CUDA_COMPILER="mlir"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip

    def call(name, *arguments):
        process.stdin.write(json.dumps([name, *arguments]) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield call
    process.stdin.close()
    process.wait(60)
    process.stdout.close()


def names():
    """All families of kernels, where they can be listed."""
    from ggmlq.cuda.machine.coverage import families

    return list(families())


@beside_both
@pytest.mark.drawn(9)
@pytest.mark.parametrize("name", names() if HERE else ["all families"])
def test_a_family_compiles(name, mlir):
    """Its code takes as many words as a launch passes, or it fails as the list of gaps says."""
    facts = mlir("compiled", name)
    if name in GAPS:
        assert facts.get("error", "it compiles now").startswith(GAPS[name])
    else:
        assert "error" not in facts, facts["error"]
        assert facts["parameters"] == facts["words"]


@beside_both
def test_gaps_are_of_families():
    assert not GAPS.keys() - set(names())


@beside_both
@pytest.mark.parametrize("rung", ["r5_registers", "r14_mma_bf16"])
def test_as_many_products_copies_and_barriers(rung, mlir):
    """As in the PTX that comes with the package, which numba-cuda made."""
    from ggmlq.cuda.machine import served
    from ggmlq.cuda.machine.coverage import families

    name = f"ggmlq.cuda.linear.{rung}.kernel"
    family = families()[name]
    codes = (served.STORE.packaged(family.make(*case).origin, served.PTX) for case in family.cases)
    number, code = next((i, code) for i, code in enumerate(codes) if code is not None)
    old, new = code.decode(), mlir("ptx_of", name, number)
    assert {each: new.count(each) for each in INSTRUCTIONS} == {
        each: old.count(each) for each in INSTRUCTIONS
    }


@beside_both
def test_integers_without_a_sign_and_nan(mlir):
    """numba-cuda-mlir 0.6.0 itself compares the first as if they had one, and says that NaN equals all."""
    texts = mlir("small_kernels")
    assert "max.u32" in texts["larger"]
    assert texts["least"].count("min.u32") == 2
    assert "setp.neu.f32" in texts["unequal"]


@beside_both
def test_a_switch_with_a_branch_a_patch(mlir):
    """Of 16 sums: a thread of a tile of 256 x 128 has 128."""
    assert mlir("patches") == 128 // 16


@beside_both
def test_instructions_of_hopper_alone(mlir):
    assert mlir("target") == "sm_90a"


def test_an_array_as_words():
    """Pointer, shape and strides: of bytes for numba-cuda, of elements for MLIR."""
    array = np.zeros((3, 5), np.float32)
    on_device = SimpleNamespace(
        data=SimpleNamespace(ptr=4096), shape=array.shape, strides=array.strides, size=15, itemsize=4
    )
    words = {c.name: c.array_words(on_device) for c in compilers.COMPILERS.values()}
    assert words == {"numba": (0, 0, 15, 4, 4096, 3, 5, 20, 4), "mlir": (4096, 4096, 0, 3, 5, 5, 1)}
    for compiler in compilers.COMPILERS.values():
        assert len(words[compiler.name]) == compiler.array_head + 2 * array.ndim


@pytest.mark.parametrize(("name", "compiler"), [("", "NUMBA"), ("numba", "NUMBA"), ("mlir", "MLIR")])
def test_what_is_picked(name, compiler, monkeypatch):
    monkeypatch.setenv(compilers.SWITCH, name)
    assert compilers.picked() is getattr(compilers, compiler)


def test_a_name_that_no_compiler_has(monkeypatch):
    monkeypatch.setenv(compilers.SWITCH, "nvcc")
    with pytest.raises(gq.GGMLQError, match=r"GGMLQ_CUDA_COMPILER=nvcc: .*numba \(numba-cuda\) or mlir"):
        compilers.picked()


def test_errors_of_a_process_that_picks_another_one():
    """Where it is not installed; with Numba's simulator; the tool that writes packs; the doctor's line."""
    code = """
        import sys
        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "numba_cuda_mlir":
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        sys.meta_path.insert(0, Absent())
        import os, runpy, ggmlq as gq
        from ggmlq import doctor
        def refused():
            try:
                import ggmlq.cuda.intrinsics.language
            except gq.GGMLQError as error:
                print(type(error).__name__, error)
        refused()
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
        refused()
        print(doctor._compiler())
        try:
            runpy.run_path("tools/prebuild.py")
        except SystemExit as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", re.sub("(?m)^ {8}", "", code)],
        env=environment(GGMLQ_CUDA_COMPILER="mlir"), cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    absent, simulated, line, packs = done.stdout.splitlines()
    assert absent.startswith(
        "MissingDependencyError GGMLQ_CUDA_COMPILER=mlir: numba-cuda-mlir is not installed"
    )
    assert '"numba-cuda-mlir==' in absent
    assert "the extra cuda-mlir" in absent
    assert simulated.startswith("UnsupportedError NUMBA_ENABLE_CUDASIM with GGMLQ_CUDA_COMPILER=mlir")
    assert line.startswith("numba-cuda-mlir ")
    assert packs == "GGMLQ_CUDA_COMPILER=mlir: packs have the code of numba-cuda; leave the variable out"


@beside_both
def test_code_is_kept_by_compiler_and_version():
    """Neither the package's code nor what numba-cuda compiled before is loaded."""
    code = """
        from ggmlq.cuda.machine import served
        from ggmlq.cuda.machine.coverage import families
        family = families()["ggmlq.cuda.linear.r8_mma.kernel"]
        kernel = family.make(*family.cases[0])
        print(served.code_of(kernel.origin, (9, 0), False), served.is_served(kernel.origin, (9, 0), False))
        print(served.STORE.compilers)
    """
    done = subprocess.run(
        [sys.executable, "-c", re.sub("(?m)^ {8}", "", code)],
        env=environment(GGMLQ_CUDA_COMPILER="mlir"), capture_output=True, text=True, check=True,
    )  # fmt: skip
    packaged, key = done.stdout.splitlines()
    assert packaged == "None False"
    assert key.startswith("numba-cuda-mlir 0.")
    assert "llvmlite" not in key
    assert "mlir_builder" in key  # a change of the seam is one of all code


def test_a_deprecation_of_numpy_is_no_error_of_an_import():
    """numba-cuda 0.30 makes a timedelta64 without a unit: NumPy 2.5 warns, and a user may run -W error."""
    if not missing.has("numba_cuda"):
        pytest.skip("numba-cuda is not installed")
    code = """
        import sys, warnings
        class Warns:
            def find_spec(self, name, path=None, target=None):
                if name == "numba.cuda.np.npdatetime_helpers":
                    text = "The 'generic' unit for NumPy timedelta is deprecated, and will raise an error"
                    warnings.warn(text, DeprecationWarning)
                    print("warned")
        sys.meta_path.insert(0, Warns())
        import ggmlq.cuda.intrinsics.numba_cuda
    """
    told = [sys.executable, "-W", "error", "-c", re.sub("(?m)^ {8}", "", code)]
    done = subprocess.run(told, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "warned\n"), done.stderr
