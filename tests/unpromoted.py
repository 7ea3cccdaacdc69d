"""A product of FP8 whose sums stay in the tensor cores: what cuda:wgmma would be without promotion."""

from __future__ import annotations

import numpy as np

from ggmlq.cuda.codes8.epilogue import writer
from ggmlq.cuda.codes8.schedules import thread_placer
from ggmlq.cuda.codes8.variant import Variant
from ggmlq.cuda.intrinsics import barrier as barriers
from ggmlq.cuda.intrinsics import ptx
from ggmlq.cuda.intrinsics.language import cuda, uint32, uint64
from ggmlq.cuda.intrinsics.wgmma import STEP, unpromoted_products
from ggmlq.cuda.machine import tensor_maps
from ggmlq.cuda.machine.launch import Kernel
from ggmlq.cuda.machine.tensor_maps import Box
from ggmlq.cuda.rings.boxed import BoxTile, SharedLayout, barrier_initializer, box_fetcher

TILE = BoxTile(128, 128, 1)


def made():
    """One tile, x and w [128, K]."""
    variant, layout = Variant(TILE, "e4m3", "e4m3", boxed=False), SharedLayout(TILE, x_scales=False)
    fetch_w, fetch_x = box_fetcher(layout, True), box_fetcher(layout, False)
    place_thread, write, start = thread_placer(variant), writer(variant), barrier_initializer(1, 1)
    zeros, advance, drain = unpromoted_products(variant.form)
    base, wait, first_lane, of_barriers = (
        ptx.shared_base,
        barriers.wait,
        barriers.from_first_lane,
        layout.barriers,
    )

    def product(x, w, y, n, steps):
        thread = uint32(cuda.threadIdx.x)
        warp = first_lane(uint32(thread >> uint32(5)))
        ring = uint32(uint32(base() + uint32(1023)) & uint32(0xFFFFFC00))
        full, nowhere, zero = uint32(ring + uint32(of_barriers)), uint64(0), uint32(0)
        if thread == zero:
            start(full)
        cuda.syncthreads()
        lane, inner, buffer, at, a, b = place_thread(ring, warp)
        totals, step = zeros(), uint32(0)
        while step < steps:
            if thread == zero:
                fetch_w(ring, full, zero, w, nowhere, zero, zero, step, zero)
                fetch_x(ring, full, zero, x, nowhere, zero, zero, step, zero)
            wait(full, uint32(step & uint32(1)))
            totals = drain(advance(totals, a, b))
            step = uint32(step + uint32(1))
            cuda.syncthreads()
        write(totals, (lane, inner, buffer, at), ring, y, zero, zero, n, n, zero)

    kinds = (uint64,) * 3 + (uint32,) * 2
    sizes = {"threads": 256, "shared": layout.shared, "least": (9, 0), "exact": True, "lto": True}
    return Kernel("tma unpromoted", product, *kinds, **sizes)


def product_of(x, w, y):
    """Into float32 [128, 128], of codes [128, K] on the device."""
    k = x.shape[1]
    locate = [tensor_maps.map_address(Box(s.data.ptr, 128, k, k, "uint8", 128, STEP)) for s in (x, w)]
    made()((1,), (256,), *locate, y, np.int64(128).item(), k // STEP)
