"""Packs of the CPU's kernels (ggmlq/cpu/prebuilt): the kernels that belong in.

A kernel belongs in if products take it where nobody names a kernel, for any number of rows: products of
blocks, with experts too, and of 8-bit codes with scales; if it makes such codes of floats; and if a model
takes it between products. Attention and products with weights as they lie share the code that decodes rows.
Kernels of rungs that are there to be
read, and of other operations, are compiled when asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import chain, product
from typing import Any

from _packs import Wanted

from ggmlq.codes import CODES
from ggmlq.cpu.amx.instructions import ROWS_OF
from ggmlq.cpu.amx.unit import Unit
from ggmlq.cpu.codes8.int_layout import BYTES, Form, form_of
from ggmlq.cpu.grouped.multiply import ADDRESSED
from ggmlq.cpu.layers.call import STORED
from ggmlq.cpu.linear import r5_lines
from ggmlq.cpu.linear._floats import KINDS
from ggmlq.cpu.machine.levels import LEVELS, Level
from ggmlq.cpu.machine.target import Target, best
from ggmlq.cpu.panels.layout import ROWS_AT_ONCE, expanded, layout_of, rows_at_once, unpacked
from ggmlq.cpu.scaled_linear import r4_lines
from ggmlq.cpu.unpack import has_walk
from ggmlq.dispatch.problems import Linear, Operand, ScaledLinear
from ggmlq.formats import FORMATS, BlockFormat
from ggmlq.store.origin import Origin

# Codes, and whether they have zero points.
CODED = (
    ("e4m3", False), ("e5m2", False), ("int8", False),
    ("int8_full", False), ("int8_full", True), ("uint8", False), ("uint8", True),
)  # fmt: skip
NARROW = ("float16", "bfloat16"), ("e4m3", "int8")  # numbers of 16 bits become these
FLOATS = ("e4m3", "e5m2")
# Types that llama.cpp's mixes give to token_embd; a model's first step decodes rows of it.
EMBEDDINGS = {
    "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K",
    "iq3_s", "iq4_nl", "iq4_xs", "mxfp4",
}  # fmt: skip


@cache
def wanted(levels: tuple[Level, ...] = LEVELS) -> tuple[Wanted, ...]:
    """All kernels that belong in the packs."""
    kernels = [
        Wanted(Origin(f"ggmlq.cpu.{name}", case), level.folder)
        for level in levels
        for name, case in chain(_of(best(level.features)), _of_pairs(level), _of_matrix_unit(level))
    ]
    return tuple(dict.fromkeys(kernels))


def _of(kind: Target) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Kernels by name, for a target."""
    yield "machine.board.doer", ()
    yield "machine.board.server", ()
    yield "machine.board.runner", ()
    yield "machine.board.pauser", ()
    yield "machine.digest.adder", ()
    yield "grouped.product.sorter", ()
    yield "encode.floats16.narrower", ()
    yield "linear._transposed.sweep", (kind,)
    yield "attention.units.stretches", (kind,)
    yield "attention.units.merged", ()
    yield "attention.units.whole", (kind,)
    yield from _of_layers()
    for fmt in FORMATS.values():
        if fmt.name == "f32" or has_walk(fmt):
            yield "attention.rows.filler", (fmt,)
        if fmt.name in EMBEDDINGS:
            yield "layers.rows.decoded", (fmt,)
        if isinstance(fmt, BlockFormat):
            yield from _of_format(fmt, kind)
        elif has_walk(fmt):
            yield "unpack.decode.floats", (fmt,)
    yield from _of_scales(kind)
    for name in KINDS:
        if name != "f16" or kind.halves:
            yield "linear._floats.sweep", (name, kind)


def _of_layers() -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Kernels between a model's products."""
    yield "layers.norm.normed", ()
    for name in ("added", "times", "capped"):
        yield f"layers.sums.{name}", ()
    for activation in ("silu", "sigmoid", "gelu", "swiglu_oai"):
        yield "layers.gate.gated", (activation,)
    for neox, name in product((False, True), STORED):
        yield "layers.rope_append.append", (neox, FORMATS[name], FORMATS[name])
        yield "layers.latent.append", (neox, FORMATS[name])
    for name in ("rope_append.spread", "latent.some_columns", "route.routed", "mix.mixed", "gate.shared"):
        yield f"layers.{name}", ()
    yield "layers.delta.ruled", ()
    for silu in (False, True):
        yield "layers.convolution.convolved", (silu,)


