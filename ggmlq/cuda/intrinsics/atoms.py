"""A format's atoms (``code``, ``scale``, ``offset``) as device functions, compiled from its file's text, and
the constant tables that they read.

Numba puts a global array into constant memory, which serves one address at a time: a warp with 32
different indices waits 32 times. A :class:`Table` takes the array's place in a kernel and is read as
global memory is, through the cache.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ...formats.atoms import Atoms, rebuild, recompiler
from ...formats.format import BlockFormat
from . import ptx
from .language import cuda, extending, ir, types, uint32

# Numba compiles a called device function for the GPU at hand: inlined ones also compile where
# there is none.
inlined: Callable[[Any], Any] = cuda.jit(device=True, inline="always")

# --- tables -----------------------------------------------------------------------------------

ELEMENTS = {"int8": ir.IntType(8), "uint8": ir.IntType(8), "int32": ir.IntType(32), "float32": ir.FloatType()}


class Table:
    """A constant array: ``table[i]`` and ``table[i, j]`` in a kernel."""

    def __init__(self, values: Any) -> None:
        self.values = np.ascontiguousarray(values)
        digest = hashlib.sha256(self.values.tobytes()).hexdigest()[:16]
        shape = "x".join(map(str, self.values.shape))
        self.name = f"table_{self.values.dtype.name}_{shape}_{digest}"

    def __repr__(self) -> str:
        return self.name  # the same in every process: code is kept under it

    def __getitem__(self, index: Any) -> Any:
        return self.values[index]


class TableType(types.Dummy):  # type: ignore[misc]
    """The type of one table: it holds the values, so that code can be made of it alone."""

    def __init__(self, table: Table) -> None:
        super().__init__(table.name)
        self.table = table


extending.register_model(TableType)(extending.core_models.OpaqueModel)


@extending.typeof_impl.register(Table)
def _typeof(table: Table, context: Any) -> TableType:
    return TableType(table)


@extending.type_callable(operator.getitem)
def _type_of_entry(context: Any) -> Any:
    def typer(table: Any, index: Any) -> Any:
        if isinstance(table, TableType):
            return getattr(types, table.table.values.dtype.name)
        return None

    return typer


@extending.lower_builtin(operator.getitem, TableType, types.Any)
def _load(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
    table, index = signature.args
    values, module, name = table.table.values, builder.module, table.table.name
    element, wide = ELEMENTS[values.dtype.name], ir.IntType(64)
    if name not in module.globals:
        kind = ir.ArrayType(element, values.size)
        memory = ir.GlobalVariable(module, kind, name, addrspace=1)
        memory.initializer = ir.Constant(kind, [element(v) for v in values.reshape(-1).tolist()])
        memory.global_constant, memory.linkage, memory.align = True, "internal", 16
    if isinstance(index, types.BaseTuple):
        parts = [builder.extract_value(operands[1], i) for i in range(len(index))]
        kinds = list(index)
    else:
        parts, kinds = [operands[1]], [index]
    place: Any = wide(0)
    for part, kind, length in zip(parts, kinds, values.shape, strict=True):
        step = context.cast(builder, part, kind, types.int64)
        place = builder.add(builder.mul(place, wide(length)), step)
    return builder.load(builder.gep(module.get_global(name), [wide(0), place]))


# --- atoms ------------------------------------------------------------------------------------


@inlined
def _half_value(bits: Any) -> Any:
    return ptx.half_value(uint32(bits))


@inlined
def half(block: Any, at: Any) -> Any:
    """The half at bytes ``at`` and ``at + 1`` of a block, as float32."""
    return ptx.half_value(uint32(block[at]) | uint32(block[at + 1]) << 8)


@cache
def atoms(fmt: BlockFormat) -> Atoms:
    """``code``, ``scale`` and ``offset`` of a format as device functions.

    Halves are converted by the instruction for it, tables are read as global memory.
    """
    return rebuild(fmt, inlined, {"half_value": _half_value}, Table)


@cache
def verb(function: Callable[..., Any]) -> Any:
    """Any other function of a format's or a code's file, as a device function."""
    return recompiler(inlined, {"half_value": _half_value}, Table)(function)  # type: ignore[arg-type]
