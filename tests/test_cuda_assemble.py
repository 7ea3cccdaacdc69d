"""Kernels become machine code on a machine without a GPU, and what the assembler says is checked.

Each run assembles the extreme of a family (the most rows and bits, offsets) for one capability, or of
every second family another kernel, by the run's seed, which also draws the families that a run of tools/test
takes; GGMLQ_EVERY_KERNEL=1 assembles all kernels for all of these capabilities (hours).
``tools/assemble.py`` does that for the code that comes with the package, in minutes.
"""

from __future__ import annotations

import inspect
import os
import re
import threading
import time
from dataclasses import is_dataclass
from types import SimpleNamespace

import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test-cuda)")
pytest.importorskip("cuda.core", reason="cuda-core is not installed (extra test-cuda)")

from emulated_gpu import assert_no_doubles
from llvmlite import ir
from scripts import load

from ggmlq.cuda.driver import launch
from ggmlq.cuda.driver.coverage import families
from ggmlq.cuda.driver.launch import Kernel, array
from ggmlq.cuda.intrinsics import bf16x2, hopper, ptx, tensor_cores, wgmma
from ggmlq.cuda.intrinsics.assembly import KINDS
from ggmlq.cuda.intrinsics.language import cuda, float32
from ggmlq.cuda.kernels.epilogue import gates
from ggmlq.cuda.kernels.mma.kernel import TILES
from ggmlq.cuda.ladder.linear import r14_mma_bf16
from ggmlq.cuda.layouts.layout import PackedLayout, layout_of
from ggmlq.formats import FORMATS, BlockFormat

CAPABILITIES = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]
assemble, portable = load("tools", "assemble"), load("tools", "_compile_cuda").portable
EVERY = bool(os.environ.get("GGMLQ_EVERY_KERNEL"))
FAMILIES = families()
BY_LTO = [
    name for name, family in FAMILIES.items() if family.make(*family.cases[0]).lto
]  # test_cuda_scaled_wgmma


def capabilities(kernel):
    """Those that a kernel is assembled for; FP8 through mma.sync is for two GPUs alone."""
    if kernel.exact:
        return [kernel.least]
    listed = [(8, 9), (12, 0)] if kernel.name.startswith("mma_fp8") else CAPABILITIES
    return [capability for capability in listed if assemble.able(kernel, capability)]


def weight_of(case):
    """What makes a kernel of a family demanding: large numbers and shapes, then offsets, then bits."""
    fmt = next((value for value in case if isinstance(value, BlockFormat | PackedLayout)), None)
    flat = []
    for value in case:
        if value is fmt:
            continue
        fields = list(vars(value).values()) if is_dataclass(value) else [value]
        flat += [v for v in fields if isinstance(v, int) and not isinstance(v, bool)]
    return (
        max(flat, default=0),
        *(
            (fmt.has_offset, fmt.bits if isinstance(fmt, PackedLayout) else fmt.bits_per_weight)
            if fmt
            else ()
        ),
    )


def extremes(family):
    """The most demanding kernel that each capability has."""
    found = {}
    for case in sorted(family.cases, key=weight_of)[::-1]:
        kernel = family.make(*case)
        for capability in capabilities(kernel):
            found.setdefault(capability, kernel)
        if len(found) == len(CAPABILITIES) - 1:
            break
    return [(kernel, capability) for capability, kernel in sorted(found.items())]


def picked(family, fresh):
    """Kernels with capabilities: the most demanding one for one of them, or one drawn."""
    cases = sorted(family.cases, key=weight_of)
    if EVERY:
        return [(family.make(*c), a) for c in cases for a in capabilities(family.make(*c))]
    if len(cases) > 1 and fresh.integers(2):
        drawn = family.make(*cases[fresh.integers(len(cases) - 1)])
        able = capabilities(drawn)
        return [(drawn, able[fresh.integers(len(able))])]
    ends = extremes(family)
    return [ends[fresh.integers(len(ends))]]


def most_stack(text, capability, stack):
    """Bytes of stack, and how many are no error.

    Code to be linked calls functions before 9.0, and has a stack for that; a whole program tells the rest.
    """
    if not stack or capability >= assemble.FIRST_WITHOUT:
        return stack, 0
    whole = assemble.stack_of_program(portable(text).encode(), capability)
    return (stack, assemble.CALLS) if whole is None else (whole, assemble.SPILL)


@pytest.mark.slow
@pytest.mark.drawn(len(FAMILIES) if EVERY else 6)
@pytest.mark.parametrize("name", [name for name in FAMILIES if EVERY or name not in BY_LTO])
def test_machine_code(name, fresh):
    for kernel, capability in picked(FAMILIES[name], fresh):
        text = kernel.ptx(capability)
        assert_right_instructions(kernel, text)
        code, used = kernel.assemble(capability, text)
        assert code[:4] == b"\x7fELF", f"{kernel} for {capability}"
        stack, most = most_stack(text, capability, used.stack)
        assert stack <= most, f"{kernel} for {capability} keeps {stack} bytes in memory"
        fit = 65536 // (kernel.threads * kernel.blocks)
        assert used.registers <= fit, f"{kernel} for {capability}: {used.registers} registers"