def _of_pairs(level: Level) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Kernels of 8-bit floats, for CPUs that have more instructions than their level."""
    if "codes8.float_" in level.more:
        for code in FLOATS:
            yield "codes8.float_decode.row_decoder", (code, best(level.features))
            for module in ("product", "few"):
                yield f"codes8.float_{module}.sweep", (code, best(level.features))


def _of_matrix_unit(level: Level) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Kernels of blocks, 8-bit codes and attention for CPUs that have Intel's matrix unit besides."""
    if "amx." in level.more:
        for kind in ROWS_OF:
            yield "amx.instructions.packer", (kind,)
        for form in code_forms(best(level.features)):
            yield "codes8.int_amx.multiplier", (form, Unit)
        for code in FLOATS:
            yield "codes8.float_amx.multiplier", (code, best(level.features), Unit)
        yield "attention.matrix.stretches", (Unit,)
        yield "attention.matrix.whole", (Unit,)
        layouts = (layout_of(fmt) for fmt in FORMATS.values() if isinstance(fmt, BlockFormat))
        for layout in dict.fromkeys(filter(None, layouts)):
            yield "amx.product.multiplier", (layout, Unit)


def _of_format(fmt: BlockFormat, kind: Target) -> Iterator[tuple[str, tuple[Any, ...]]]:
    layout = layout_of(fmt) if kind.shuffles and kind.halves else None  # as cpu:panels has it
    read = layout or unpacked(fmt, kind)
    most = rows_at_once(read, kind)
    yield "panels.make.quantizer", (read.groups, read.offset, kind)
    if layout is None:
        for rows in dict.fromkeys((1, most)):
            yield "panels.product.from_blocks", (fmt, rows, kind)
        yield "grouped.product.from_blocks", (fmt, min(most, ADDRESSED), kind)
        if r5_lines.refuses(Linear(fmt, 1, 256, 256, device="cpu")) is None:
            yield "panels.lines.by_lines", (fmt, kind)
        return
    yield "panels.make.placer", (fmt,)
    for rows in dict.fromkeys((1, most)):
        yield "panels.product.direct", (layout, rows, kind)
    yield "grouped.product.direct", (layout, min(most, ADDRESSED), kind)
    if layout.offset or len(layout.planes) > 1:
        yield "grouped.product.through_bytes", (layout, min(most, ADDRESSED), kind)
        yield "panels.product.through_bytes", (layout, rows_at_once(expanded(layout, kind), kind), kind)


def _of_scales(kind: Target) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Kernels of codes with scales."""
    ways = [("float32", *code) for code in CODED]
    ways += [(read, code, False) for read, code in product(*NARROW)]
    for read, code, zeros in ways:
        yield "quantize_scaled.kernels.quantizer", (read, code, "half_even", zeros, "float32", kind)
        yield "quantize_scaled.kernels.encoder", (read, code, "half_even", zeros, kind)
        yield "quantize_scaled.kernels.extremes_finder", (read, zeros, CODES[code].kind == "integer", kind)
    yield "quantize_scaled.kernels.quantizer", ("float32", "e4m3", "half_even", False, "e8m0", kind)
    for code, zeros in CODED:
        yield "decode_scaled.kernels.decoder", (code, zeros, kind)
    for code, rows in product(FLOATS, range(1, r4_lines.ROWS + 1)):
        yield "scaled_linear._lines.lines", (code, rows, kind)
    yield "codes8.int_product.interleaver", ()
    for signed in (True, False):
        yield "codes8.int_product.row_converter", (signed,)
    most = ROWS_AT_ONCE[kind.registers]
    for form in code_forms(kind):
        for rows in dict.fromkeys((1, min(most, 2), most)):
            yield "codes8.int_product.sweep", (form, rows, kind)


def code_forms(kind: Target) -> Iterator[Form]:
    """The forms of products of 8-bit integers with scales."""
    operands = [Operand(code, 1, 128, zeros) for code, zeros in CODED if code in BYTES]
    for x, w in product(operands, operands):
        yield form_of(ScaledLinear(x, w, 1, 16, 128, device="cpu"), kind)
