"""One number from many lanes."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from .kind import Lanes, emitted, vector


def _reduced(operation: str, kind: Lanes, builder: Any, lanes: Any) -> Any:
    of = vector(kind)
    name = f"llvm.vector.reduce.{operation}.v{kind.n}i{kind.of.bitwidth}"
    declared = builder.module.globals.get(name)
    function = declared or ir.Function(builder.module, ir.FunctionType(of.element, [of]), name)
    return builder.call(function, [lanes])


@emitted
def total(typingctx: Any, lanes: Any) -> Any:
    """The sum of integers."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _reduced("add", lanes, builder, args[0])

    return lanes.of(lanes), codegen


@emitted
def most(typingctx: Any, lanes: Any) -> Any:
    """The largest of integers."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _reduced("smax" if lanes.of.signed else "umax", lanes, builder, args[0])

    return lanes.of(lanes), codegen
