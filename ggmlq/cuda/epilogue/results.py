"""Results of products with packed weights: a bias is added to a sum, then it is rounded once and stored.

A kernel takes ``result``, a tuple of four: the address of y [m, n], the kind of its floats, the address of a
bias [n] or 0, the kind of its floats. Kinds are places in KINDS.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..intrinsics import codes, ptx
from ..intrinsics.address import address
from ..intrinsics.assembly import f32, instruction, only_on_a_gpu, u32, u64
from ..intrinsics.atoms import inlined
from ..intrinsics.floats import KINDS
from ..intrinsics.language import uint32, uint64

KIND_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}
LETTERS = {"f": 0, "e": 1, "H": 2}  # the same, by NumPy's letters
NOTHING = np.float32(-0.0)  # it changes no sum, not even one of -0


def result_of(y: Any, bias: Any) -> tuple[Any, int, Any, int]:
    """The result that a launch is given; ``bias``: an array, or None."""
    about = (0, 0) if bias is None else (bias, LETTERS[bias.dtype.char])
    return y, LETTERS[y.dtype.char], *about


@cache
def bias_loader() -> Any:
    """The device function for the bias of a row of weights."""
    load_float, load2, half, float_of = ptx.load_float, codes.load2, ptx.half_value, ptx.float_of

    @inlined
    def load_bias(result: Any, row: Any, n: Any) -> Any:
        _, _, bias, kind = result
        value = NOTHING
        if bias != uint64(0) and row < n:
            if kind == uint32(0):
                value = load_float(bias + uint64(row) * uint64(4))
            else:
                bits = uint32(load2(bias + uint64(row) * uint64(2)))
                value = half(bits) if kind == uint32(1) else float_of(bits << uint32(16))
        return value

    return load_bias


@instruction(
    "{.reg .pred wide, half; .reg .b16 h; setp.eq.u32 wide, $2, 0; setp.eq.u32 half, $2, 1; "
    "@wide st.global.f32 [$0], $1; @half cvt.rn.f16.f32 h, $1; @!half cvt.rn.bf16.f32 h, $1; "
    "@!wide st.global.b16 [$0], h;}",
    None, u64, f32, u32, effect=True,
)  # fmt: skip
def store_as(at: Any, value: Any, kind: Any) -> Any:
    """Store a value as a kind of floats."""
    only_on_a_gpu()


@inlined
def store_result(result: Any, column: Any, row: Any, n: Any, value: Any) -> None:
    """Store a result, y[column, row]; ``value`` has its bias."""
    y, kind, _, _ = result
    size = uint32(4) if kind == uint32(0) else uint32(2)
    store_as(address(y, column, n, row, size), value, kind)
