"""What kernels keep of a format is derived from its descriptor: proved with two types that nobody has."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from block_cases import BLOCKS, weights
from made_up import FORMATS as MADE_UP
from right import assert_right

import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks
from ggmlq.cpu.atoms import atoms
from ggmlq.cpu.panels.layout import RUN, layout_of
from ggmlq.cuda.kernels.mma.kernel import TILES
from ggmlq.cuda.layouts.layout import layout_of as packed_layout
from ggmlq.dispatch.ladder import rungs
from ggmlq.formats.packing import halves, over, packing, sub_scales

made_up = pytest.mark.parametrize("fmt", MADE_UP.values(), ids=list(MADE_UP))


@pytest.mark.parametrize("fmt", [*BLOCKS, *MADE_UP.values()], ids=lambda fmt: fmt.name)
def test_no_code_is_missing(fmt, fresh):
    facts = packing(fmt)
    raw = fresh.integers(0, 256, (2000, fmt.dtype.itemsize), np.uint8)
    with np.errstate(all="ignore"):
        found = np.unique(fmt.unpack(raw.view(fmt.dtype)[:, 0]).codes)
    assert {*found.tolist()} <= {*facts.codes}
    assert facts.levels == () or len(facts.levels) <= 16


def test_every_type_is_kept_code_by_code():
    """Neighbours that share bits in the file do not here: up to 2.2 times the bytes of such blocks."""
    for fmt in BLOCKS:
        books = fmt.name.startswith(("iq1", "iq2", "iq3"))
        share = layout_of(fmt).panel_bytes(256 // RUN) / (16 * fmt.row_bytes(256))
        assert share <= (2.2 if books else 1.4), fmt.name


def test_integers_stand_under_the_scale_of_a_block(fresh):
    for fmt in BLOCKS:
        if not layout_of(fmt).nested:
            continue
        blocks = random_blocks(fmt, 1, 20, int(fresh.integers(1 << 30)))[0].view(fmt.dtype).reshape(1, -1)
        above = over(fmt, blocks).astype(np.float64)
        parts, ones = fmt.unpack(blocks), blocks.copy()
        for name in halves(fmt):
            ones[name] = 1
        whole = sub_scales(fmt, fmt.unpack(ones).scale, ones).astype(np.float64)
        assert (whole == whole.astype(np.int8)).all(), fmt.name
        assert np.array_equal(whole * above[..., :1] * fmt.scales.unit, parts.scale), fmt.name


@made_up
def test_a_new_type_is_kept_in_its_own_bits(fmt):
    assert layout_of(fmt).panel_bytes(256 // RUN) <= 16 * fmt.row_bytes(256)


@made_up
def test_the_atoms_of_a_new_type_compile(fmt, fresh):
    blocks = random_blocks(fmt, 1, 3, int(fresh.integers(1 << 30)))[0]
    code, scale, _ = atoms(fmt)
    parts = fmt.unpack(blocks)
    for block, codes, scales in zip(
        blocks.view(np.uint8).reshape(3, -1), parts.codes, parts.scale, strict=True
    ):
        assert [code(block, i) for i in range(fmt.block_size)] == codes.tolist()
        assert [scale(block, g) for g in range(len(scales))] == scales.tolist()


@pytest.mark.slow
@pytest.mark.drawn(1, by="fmt")
@made_up
@pytest.mark.parametrize("m", [1, 3, 40])
def test_every_rung_of_the_cpu_takes_a_new_type(fmt, m, fresh):
    q = weights(fmt, 37, 512, int(fresh.integers(1 << 30)))
    x = fresh.standard_normal((m, 512)).astype(np.float32)
    served = set()
    for rung in rungs("linear", "cpu"):
        try:
            y = gq.linear(x, q, kernel=rung.name)
        except gq.errors.UnsupportedError:
            continue
        served.add(rung.name)
        assert_right(y, x, q, rung)
    assert {"cpu:naive", "cpu:tiles", "cpu:panels"} <= served
    assert gq.nmse(x @ q.T, gq.reference.linear(x, q)) < 1e-3


@pytest.mark.slow
@pytest.mark.drawn(1)
@made_up
def test_mma_or_gemv_assembles_for_a_new_type(fmt, fresh):
    names = "r13_gemv", "r14_mma_bf16"
    gemv, mma = (importlib.import_module(f"ggmlq.cuda.ladder.linear.{name}") for name in names)
    several = gemv.kernel(
        packed_layout(fmt), *((1, 2) if fresh.integers(2) else (16, 1)), bool(fresh.integers(2)), 2
    )
    kernel = several if fresh.integers(2) else mma.kernel(packed_layout(fmt), TILES[0], "bfloat16")
    code, needs = kernel.assemble((9, 0))
    assert code
    assert not needs.stack, kernel.name
