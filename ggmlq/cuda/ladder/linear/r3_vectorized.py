"""Wide loads: 16 codes with one instruction, straight from global memory.

Changed: no tiles, as in the naive rung. Weights are unpacked (layouts/unpacked.py), laid out once so that
codes lie side by side, and a thread loads 16 of them at a time. Nothing is shared and nothing else is
saved: each byte is still multiplied on its own, so wide loads alone show what they are worth.

Limited by taking words apart: two instructions to get at a byte before it is multiplied.
"""

from __future__ import annotations

from typing import Any

from ....arrays.array import QuantArray
from ....dispatch.ladder import register
from ...driver.launch import Kernel, family
from ...intrinsics import ptx
from ...intrinsics.atoms import inlined
from ...intrinsics.lane import address
from ...intrinsics.language import cuda, float32, int32, uint32, uint64
from ...layouts.unpacked import activations, compensate, refuses, unpacked_weights

SIDE = 16  # of a block of threads

# Who computes what: a thread has one output, and walks along a row of codes of x and one of w; a load brings
# 16 bytes of a row as four words, of which each byte is then taken out and multiplied:
#
#     x[m]   |b b b b|b b b b|b b b b|b b b b|  next 16 …       load16: four words of four codes
#             ×               …             ×
#     w[n]   |b b b b|b b b b|b b b b|b b b b|  next 16 …
#            ----------- one run: dot ---------                 (or two loads, for runs of 32)
#
#     word    b3 b2 b1 b0      << 24, 16, 8, 0 brings a byte to the top, >> 24 back with its sign
#
# Codes are in rows filled up to multiples of 128 bytes, so each load of 16 is aligned and none is checked.


@inlined
def byte_products(a: Any, b: Any) -> Any:
    """The sum of the products of the four signed bytes of two words."""
    total = int32(0)
    # The shift to the right copies the sign; it must be that of a signed word.
    for shift in (24, 16, 8, 0):
        x, y = int32(a << int32(shift)) >> int32(24), int32(b << int32(shift)) >> int32(24)
        total = int32(total + int32(x) * int32(y))
    return total


@inlined
def sixteen_products(a: Any, b: Any) -> Any:
    """The sum of the products of 16 signed bytes at each of two addresses."""
    a0, a1, a2, a3 = ptx.load16(a)
    b0, b1, b2, b3 = ptx.load16(b)
    low = int32(byte_products(a0, b0) + byte_products(a1, b1))
    return int32(low + int32(byte_products(a2, b2) + byte_products(a3, b3)))


@family((run,) for run in (16, 32))
def kernel(run: int) -> Kernel:
    sixteen, load, store = sixteen_products, ptx.load_float, ptx.store_float

    def vectorized(
        x: Any,  # int8 [m_rows, k]
        dx: Any,  # float32 [k / 32, m_rows]
        w: Any,  # int8 [n_rows, k]
        dw: Any,  # float32 [k / run, n_rows]
        y: Any,  # float32 [rows, columns]
        rows: Any, columns: Any, k: Any, m_rows: Any, n_rows: Any,
    ) -> None:  # fmt: skip
        n = uint32(cuda.blockIdx.x * SIDE + cuda.threadIdx.x)
        m = uint32(cuda.blockIdx.y * SIDE + cuda.threadIdx.y)
        if m < rows and n < columns:
            # Addresses are 64 bits wide, sizes 32: the products of row and pitch need more than 32.
            x_at, w_at = address(x, m, k, 0, 1), address(w, n, k, 0, 1)
            total = float32(0)
            for r in range(uint32(k // run)):
                at = uint64(r * run)
                dot = sixteen(x_at + at, w_at + at)
                if run == 32:  # known when the kernel is compiled: no branch is left
                    dot = int32(dot + sixteen(x_at + at + 16, w_at + at + 16))
                # Scales of x are by 32 columns whatever the run, those of w by the run.
                a = load(address(dx, r * run // 32, m_rows, m, 4))
                b = load(address(dw, r, n_rows, n, 4))
                total += a * (b * float32(dot))
            store(address(y, m, columns, n, 4), total)

    parameters = (uint64,) * 5 + (uint32,) * 5
    return Kernel(f"vectorized, runs of {run}", vectorized, *parameters, threads=SIDE * SIDE)


@register(__name__, __doc__, arithmetic="q8", accumulate="int32", refuses=refuses)
def launch(x: Any, q: QuantArray, out: Any) -> None:
    w = unpacked_weights(q)
    a = activations(x, w.run)
    m, n = out.shape
    grid = (-(-n // SIDE), -(-m // SIDE))
    sizes = (m, n, w.codes.shape[1], len(a.codes), len(w.codes))
    kernel(w.run)(grid, (SIDE, SIDE), a.codes, a.scale, w.codes, w.scale, out, *sizes)
    compensate(out, a, w)  # takes the offsets off, for formats that have them
