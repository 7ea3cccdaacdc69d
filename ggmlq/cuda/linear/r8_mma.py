"""Tensor cores: a warp multiplies 16 × 32 codes with 32 × 8 in one instruction.

Changed: the codes are multiplied again, by ``mma.sync`` on fragments that ldmatrix brings from shared
memory, which cp.async fills a few stages ahead (rings/int_tiles.py). One instruction makes 4096
multiplications; a run of 32 columns is exactly one.

Limited by the steps after it: each int32 sum is converted to float (at half rate), multiplied by
one scale, and by the other while it is added. In registers alone, the bare instruction makes
1170 TFLOP/s on an H200, with these steps behind it 417.
"""

from __future__ import annotations

from typing import Any

from ...arrays.array import QuantArray
from ...dispatch.card import older_than, too_small_for
from ...dispatch.ladder import register
from ...dispatch.problems import Linear
from ...formats import BlockFormat
from ..activations.code_tiles import activations
from ..intrinsics import ptx
from ..intrinsics.atoms import inlined
from ..intrinsics.language import cuda, float32, int32, uint32, uint64
from ..machine.launch import Kernel, family
from ..packed.unpacked import compensate, unpacked_weights
from ..packed.unpacked import refuses as refuses_unpacked
from ..rings.int_tiles import STEP, IntTile, accumulator, storer

START = int32(0)
SHAPE = IntTile(64, 128, 64, 32, stages=4, blocks=2)  # two blocks: one multiplies while the other waits
LEAST = (8, 0)


@inlined
def scaled(dot: Any, x_scale: Any, w_scale: Any, total: Any) -> Any:
    return ptx.fma(ptx.mul(float32(dot), w_scale), x_scale, total)


def tile_kernel(name: str, shape: IntTile, start: Any, scaled: Any) -> Kernel:
    """The kernel with one tile a block."""
    accumulate, store = accumulator(shape, start, scaled), storer(shape)
    rows, columns, count = shape.rows, shape.columns, shape.sums

    def tile(
        x: Any,  # int8 [m_rows, k]
        dx: Any,  # float32 [k / 32, m_rows], in the order of activations.int8.place_of_row
        w: Any,  # int8 [n_rows, k]
        dw: Any,  # float32 [k / 32, n_rows]
        y: Any,  # float32 [m, n]
        m: Any, n: Any, k: Any, m_rows: Any, n_rows: Any,
    ) -> None:  # fmt: skip
        m0, n0 = uint32(cuda.blockIdx.y) * uint32(rows), uint32(cuda.blockIdx.x) * uint32(columns)
        sums = cuda.local.array(count, float32)
        for i in range(count):
            sums[i] = float32(0)
        steps = k // uint32(STEP)
        accumulate(sums, m0, n0, x, dx, w, dw, uint32(0), steps, k, m_rows, n_rows)
        store(sums, y, m0, n0, m, n)

    parameters = (uint64,) * 5 + (uint32,) * 5
    sizes: dict[str, Any] = {"threads": shape.threads, "blocks": shape.blocks, "shared": shape.shared}
    return Kernel(f"{name}, {shape}", tile, *parameters, least=LEAST, **sizes)


@family([(SHAPE,)])
def kernel(shape: IntTile) -> Kernel:
    return tile_kernel("mma", shape, START, scaled)


def refuses(problem: Linear) -> str | None:
    if reason := refuses_unpacked(problem):
        return reason
    assert isinstance(problem.format, BlockFormat)
    if problem.format.group % 32:
        return "takes groups of whole runs of 32, one instruction each"
    return older_than(problem.card, LEAST) or too_small_for(problem.card, SHAPE.shared)


def run(kernel: Kernel, shape: IntTile, x: Any, q: QuantArray, out: Any) -> None:
    """Prepare both operands, launch one block a tile, take off the offsets."""
    w = unpacked_weights(q)
    a = activations(x, w.run, for_mma=True)
    m, n = out.shape
    grid = (-(-n // shape.columns), -(-m // shape.rows))
    sizes = (m, n, w.codes.shape[1], len(a.codes), len(w.codes))
    kernel(grid, (shape.threads,), a.codes, a.scale, w.codes, w.scale, out, *sizes)
    compensate(out, a, w)


@register(__name__, __doc__, arithmetic="q8", accumulate="int32", refuses=refuses)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    run(kernel(SHAPE), SHAPE, x, q, out)
