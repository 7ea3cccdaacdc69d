"""The kernel of a GRU's input terms by tensor cores, for many steps at once.

It multiplies int8 codes by ``mma`` and makes input terms of the sums (row 1 of ``docs/gru.md``) in registers.
A warp has 16 units of all three gates and 32 rows of x. Operands lie in rows as in tile.py and are loaded
in place; the warps of a block have the same units, so that weights come from the first cache.

Before capability 8.0, and for codes of more than 8 bits, the plain kernel serves.
"""

from __future__ import annotations

from typing import Any

from ...cuda.driver import device
from ...cuda.driver.launch import Kernel, family
from ...cuda.intrinsics import ptx, tensor_cores
from ...cuda.intrinsics.atoms import inlined
from ...cuda.intrinsics.hopper import from_first_lane
from ...cuda.intrinsics.language import cuda, int32, int64, types, uint32, uint64
from .. import step
from .atoms import VALID, RowConstants, add_counts, constants_and_counts, constants_type, step_functions
from .call import DeviceCall, project_plain
from .tile import BYTES, ROWS, UNITS

LEAST = (8, 0)
TILES, WARPS = 4, 4  # tiles of 8 rows of a warp; warps of a block
SUMS = 12 * TILES
AT_ONCE = ROWS * TILES * WARPS


@family()
def kernel() -> Kernel:
    """The kernel; its blocks are numbered by rows of x, within these by units."""
    multiply, finish, begin = multiplier(), term_epilogue(), constants_and_counts(True)
    z_shift, r_shift, g_shift = step.WX_Z, step.WX_R, step.WX_G

    def work(
        W: Any, x: Any, rows_at: Any, biases: Any, p: Any, total: Any, rows: Any, units: Any, padded: Any,
        columns: Any, constants: Any,
    ) -> None:  # fmt: skip
        k, counts = begin(constants)
        lane = uint32(cuda.threadIdx.x) & 31
        warp = from_first_lane(uint32(cuda.threadIdx.x) >> 5)
        g, t = uint32(lane >> 2), uint32(lane & 3)
        groups = uint32(padded // UNITS)
        unit = uint32(uint32(uint32(uint32(cuda.blockIdx.x) % groups) * UNITS) + g)
        row0 = uint32(uint32(uint32(cuda.blockIdx.x) // groups) * AT_ONCE)
        row0 = uint32(row0 + uint32(warp * (ROWS * TILES)))
        d = cuda.local.array(SUMS, int32)
        for i in range(SUMS):
            d[i] = int32(0)
        length = uint64(columns)
        across = uint64(uint32(t << 4))
        multiply(
            d, W + unit * length + across, x + across, length * 8, padded * length,
            uint32(rows - 1), uint32(row0 + g), length,
        )  # fmt: skip
        first_row = uint32(row0 + uint32(t << 1))
        for half in range(2):
            at = uint32(unit + uint32(8 * half))
            finish(d, 0, half, z_shift, rows_at, biases, p, at, first_row, rows, units, padded, k, counts)
            finish(d, 1, half, r_shift, rows_at, biases, p, at, first_row, rows, units, padded, k, counts)
            finish(d, 2, half, g_shift, rows_at, biases, p, at, first_row, rows, units, padded, k, counts)
        add_counts(counts, total)

    parts = *(uint64,) * 5, types.Array(int64, 1, "C"), *(uint32,) * 4, constants_type(True)
    return Kernel("gru what x brings by mma", work, *parts, threads=32 * WARPS, blocks=2, least=LEAST)


def multiplier() -> Any:
    """The device function that adds products to sums [tiles, 3, 4]."""
    mma, load16 = tensor_cores.integer_mma("s8", "s8"), ptx.load16

    @inlined
    def into(d: Any, j: Any, a: Any, b: Any, c: Any, e: Any, v: Any, w: Any) -> None:
        s = mma(a, b, c, e, v, w, d[j], d[j + 1], d[j + 2], d[j + 3])
        d[j], d[j + 1], d[j + 2], d[j + 3] = s[0], s[1], s[2], s[3]

    @inlined
    def multiply(
        d: Any, w: Any, x: Any, below: Any, gate_bytes: Any, last_row: Any, row: Any, columns: Any
    ) -> None:
        at = uint64(0)
        while at < columns:
            a, e = load16(w + at), load16(w + below + at)
            b, f = load16(w + gate_bytes + at), load16(w + gate_bytes + below + at)
            c = load16(w + gate_bytes * 2 + at)
            g = load16(w + gate_bytes * 2 + below + at)
            for tile in range(TILES):
                x_row = uint64(min(uint32(row + uint32(ROWS * tile)), last_row))
                v = load16(x + x_row * columns + at)
                j = 12 * tile
                into(d, j, a[0], e[0], a[1], e[1], v[0], v[1])
                into(d, j + 4, b[0], f[0], b[1], f[1], v[0], v[1])
                into(d, j + 8, c[0], g[0], c[1], g[1], v[0], v[1])
                into(d, j, a[2], e[2], a[3], e[3], v[2], v[3])
                into(d, j + 4, b[2], f[2], b[3], f[3], v[2], v[3])
                into(d, j + 8, c[2], g[2], c[3], g[3], v[2], v[3])
            at = at + BYTES

    return multiply


def term_epilogue() -> Any:
    """The device function from the sums of a gate of a unit to its input terms."""
    load4, store4, input_term = ptx.load4_nc, ptx.store4, step_functions(True).input_term

    @inlined
    def finish(
        d: Any, gate: Any, half: Any, shift: Any, rows_at: Any, biases: Any, p: Any, unit: Any, row0: Any,
        rows: Any, units: Any, padded: Any, k: Any, counts: Any,
    ) -> None:  # fmt: skip
        row_bytes, unit_offset = uint64(padded) * 4, uint64(unit) * 4
        at = rows_at + unit_offset + row_bytes * gate
        constants = RowConstants(
            load4(at), load4(at + row_bytes * 3), load4(at + row_bytes * 6), load4(at + row_bytes * 9),
            load4(at + row_bytes * 12),
        )  # fmt: skip
        bias = load4(biases + unit_offset + row_bytes * gate)
        for tile in range(TILES):
            for column in range(2):
                row = uint32(row0 + uint32(ROWS * tile + column))
                if row < rows:
                    counts[VALID] = int32(unit < units)
                    total = d[12 * tile + 4 * gate + 2 * half + column]
                    value = input_term(total, constants, bias, k, shift, counts)
                    to = row * row_bytes * 3 + row_bytes * gate + unit_offset
                    store4(p + to, uint32(value))

    return finish


def project(work: DeviceCall, first: int, stop: int) -> None:
    """Compute the input terms of these steps by the fastest kernel that takes them."""
    weights, capability, rows = work.weights, device.capability(), (stop - first) * work.rows
    if not weights.narrow or capability is None or capability < LEAST:
        project_plain(work, first, stop)
        return
    grid = -(-rows // AT_ONCE) * (weights.padded // UNITS)
    work.launch(
        kernel(), (grid,), weights.W, work.codes_from(first), weights.wx_constants, weights.biases,
        work.p, work.counts, rows,
        work.units, weights.padded, weights.columns, weights.k,
    )  # fmt: skip
