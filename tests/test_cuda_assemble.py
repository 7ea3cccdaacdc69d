"""Kernels become machine code on a machine without a GPU, and what the assembler says is checked.

Each run assembles a few of each family, others every time; GGMLQ_EVERY_KERNEL=1 assembles all of
them for all capabilities (some minutes).
"""

from __future__ import annotations

import os

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed (extra test or cuda)")
pytest.importorskip("cuda.core", reason="cuda-core is not installed (extra test or cuda)")

from cuda_kernels import families

from ggmlq.cuda import tiles
from ggmlq.cuda.linear import r7_mma, r9_streamk

CAPABILITIES = [(7, 5), (8, 0), (9, 0)]
EVERY = bool(os.environ.get("GGMLQ_EVERY_KERNEL"))
FAMILIES = families()


def some(cases):
    if EVERY:
        return cases
    picked = np.random.default_rng().choice(len(cases), size=1, replace=False)
    return [cases[i] for i in picked]


@pytest.mark.parametrize("name", FAMILIES)
def test_machine_code(name):
    family = FAMILIES[name]
    for case in some(family.cases):
        kernel = family.make(*case)
        able = [capability for capability in CAPABILITIES if capability >= kernel.least]
        for capability in able if EVERY else [able[np.random.default_rng().integers(len(able))]]:
            text = kernel.ptx(capability)
            assert_right_instructions(kernel, text)
            code, used = kernel.assemble(capability, text)
            assert code[:4] == b"\x7fELF", f"{kernel} for {capability}"
            assert used.stack == 0, f"{kernel} for {capability} keeps {used.stack} bytes in memory"
            fit = 65536 // (kernel.threads * kernel.blocks)
            assert used.registers <= fit, f"{kernel} for {capability}: {used.registers} registers"


def assert_right_instructions(kernel, text):
    if "float64" not in kernel.name:
        assert ".f64" not in text, f"{kernel}: doubles are slow on a GPU and round differently"
    for word, instruction in (("dp4a", "dp4a.s32"), ("registers", "dp4a.s32"), ("mma", "mma.sync")):
        if kernel.name.startswith(word):
            assert instruction in text
    if "griddepcontrol.wait" in text:
        assert kernel.early
        assert ".target sm_9" in text, f"{kernel}: earlier GPUs do not know this instruction"
        assert text.index("griddepcontrol.wait") < text.index("st.global"), f"{kernel} stores before it waits"
    if kernel.name.startswith(("gemv", "mma", "streamk", "wgmma")):
        assert "cp.async.cg" in text
    if kernel.name.startswith(("gemv", "mma_bf16")):
        assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in text
    if kernel.name.startswith("wgmma"):
        assert "wgmma.mma_async" in text
        assert ".target sm_90a" in text
    if kernel.name.startswith(("mma,", "mma_magic", "streamk")):
        assert "ldmatrix" in text
        converts = "cvt.rn.f32.s32" in text
        assert converts is kernel.name.startswith("mma,"), f"{kernel}: magic is there to convert nothing"


@pytest.mark.parametrize("shape", [r7_mma.SHAPE, r9_streamk.LOW, tiles.Shape()], ids=str)
def test_a_tile_adds_up(shape):
    assert shape.sums * shape.threads == shape.rows * shape.columns
    assert shape.rows * 8 % shape.threads == 0
    assert shape.shared * shape.blocks <= 227 << 10
    assert shape.parts[-1] + 4 * tiles.RUNS * shape.columns == shape.stage
