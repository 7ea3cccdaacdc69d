"""``gq.quantize`` on the GPU: encoders that write the CPU's bytes, in encoders.py.

decode.py is ``dequantize`` on the GPU, and ``take``; rows.py is ``put``; rope_append.py appends keys and
values to a KV cache, with RoPE on the way; _block.py has parts of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from ....arrays.array import QuantArray
from ....formats import Format
from ...driver.device import cupy
from ...driver.launch import Kernel
from ...layouts.floats import aligned_floats
from ._block import LANES, RUN, THREADS


@cache
def encoder(fmt: Format) -> Callable[[], Kernel] | None:
    """The maker of the kernel that encodes a format; None where there is none."""
    from . import encoders  # its kernels want numba-cuda, or blanks for its words

    if fmt.name == "q8_1":
        return encoders.q8_1_kernel
    return partial(encoders.encoder, fmt) if fmt.name in encoders.ENCODERS else None


def quantize(x: Any, fmt: Format) -> QuantArray | None:
    """Rows of floats on a GPU, encoded there; None where the host must do it or say what is wrong.

    That is so if there is no kernel, if rows are not whole blocks of floats, or if a value is not
    finite or does not fit the format. To know the last costs one synchronization.
    """
    make = encoder(fmt)
    if make is None or x.dtype.kind != "f" or not x.size or not x.ndim or x.shape[-1] % fmt.block_size:
        return None
    cp = cupy()
    raw = cp.empty((*x.shape[:-1], fmt.row_bytes(x.shape[-1])), np.uint8)
    unfit = cp.zeros(1, np.uint32)
    launch(make(), aligned_floats(x), raw, unfit)
    return None if unfit.item() else QuantArray(fmt, x.shape, raw)


def launch(kernel: Kernel, x: Any, raw: Any, unfit: Any) -> None:
    """Run an encoder over all blocks of x; it sets a bit of ``unfit`` if a value or a scale is not finite."""
    blocks = x.size // RUN
    kernel((-(-blocks * LANES // THREADS),), (THREADS,), x, raw, unfit, blocks)
