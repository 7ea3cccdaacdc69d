"""The cut of K for integers: groups that share all scales, chunks whose sums fit int32, and fours.

Codes are stored in the form that the dot product takes, so that a stored code is code + shift:

    weights        unsigned bytes where the dot product wants those (code + 128 of int8), else signed ones
    activations    signed bytes: code - 128 of uint8

A shift is a zero point of the stored codes. So a sum of a chunk is always

    Σ (a - za)·(b - zb)  =  Σ a'·b' - zb'·Σ a' - za'·(Σ b' - n·zb')

with za' and zb' those of the stored codes; where both are 0 only the first term is left. Bytes that fill a
chunk up are 0 as stored, and n counts codes alone, so that they add nothing. All of it is
in int32, which may pass over its ends and come back: only the result has to fit.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from ...dispatch.problems import INT32, Operand, ScaledLinear
from ..machine.tables import Address, joined
from ..machine.target import Target

ROWS = 16  # of a panel
FEW = 4  # rows of activations of a tile for those that are left where 12 meet two panels
FOURS = 8  # in one round of the inner loop
BYTES = ("int8", "int8_full", "uint8")  # codes that tiles take


class Cut(NamedTuple):
    """K in groups, chunks and fours."""

    k: int
    group: int  # products that share all scales
    groups: int
    chunk: int  # products that are summed in int32
    chunks: int  # of a group
    fours: int  # of a chunk

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of codes, filled up."""
        return 4 * self.fours * self.chunks * self.groups

    @property
    def plain(self) -> bool:
        """True if rows need no filling up but at their end."""
        return self.groups * self.chunks == 1 or (self.chunks == 1 and self.group % 4 == 0)


class Form(NamedTuple):
    """The terms that a tile is compiled for."""

    w_zeros: bool  # each row of weights has a zero point of its own; else all have the same
    x_zeros: bool
    wide: bool  # sums of chunks are added in int64
    dot: str  # the dot product, by its name in simd.DOTS


@cache
def cut_of(problem: ScaledLinear) -> Cut:
    """The cut of a problem's K."""
    k, group = problem.k, problem.group
    groups = -(-k // group)
    chunk = group
    if problem.largest_sum > INT32:
        most = int(INT32 / (problem.largest_sum / group))
        chunk = most // 128 * 128
    chunks = -(-group // chunk)
    return Cut(k, group, groups, chunk, chunks, -(-chunk // 4))


@cache
def form_of(problem: ScaledLinear, target: Target) -> Form:
    """The terms that the products of a problem have on a CPU."""
    dot = target.dot
    if dot == "avx2" and problem.x.code != "int8":  # codes of -128 have no negative
        dot = "avx2 full"
    x_zeros = problem.x.zeros or x_shift(problem.x) != 0
    return Form(problem.w.zeros, x_zeros, cut_of(problem).chunks > 1, dot)


def x_shift(x: Operand) -> int:
    """The shift of activations: a stored code is code + shift."""
    return -128 if x.code == "uint8" else 0


def w_shift(w: Operand, target: Target) -> int:
    """The shift of weights: a stored code is code + shift."""
    if target.unsigned:
        return 0 if w.code == "uint8" else 128
    return -128 if w.code == "uint8" else 0


# --- The arguments of the kernels of integer codes ------------------------------------------------


class Operands(NamedTuple):
    """The arguments of a product, as addresses and sizes."""

    panel_bytes: int
    panels: Address
    w_scales: Address
    w_zeros: Address
    w_sums: Address
    x: Address
    x_pitch: int
    x_scales: Address
    x_zeros: Address
    x_sums: Address
    m: int
    n: int
    out: Address
    groups: int
    chunks: int
    fours: int


class Panels(NamedTuple):
    """Rows of weights, and the panels that they become."""

    codes: Address  # bytes [rows, k]
    rows: int
    pitch: int  # bytes from a row to the next
    panels: Address
    panel_bytes: int
    flip: int  # bits that are inverted


class Rows(NamedTuple):
    """Rows of codes and the results of their conversion; a result without an address is left out."""

    codes: Address  # bytes [rows, k]
    pitch: int
    stored: Address  # bytes [rows, stored_pitch]: the same with bits inverted, filled up to whole fours
    stored_pitch: int
    flip: int
    sums: Address  # int32 [rows, chunks of all groups]: (Σ codes + shift · their number) · factor
    shift: int
    factor: int
    r: int  # of a scale tile
    c: int
    scales: Address  # float32 [bands, tiles], of any strides
    scales_pitch: int  # bytes from a band to the next
    scales_step: int  # and from a tile to the next
    by_group: Address  # float32 [rows, groups]: those of each group
    zeros: Address  # int32 like the scales; 0 where all are 0
    zeros_pitch: int
    zeros_step: int
    stored_zeros: Address  # int32 [rows, groups]: with the shift


Interleaving = joined("Interleaving", Cut, Panels)
Conversion = joined("Conversion", Cut, Rows)
