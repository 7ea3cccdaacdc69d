"""Wrappers that make inline PTX instructions callable as functions in Numba's GPU kernels.

The body of a wrapper is what the instruction means in plain Python: Numba's simulator runs it, the
tests compare the instruction with it. Instructions that move data or need a whole warp have no meaning
for a single thread; kernels with them run on a GPU only.

An instruction that needs a whole warp, or waits, is ``convergent``: LLVM must not move it under a
condition that holds for fewer lanes, nor copy it into two branches.

One instruction gets lost: nvJitLink assembles relocatable code, where ``setmaxnreg`` is ignored
(advisory C7504), without an error. Link-time optimization keeps it: ``Kernel(..., lto=True)``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

from .language import BLANK, SIMULATED, Blank, extending, ir, several, types

f32, f64, i32, u32, u64 = types.float32, types.float64, types.int32, types.uint32, types.uint64
TOGETHER = re.compile(r"\.sync\b|\.aligned\b|wait|commit|griddepcontrol|fence")
WORD, LONG, FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
KINDS = {i32: ("r", WORD), u32: ("r", WORD), u64: ("l", LONG), f32: ("f", FLOAT), f64: ("d", ir.DoubleType())}


def instruction(text: str, returns: Any, *takes: Any, effect: bool = False) -> Callable[[Any], Any]:
    """The decorator that makes the wrapper of an instruction from a function with its plain meaning.

    ``text``: the assembly, in which ``$0`` … are the results, then the operands. ``returns`` is a type, a
    UniTuple, or None. ``effect``: the instruction reads or writes memory, or waits, so it keeps its place
    among others of that kind.
    """
    if BLANK:  # no kernel is compiled in this process: wrappers are only names (language.py)
        return lambda meaning: Blank(meaning.__name__)
    both = several(returns)  # a UniTuple's type and count, else None
    results = () if returns is None else (both[0],) * both[1] if both else (returns,)
    outs, ins = ["=" + KINDS[t][0] for t in results], [KINDS[t][0] for t in takes]
    constraints = [*outs, *ins]
    kinds = [KINDS[t][1] for t in results]
    kind = ir.VoidType() if not kinds else kinds[0] if len(kinds) == 1 else ir.LiteralStructType(kinds)

    def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        value = emit_assembly(builder, kind, text, constraints, operands, effect)
        if not results:
            return context.get_dummy_value()
        if len(results) == 1:
            return value
        parts = [builder.extract_value(value, i) for i in range(len(results))]
        return context.make_tuple(builder, signature.return_type, parts)

    def decorate(meaning: Any) -> Any:
        if SIMULATED:
            return meaning
        signature = (types.void if returns is None else returns)(*takes)
        wrapped = as_intrinsic(meaning, signature, emit)
        wrapped.meaning = meaning
        return wrapped

    return decorate


def emit_assembly(
    builder: Any, kind: Any, text: str, constraints: Sequence[str], operands: Sequence[Any], effect: bool
) -> Any:
    """Emit a call of inline assembly; it is convergent if its text matches ``TOGETHER``."""
    function = ir.FunctionType(kind, [operand.type for operand in operands])
    memory = ["~{memory}"] if effect else []
    assembly = ir.InlineAsm(function, text, ",".join([*constraints, *memory]), side_effect=effect)
    return builder.call(assembly, operands, attrs=("convergent",) if TOGETHER.search(text) else ())


def as_intrinsic(meaning: Any, signature: Any, emit: Callable[..., Any], first: int = 0) -> Any:
    """The Numba intrinsic whose code ``emit`` writes, with the name and operands' names of ``meaning``, from
    its parameter ``first`` on.
    """

    def typing(context: Any, *operands: Any) -> Any:
        return signature, emit

    names = ["context", *list(inspect.signature(meaning).parameters)[first:]]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    typing.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
    typing.__name__, typing.__doc__ = meaning.__name__, meaning.__doc__
    return extending.intrinsic(typing)


def only_on_a_gpu() -> Any:
    """Raise an error: the body of a wrapper without a plain meaning."""
    raise NotImplementedError("this instruction needs a GPU; the simulator runs one thread at a time")


# --- device functions that are more than one instruction ----------------------------------------


def emitted(returns: Any, *takes: Any) -> Callable[[Any], Any]:
    """The decorator that makes a device function of one that emits its code: ``(builder, operands …)``.

    An array comes as the address of its first element. What is returned is a value, a list for a tuple, or
    None. Such functions need a whole warp, so the simulator has none of them.
    """
    signature = (types.void if returns is None else returns)(*takes)

    def decorate(body: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
            values = [
                context.make_array(kind)(context, builder, value).data
                if isinstance(kind, types.Array)
                else value
                for kind, value in zip(signature.args, operands, strict=True)
            ]
            result = body(builder, *values)
            if result is None:
                return context.get_dummy_value()
            if isinstance(result, list):
                return context.make_tuple(builder, signature.return_type, result)
            return result

        return (lambda *_: only_on_a_gpu()) if SIMULATED else as_intrinsic(body, signature, emit, 1)

    return decorate


def parts(builder: Any, value: Any, count: int) -> list[Any]:
    """The values of a tuple."""
    return [builder.extract_value(value, i) for i in range(count)]


def zeros_of(kind: Any) -> Any:
    """The device function () -> a tuple of zeros of this kind."""

    @emitted(kind)
    def zeros(builder: Any) -> Any:
        return [ir.Constant(FLOAT, 0.0) if kind.dtype == f32 else ir.Constant(WORD, 0)] * kind.count

    return zeros


def emit_in_place(
    builder: Any, text: str, values: Sequence[Any], operands: Sequence[Any] = (), more: int = 0
) -> list[Any]:
    """Emit assembly that changes values in their registers, the first ones of the text; it returns them.

    ``more`` results of the same type follow them in the text, and words, the ``operands``, follow those.
    """
    kind, count = values[0].type, len(values)
    letter = "f" if kind == FLOAT else "r"
    constraints = [f"={letter}"] * count + [f"=&{letter}"] * more + ["r"] * len(operands)
    constraints += [str(i) for i in range(count)]
    result = ir.LiteralStructType([kind] * (count + more))
    results = emit_assembly(builder, result, text, constraints, [*operands, *values], effect=True)
    return parts(builder, results, count + more)


def gpu_only(name: str, text: str, returns: Any, *takes: Any) -> Any:
    """The instruction of this name that has an effect, and no meaning for a single thread."""
    return instruction(text, returns, *takes, effect=True)(without_meaning(name, len(takes)))


def without_meaning(name: str, count: int) -> Callable[..., Any]:
    """The function of this name and ``count`` operands that has no meaning for a single thread."""

    def meaning(*operands: Any) -> Any:
        only_on_a_gpu()

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    operands = [inspect.Parameter(f"operand_{i}", kind) for i in range(count)]
    meaning.__signature__, meaning.__name__ = inspect.Signature(operands), name  # type: ignore[attr-defined]
    return meaning
