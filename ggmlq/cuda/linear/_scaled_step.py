"""A step of cuda:mma_mxf8 and cuda:mma_nvf4: fragment rows of a warp times a stage, added to its totals."""

from __future__ import annotations

from functools import cache
from typing import Any

from ..intrinsics.atoms import inlined
from ..intrinsics.lane import g_and_t
from ..intrinsics.language import uint32
from ..intrinsics.scaled_runs import E4M3, SCALES, ScaledForm, ScaledProducts, scaled_products
from ..packed.float_codes import byte_codes, float_word, nibble_codes, power_word
from ..packed.layout import FRAGMENT_ROWS, STEP, PackedLayout
from ..rings.mma_tile import CODES, EIGHT, WARP_FRAGMENTS, CodeTile, eight_bytes

LANE, WORD = 16, 4  # bytes of a lane's codes of a row of activations, and of a word of its scales


def products_of(tile: CodeTile, kind: str) -> ScaledProducts:
    """The device functions for the products of a warp."""
    return scaled_products(ScaledForm(kind, WARP_FRAGMENTS, tile.columns // EIGHT, eight_bytes(0)))


@inlined
def no_constants(lane: Any, opaque: Any) -> Any:
    return opaque


@cache
def multiplier(layout: PackedLayout, tile: CodeTile, kind: str) -> Any:
    """The device function that adds one step to a lane's totals."""
    fragment_bytes, weights_at = layout.fragment_bytes, FRAGMENT_ROWS * layout.fragment_bytes
    bytes_of, nibbles_of = (byte_codes, power_word), (nibble_codes, float_word)
    codes_of, scale_of = (part(layout) for part in (bytes_of if kind == E4M3 else nibbles_of))
    add, scale_bytes = products_of(tile, kind).multiply, WORD * SCALES[kind]

    @inlined
    def multiply(at: Any, behind: Any, warp: Any, lane: Any, totals: Any, constants: Any) -> Any:
        g, t = g_and_t(lane)
        w_at = uint32(at + warp * uint32(WARP_FRAGMENTS * fragment_bytes))
        next_at, x_at = uint32(w_at + uint32(fragment_bytes)), uint32(at + uint32(weights_at))
        codes_at = uint32(x_at + (g * uint32(STEP) + t * uint32(LANE)))
        scales_at = uint32(x_at + (uint32(CODES) + g * uint32(scale_bytes)))
        codes = codes_of(w_at, lane) + codes_of(next_at, lane)
        return add(totals, codes, (scale_of(w_at, lane), scale_of(next_at, lane)), codes_at, scales_at)

    return multiply
