"""Packed weights as a matrix of bfloat16, for cuBLAS: the same bits as decoding the file's bytes, sooner.

A warp takes a fragment at a time and has its codes and scales with a few wide loads, where decoding blocks
of a K type looks single bytes up. Product and difference are rounded one after the other, as ``dequantize``
rounds them.
"""

from __future__ import annotations

from typing import Any

from ...arrays.array import QuantArray
from ...formats import BlockFormat
from ..intrinsics import bf16x2, dependent_launch, ptx
from ..intrinsics.address import address
from ..intrinsics.atoms import inlined
from ..intrinsics.floats import DTYPES, LEAST
from ..intrinsics.lane import g_and_t, opaque_zero, warp_and_lane
from ..intrinsics.language import cuda, float32, uint32, uint64
from ..machine import device, served
from ..machine.launch import Kernel, family
from .codes import buffer_sizes, step_unpacker, word_loader
from .layout import ROWS, STEP, PackedLayout, layout_of, layouts
from .pack import PackedWeights, packed_weights
from .scales import scale_loader

WARPS = 8


def storer(layout: PackedLayout) -> Any:
    """The device function that stores four neighbours of a row: codes times a scale, less an offset."""
    has_offset = layout.has_offset
    mul, sub, narrowed = ptx.mul, ptx.sub, bf16x2.narrowed
    float_of, store_pair = ptx.float_of, ptx.store_pair

    @inlined
    def value(bits: Any, scale: Any, offset: Any) -> Any:
        product = mul(scale, float_of(bits))
        return sub(product, offset) if has_offset else product

    @inlined
    def store(at: Any, first: Any, second: Any, scale: Any, offset: Any) -> None:
        high = uint32(0xFFFF0000)
        a = narrowed(value(first << uint32(16), scale, offset), value(first & high, scale, offset))
        b = narrowed(value(second << uint32(16), scale, offset), value(second & high, scale, offset))
        store_pair(at, float_of(a), float_of(b))

    return store


@family(lambda: ((layout,) for layout in layouts()))
def decoder(layout: PackedLayout) -> Kernel:
    """The kernel that decodes: block (fragment row, eight of its fragments)."""
    fragment_bytes, chunks = layout.fragment_bytes, layout.fragment_bytes // 16
    (words_count, values) = buffer_sizes(layout)
    load_words, load_scales, unpack_step = word_loader(layout), scale_loader(layout), step_unpacker(layout)
    runs, scales, offsets, store = layout.runs, layout.scales, layout.runs * layout.has_offset, storer(layout)
    base, copy16, commit, wait = ptx.shared_base, ptx.copy16, ptx.commit, ptx.wait_for_all_but(0)
    let_successor_start = dependent_launch.let_successor_start
    wait_for_predecessor = dependent_launch.wait_for_predecessor

    def decode(
        fragments: Any,  # uint8 [fragment rows, steps, fragment]
        out: Any,  # bfloat16 [rows, columns]
        rows: Any, columns: Any, steps: Any,
    ) -> None:  # fmt: skip
        (warp, lane), fragment_row = warp_and_lane(), uint32(cuda.blockIdx.x)
        step, warp_at = uint32(cuda.blockIdx.y) * uint32(WARPS) + warp, base() + warp * uint32(fragment_bytes)
        let_successor_start()
        source = address(fragments, fragment_row, steps, step, fragment_bytes)
        for first in range(0, chunks, 32):
            c = lane + uint32(first)
            if step < steps and c < uint32(chunks):
                copy16(warp_at + c * uint32(16), source + uint64(c * uint32(16)))
        commit()
        wait()
        cuda.syncwarp()
        wait_for_predecessor()  # it may still read the memory that is written here
        if step < steps:
            g, t = g_and_t(lane)
            words, codes = cuda.local.array(words_count, uint32), cuda.local.array(4, uint32)
            f = cuda.local.array(values, float32)
            load_words(warp_at, lane, words)
            load_scales(warp_at, lane, f)
            opaque = opaque_zero(steps)
            for s in range(4):
                unpack_step(words, s, codes, opaque)
                column, run = step * uint32(STEP) + uint32(16 * s) + t * uint32(4), s * runs // 4
                for side in range(2):
                    row = fragment_row * uint32(ROWS) + g + uint32(8 * side)
                    if row < rows and column < columns:
                        at = address(out, row, columns, column, 2)
                        i = side * scales + run
                        store(at, codes[side], codes[2 + side], f[i], f[i + offsets])

    parameters = (uint64, uint64, uint32, uint32, uint32)
    sizes: dict[str, Any] = {
        "threads": 32 * WARPS,
        "shared": WARPS * fragment_bytes,
        "least": LEAST["bfloat16"],
    }
    return Kernel(f"packed weights of {layout.name} to bfloat16", decode, *parameters, early=True, **sizes)


def is_to_be_had(fmt: BlockFormat) -> bool:
    """True where the kernel for packed weights of a type comes with the package, or can be compiled.

    That takes the key of the kernel, 0.4 ms: callers remember it.
    """
    kernel, capability = decoder(layout_of(fmt)), device.capability()
    assert kernel.origin is not None
    return capability is not None and served.is_to_be_had(kernel.origin, capability, kernel.exact)


def decoded_rows(q: QuantArray, first: int, last: int) -> Any:
    """Rows of an array that has packed weights as bfloat16, their bits; ``first`` is a multiple of 16."""
    values = device.cupy().empty((last - first, q.shape[1]), DTYPES["bfloat16"])
    decode_packed(packed_weights(q), first, values)
    return values


def decode_packed(w: PackedWeights, first: int, out: Any) -> None:
    """Decode rows of weights from ``first`` on, a multiple of 16, to bfloat16 [rows, K]."""
    rows, columns = out.shape
    fragments, steps = w.fragments[first // ROWS :], w.fragments.shape[1]
    grid = (-(-rows // ROWS), -(-steps // WARPS))
    decoder(w.layout)(grid, (32 * WARPS,), fragments, out, rows, columns, steps)
