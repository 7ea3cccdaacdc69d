"""Vectors of 64 bytes as LLVM code, and the integer dot product of each CPU, for register tiles.

A vector holds four bytes for each of 16 rows of weights. LLVM lowers it to one register, to two
of AVX2 or to four of NEON; only the dot product itself and the byte look-up have to be named.

The dot product adds, to each of 16 int32, four products of a byte of the weights and a byte of the
activations. Some CPUs have it for unsigned bytes times signed ones, others for signed ones only,
and AVX2 sums pairs of products in 16 bits, which overflow unless one factor is below 129: there
the sign of the weight moves to the activation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from .target import Target

I1, I8, I16, I32, I64 = map(ir.IntType, (1, 8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()


def vec(kind: ir.Type, n: int) -> ir.VectorType:
    return ir.VectorType(kind, n)


BYTES, WORDS, INTS, FLOATS = vec(I8, 64), vec(I16, 32), vec(I32, 16), vec(F32, 16)


class Simd:
    """Emits vector code for one target into one function."""

    def __init__(self, builder: ir.IRBuilder, target: Target) -> None:
        self.builder = builder
        self.target = target
        self._dot, self._operand = DOTS[target.dot]

    # --- memory -------------------------------------------------------------------------

    def load(self, address: Any, kind: ir.Type) -> Any:
        """Load a value from an address, which need not be aligned."""
        pointer = self.builder.inttoptr(address, kind.as_pointer())
        return self.builder.load(pointer, align=1)

    def store(self, value: Any, address: Any) -> None:
        """Store a value at an address, which need not be aligned."""
        pointer = self.builder.inttoptr(address, value.type.as_pointer())
        self.builder.store(value, pointer, align=1)

    def fetch(self, address: Any, cache: int) -> None:
        """Bring a line into the first cache or the second, without waiting for it."""
        module, kind = self.builder.module, ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
        name = "llvm.prefetch.p0i8"
        function = module.globals.get(name) or ir.Function(module, kind, name)
        pointer = self.builder.inttoptr(address, I8.as_pointer())
        self.builder.call(function, [pointer, I32(0), I32(4 - cache), I32(1)])  # to read, near, data

    def apart(self, address: Any) -> Any:
        """An integer whose origin is hidden from LLVM.

        LLVM computes addresses that lie a distance apart by a chain of additions, each waiting for the one
        before, which can take longer than the loads.
        """
        return self.builder.asm(ir.FunctionType(I64, [I64]), "", "=r,0", [address], side_effect=False)

    def splat(self, value: Any, n: int = 16) -> Any:
        """A number in all of ``n`` lanes."""
        kind = vec(value.type, n)
        first = self.builder.insert_element(ir.Constant(kind, ir.Undefined), value, I32(0))
        zeros = ir.Constant(vec(I32, n), None)
        return self.builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), zeros)

    def part(self, value: Any, start: int, n: int) -> Any:
        """The ``n`` lanes of a vector from ``start`` on."""
        lanes = ir.Constant(vec(I32, n), list(range(start, start + n)))
        return self.builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), lanes)

    def join(self, parts: list[Any]) -> Any:
        """Vectors of one length, end to end; their number is a power of two."""
        while len(parts) > 1:
            both = ir.Constant(vec(I32, 2 * parts[0].type.count), list(range(2 * parts[0].type.count)))
            parts = [
                self.builder.shuffle_vector(a, b, both) for a, b in zip(parts[::2], parts[1::2], strict=True)
            ]
        return parts[0]

    # --- bytes --------------------------------------------------------------------------

    def field(self, packed: Any, at: int, width: int, to: int = 0) -> Any:
        """Bits ``at`` … of every byte, moved to bit ``to``, all others cleared."""
        words = self.builder.bitcast(packed, WORDS)
        if at > to:
            words = self.builder.lshr(words, _all(WORDS, at - to))
        elif at < to:
            words = self.builder.shl(words, _all(WORDS, to - at))
        masked = self.builder.and_(self.builder.bitcast(words, BYTES), _all(BYTES, (1 << width) - 1 << to))
        return masked

    def lookup(self, table: tuple[int, ...], index: Any) -> Any:
        """Entries of a table of 16 bytes."""
        width, name = {
            "vnni512": (64, "llvm.x86.avx512.pshuf.b.512"),
            "vnni256": (32, "llvm.x86.avx2.pshuf.b"),
            "avx2": (32, "llvm.x86.avx2.pshuf.b"),
            "sdot": (16, "llvm.aarch64.neon.tbl1.v16i8"),
        }[self.target.dot]
        kind = vec(I8, width)
        entries = ir.Constant(kind, [entry & 255 for entry in table] * (width // 16))
        return self.join([self.call(name, kind, entries, part) for part in self._pieces(index, width)])

    def minus(self, codes: Any, zero: int) -> Any:
        """Bytes less a constant."""
        return self.builder.sub(codes, _all(BYTES, zero))

    # --- products -----------------------------------------------------------------------

    def operand(self, codes: Any) -> Any:
        """Weights in the form that :meth:`dot` takes; made once, used for every row of activations."""
        return self._operand(self, codes)

    def dot(self, sums: Any, weights: Any, activations: Any) -> Any:
        """Int32 sums plus four products each; ``activations``: four codes in an int32, for all rows alike."""
        same = self.builder.bitcast(self.splat(activations), BYTES)
        return self._dot(self, sums, weights, same)

    def dot_vector(self, sums: Any, weights: Any, activations: Any) -> Any:
        """Int32 sums plus four products each: 64 different activations, weights as bytes as they are."""
        return self._dot(self, sums, self.operand(weights), activations)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """Product and sum, rounded once where the CPU can."""
        if self.target.fma:
            return self.call("llvm.fma.v16f32", FLOATS, a, b, c)
        return self.builder.fadd(self.builder.fmul(a, b), c)

    # --- inside -------------------------------------------------------------------------

    def call(self, name: str, result: ir.Type, *args: Any) -> Any:
        """The result of an LLVM intrinsic."""
        module = self.builder.module
        function = module.globals.get(name)
        if function is None:
            function = ir.Function(module, ir.FunctionType(result, [a.type for a in args]), name)
        return self.builder.call(function, args)

    def _pieces(self, value: Any, n: int) -> list[Any]:
        count = value.type.count
        return [value] if n == count else [self.part(value, i, n) for i in range(0, count, n)]

    def by_pieces(self, name: str, width: int, sums: Any, *factors: Any) -> Any:
        """An intrinsic on ``width`` bytes of sums and factors, for all 64 bytes."""
        kind = vec(I32, width // 4)
        pieces = zip(self._pieces(sums, width // 4), *(self._pieces(f, width) for f in factors), strict=True)
        return self.join([self.call(name, kind, *piece) for piece in pieces])


def _all(kind: ir.VectorType, value: int) -> ir.Constant:
    return ir.Constant(kind, [value] * kind.count)


# --- one dot product a kind of CPU ----------------------------------------------------------


def _as_is(simd: Simd, codes: Any) -> Any:
    return codes


def _vnni512(simd: Simd, sums: Any, codes: Any, x: Any) -> Any:
    return simd.call("llvm.x86.avx512.vpdpbusd.512", INTS, sums, codes, x)


def _vnni256(simd: Simd, sums: Any, codes: Any, x: Any) -> Any:
    return simd.by_pieces("llvm.x86.avx512.vpdpbusd.256", 32, sums, codes, x)


def _sdot(simd: Simd, sums: Any, codes: Any, x: Any) -> Any:
    return simd.by_pieces("llvm.aarch64.neon.sdot.v4i32.v16i8", 16, sums, codes, x)


def _signs(simd: Simd, codes: Any) -> Any:
    """Twice 32 bytes, each as magnitudes and as they are."""
    kind = vec(I8, 32)
    pieces = [simd.part(codes, 0, 32), simd.part(codes, 32, 32)]
    return [
        (simd.call("llvm.abs.v32i8", kind, piece, ir.Constant(ir.IntType(1), 0)), piece) for piece in pieces
    ]


def _avx2(simd: Simd, sums: Any, pieces: Any, x: Any) -> Any:
    """|w| times the activation with the sign of w: pairs stay within 128 * 127 * 2 = 32512."""
    bytes_, words, ints = vec(I8, 32), vec(I16, 16), vec(I32, 8)
    ones = _all(words, 1)
    added = []
    for i, (magnitude, codes) in enumerate(pieces):
        turned = simd.call("llvm.x86.avx2.psign.b", bytes_, simd.part(x, 32 * i, 32), codes)
        pairs = simd.call("llvm.x86.avx2.pmadd.ub.sw", words, magnitude, turned)
        fours = simd.call("llvm.x86.avx2.pmadd.wd", ints, pairs, ones)
        added.append(simd.builder.add(simd.part(sums, 8 * i, 8), fours))
    return simd.join(added)


def _halves(simd: Simd, codes: Any) -> Any:
    """Twice 32 bytes, each as the even and the odd ones of its 16-bit words."""
    words = vec(I16, 16)
    pieces = [simd.builder.bitcast(simd.part(codes, start, 32), words) for start in (0, 32)]
    return [
        (simd.builder.ashr(simd.builder.shl(piece, _all(words, 8)), _all(words, 8)),
         simd.builder.ashr(piece, _all(words, 8)))
        for piece in pieces
    ]  # fmt: skip


def _avx2_full(simd: Simd, sums: Any, pieces: Any, x: Any) -> Any:
    """Any bytes, -128 among them: pairs of 16-bit products are added in 32 bits."""
    ints, added = vec(I32, 8), []
    for i, (ours, theirs) in enumerate(zip(pieces, _halves(simd, x), strict=True)):
        total = simd.part(sums, 8 * i, 8)
        for w, a in zip(ours, theirs, strict=True):
            total = simd.builder.add(total, simd.call("llvm.x86.avx2.pmadd.wd", ints, w, a))
        added.append(total)
    return simd.join(added)


def _plain_operand(simd: Simd, codes: Any) -> Any:
    """The four bytes of each int32 apart, as int32."""
    b = simd.builder
    ints = b.bitcast(codes, INTS)
    return [b.ashr(b.shl(ints, _all(INTS, 24 - 8 * i)), _all(INTS, 24)) for i in range(4)]


def _plain(simd: Simd, sums: Any, fours: Any, x: Any) -> Any:
    b = simd.builder
    for w, a in zip(fours, _plain_operand(simd, x), strict=True):
        sums = b.add(sums, b.mul(w, a))
    return sums


DOTS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "vnni512": (_vnni512, _as_is),
    "vnni256": (_vnni256, _as_is),
    "avx2": (_avx2, _signs),
    "avx2 full": (_avx2_full, _halves),
    "sdot": (_sdot, _as_is),
    "plain": (_plain, _plain_operand),
}


# --- LLVM's type bfloat, for instructions on bfloat16: llvmlite has no name for it ----------------


class Bfloat(ir.Type):  # type: ignore[misc]
    """LLVM's type of a bfloat16, the upper half of a float32."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bfloat)

    def __hash__(self) -> int:
        return hash(Bfloat)