def assert_right_instructions(kernel, text):
    assert_no_doubles(kernel, text)
    for word, instruction in (("dp4a", "dp4a.s32"), ("registers", "dp4a.s32"), ("mma", "mma.sync")):
        if kernel.name.startswith(word):
            assert instruction in text
    if "griddepcontrol.wait" in text:
        assert kernel.early
        assert re.search(r"\.target sm_(9|1[02])", text), f"{kernel}: earlier GPUs do not know it"
        first = re.search(r"\b(st|red)\.global", text)  # not cp.async….shared.global
        assert text.index("griddepcontrol.wait") < first.start(), f"{kernel} stores before it waits"
    if kernel.name.startswith(("gemv", "mma")):
        assert "cp.async.cg" in text
    if kernel.name.startswith(("gemv ", "mma_bf16")):
        kind = "f16" if "float16" in kernel.name.split(", ") else "bf16"
        assert f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32" in text
    if kernel.name.startswith("warp_specialized"):
        assert "wgmma.mma_async" in text
        assert ".target sm_90a" in text
    if kernel.name.startswith("mma,"):
        assert "ldmatrix" in text
    if kernel.name.startswith("mma_q8"):
        assert "cvt.rn.f32.s32" not in text, f"{kernel}: sums are floats already"


def double(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = x[i] + x[i]


@pytest.mark.slow
def test_gpus_after_hopper_get_its_ptx():
    """What Numba writes for those keeps arrays in memory."""
    kernel = Kernel("double it", double, array(float32, 1), array(float32, 1), threads=32)
    for capability in ((9, 0), (10, 0), (12, 0)):
        assert ".target sm_90\n" in kernel.ptx(capability)
    assert ".target sm_86\n" in kernel.ptx((8, 6))
    tile, layout = TILES[0], layout_of(FORMATS["q4_1"])
    made = r14_mma_bf16.kernel(layout, tile, "bfloat16")
    assert not made.assemble((12, 0))[1].stack


def test_a_gpu_without_bfloat16_rounds_by_integers():
    """A T4 compiles the gate's kernel, which may write bfloat16, as it takes the package's PTX."""
    gater = gates.gater()
    assert "cvt.rn.bf16" not in gater.ptx((7, 5))
    assert gater.assemble((7, 5))[0]


def test_a_gpu_that_is_newer_than_the_linker():
    """It gets PTX of the highest capability that Numba knows, which its driver translates."""
    kernel = Kernel("double it", double, array(float32, 1), array(float32, 1), threads=32)
    code = kernel.code((99, 0))
    assert b".entry kernel" in code
    assert b".target sm_" in code
    exact = Kernel("only once", double, array(float32, 1), array(float32, 1), threads=32, exact=True)
    with pytest.raises(Exception, match="UNRECOGNIZED_ARCH"):
        exact.code((99, 0))


def test_an_error_of_the_linker_is_not_hidden(monkeypatch):
    kernel = Kernel("double it", double, array(float32, 1), array(float32, 1), threads=32)
    monkeypatch.setattr(kernel, "ptx", lambda capability: ".version 8.0\nnonsense")
    with pytest.raises(Exception, match="PTX"):
        kernel.code((9, 0))


def test_threads_load_a_kernel_once(monkeypatch):
    kernel, made = Kernel("double it", double, array(float32, 1), threads=32), []
    start = threading.Barrier(6)

    def make(capability):
        made.append(capability)
        time.sleep(0.05)  # long enough for all to come
        return "function", 0, False

    monkeypatch.setattr(kernel, "_load_code", make)
    monkeypatch.setattr(launch.device, "capability", lambda: (9, 0))
    monkeypatch.setattr(launch.device, "works_aside", lambda: True)
    threads = [threading.Thread(target=lambda: (start.wait(), kernel._load(0))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [(9, 0)]


def test_what_needs_a_warp_is_convergent():
    """LLVM may not move it to where fewer lanes are: seen in the code that Numba hands over."""
    warp = [hopper.wait_for_predecessor, tensor_cores.mma_bf16, tensor_cores.load_matrices, ptx.commit]
    warp += [tensor_cores.integer_mma("s8", "s8")]
    warp += [wgmma.wait, wgmma.publish]
    lane = [ptx.mul, ptx.load16, ptx.dp4a, bf16x2.fma, ptx.take8]
    for wrapper in (*warp, *lane):
        assert ("convergent" in calls(wrapper)) is (wrapper in warp), wrapper


def calls(wrapper):
    """The call that a wrapper emits, as text of LLVM."""
    module = ir.Module()
    texts = []
    emit = wrapper._defn
    signature, lower = emit(None, *[None] * (len(inspect.signature(emit).parameters) - 1))
    kinds = [KINDS[t][1] for t in signature.args]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), "f")
    builder = ir.IRBuilder(function.append_basic_block())
    context = SimpleNamespace(get_dummy_value=lambda: None, make_tuple=lambda *_: None)
    lower(context, builder, signature, function.args)
    texts += [line for line in str(function).splitlines() if "call" in line]
    return "\n".join(texts)
