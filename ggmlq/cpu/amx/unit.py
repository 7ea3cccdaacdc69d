"""The instructions of the matrix unit, by LLVM's intrinsics for tiles with fixed numbers.

A tile is 16 rows of 64 bytes. Each thread says so in each call (``begin``) and leaves the unit as it was
(``end``): mostly without tiles, so that the system has nothing to save; but another library may have set
its shapes in a thread once for all, as ggml does, and needs them again.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from ..machine.simd import BFLOATS, I8, I64, INTS, Simd
from ..machine.target import AVX512

TILE, PITCH = 1024, 64  # bytes of a tile, of a row
TILES = 8
SHAPES = 64  # bytes that say the shapes: which kind, bytes of a row, and rows
CLOSE = I64(PITCH)
POINTER, NOTHING = I8.as_pointer(), ir.VoidType()


def shapes() -> bytes:
    """The shapes that ``begin`` loads: eight tiles of 16 rows of 64 bytes."""
    widths = b"".join(PITCH.to_bytes(2, "little") for _ in range(TILES))
    return (b"\1".ljust(16, b"\0") + widths).ljust(48, b"\0") + bytes([16] * TILES).ljust(16, b"\0")


class Unit:
    """Emits the instructions into one function; ``here``: address of ``ROOM`` bytes for this call alone."""

    ROOM = 2 * SHAPES

    def __init__(self, builder: Any, here: Any) -> None:
        self.simd, self.b, self.here = Simd(builder, AVX512), builder, here

    def begin(self) -> None:
        """Set the shapes of eight tiles, until ``end``."""
        words = [int.from_bytes(shapes()[i : i + 4], "little") for i in range(0, SHAPES, 4)]
        self.simd.store(ir.Constant(INTS, words), self.here)
        self._do("sttilecfg", self._pointer(self._before))
        self._do("ldtilecfg", self._pointer(self.here))

    def end(self) -> None:
        """Restore the shapes from before, or none."""
        self._do("ldtilecfg", self._pointer(self._before))

    @property
    def _before(self) -> Any:
        return self.b.add(self.here, I64(SHAPES))

    def zero(self, tile: int) -> None:
        """Fill a tile with zeros."""
        self._do("tilezero", I8(tile))

    def load(self, tile: int, address: Any, pitch: Any = CLOSE, passing: bool = False) -> None:
        """Load a tile from rows a pitch apart; ``passing``: it should push nothing out of the first cache."""
        name = "tileloaddt164" if passing else "tileloadd64"
        self._do(name, I8(tile), self._pointer(address), pitch)

    def store(self, tile: int, address: Any, pitch: Any) -> None:
        """Store a tile to rows a pitch apart."""
        self._do("tilestored64", I8(tile), self._pointer(address), pitch)

    def dot(self, sums: int, rows: int, columns: int) -> None:
        """Add to float32 sums [m, n] bfloat16 rows [m, 32] times columns [16, n, 2], pairs of neighbours."""
        self._do("tdpbf16ps", I8(sums), I8(rows), I8(columns))

    def dot_codes(self, sums: int, rows: int, columns: int) -> None:
        """Add to int32 sums [m, n] signed bytes [m, 64] times unsigned [16, n, 4], fours of neighbours."""
        self._do("tdpbsud", I8(sums), I8(rows), I8(columns))

    def _pointer(self, address: Any) -> Any:
        return self.b.inttoptr(address, POINTER)

    def _do(self, name: str, *args: Any) -> None:
        self.simd.call(f"llvm.x86.{name}", NOTHING, *args)


def bfloats(simd: Simd, low: Any, high: Any) -> Any:
    """32 bfloat16, to the nearest even, from 16 and 16 float32; denormal numbers become 0."""
    pairs = simd.call("llvm.x86.avx512bf16.cvtne2ps2bf16.512", BFLOATS, high, low)
    return simd.builder.bitcast(pairs, INTS)