BFLOATS = vec(Bfloat(), 32)


# --- Code of LLVM that sums the lanes of a vector of floats, in one order in all kernels ----------


def total_of(b: Any, vector: Any) -> Any:
    """The sum of all lanes, a power of two: the upper half is added to the lower until one is left."""
    n = vector.type.count
    while n > 1:
        n //= 2
        empty = ir.Constant(vector.type, ir.Undefined)
        low, high = (ir.Constant(vec(I32, n), list(range(at, at + n))) for at in (0, n))
        vector = b.fadd(b.shuffle_vector(vector, empty, low), b.shuffle_vector(vector, empty, high))
    return b.extract_element(vector, I32(0))


# --- Loads at the tail of a row, as LLVM code: the lanes behind the last number do not touch memory ---


def first_lanes(simd: Simd, count: Any, lanes: int) -> Any:
    """A mask of the first ``count`` of ``lanes`` lanes."""
    number = simd.splat(simd.builder.trunc(count, I32), lanes)
    return simd.builder.icmp_signed("<", ir.Constant(number.type, list(range(lanes))), number)


def load_some(simd: Simd, address: Any, kind: ir.VectorType, count: Any = None) -> Any:
    """A vector of numbers from memory, or the first ``count`` of them, the others 0."""
    if count is None:
        return simd.load(address, kind)
    bits = "f32" if kind.element == F32 else f"i{kind.element.width}"
    name = f"llvm.masked.load.v{kind.count}{bits}.p0"
    pointer = simd.builder.inttoptr(address, kind.as_pointer())
    return simd.call(
        name, kind, pointer, I32(1), first_lanes(simd, count, kind.count), ir.Constant(kind, None)
    )
