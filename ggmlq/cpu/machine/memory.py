"""Addresses in compiled code: arrays over them, atomic steps, calls of kernels."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numba
from llvmlite import ir
from numba import types
from numba.core.callconv import RETCODE_NONE, RETCODE_OK, excinfo_ptr_t

from .jit import jit
from .numba_names import cgutils, intrinsic

I32, I64 = ir.IntType(32), ir.IntType(64)
WORD = 8  # bytes; words are signed and aligned


PAUSES = {  # LLVM's name of the instruction by machine, and its operands
    "x86_64": ("llvm.x86.sse2.pause", []),
    "aarch64": ("llvm.aarch64.hint", [ir.Constant(I32, 1)]),
}

carray: Any = vars(numba)["carray"]
pointer_to: Any = types.CPointer


class Raised(NamedTuple):
    """The status of a call that raised, as Numba hands it on."""

    code: Any
    excinfoptr: Any


def _at(builder: Any, address: Any, kind: ir.Type = I64) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


@intrinsic
def atomic_load(typing: Any, address: Any) -> Any:
    """Read a word that other threads may write; their earlier writes are visible afterwards (acquire)."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_at(builder, args[0]), "acquire", WORD)

    return types.int64(types.int64), emit


@intrinsic
def atomic_store(typing: Any, address: Any, value: Any) -> Any:
    """Write a word; threads that read it also see all earlier writes of this thread (release)."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], _at(builder, args[0]), "release", WORD)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@intrinsic
def atomic_add(typing: Any, address: Any, value: Any) -> Any:
    """Add to a word; the result is its value before."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _at(builder, args[0]), args[1], "acq_rel")

    return types.int64(types.int64, types.int64), emit


@intrinsic
def compare_and_swap(typing: Any, address: Any, old: Any, new: Any) -> Any:
    """Replace a word if it still is ``old``; the result says whether it was."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pair = builder.cmpxchg(_at(builder, args[0]), args[1], args[2], "acq_rel", "acquire")
        return builder.extract_value(pair, 1)

    return types.boolean(types.int64, types.int64, types.int64), emit


@intrinsic
def call_kernel(typing: Any, kernel: Any, arguments: Any, start: Any, stop: Any, problem: Any) -> Any:
    """Call a compiled ``kernel(arguments, start, stop)`` by its address, in Numba's convention.

    The result is its status, for ``failed``; the word at ``problem`` becomes the second argument of ``fail``.
    """

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = ir.IntType(8).as_pointer()
        convention = ir.FunctionType(I32, [place.as_pointer(), place.as_pointer(), I64, I64, I64])
        result = cgutils.alloca_once(builder, place)
        excinfo = builder.inttoptr(args[4], place.as_pointer())
        called = builder.inttoptr(args[0], convention.as_pointer())
        return builder.sext(builder.call(called, [result, excinfo, *args[1:4]]), I64)

    return types.int64(*[types.int64] * 5), emit


@intrinsic
def call_plainly(typing: Any, function: Any) -> Any:
    """Call a function of C that takes nothing, by its address."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.call(builder.inttoptr(args[0], ir.FunctionType(I32, []).as_pointer()), [])
        return context.get_dummy_value()

    return types.void(types.int64), emit


@intrinsic
def call_system(typing: Any, function: Any, number: Any, word: Any, operation: Any, value: Any) -> Any:
    """The system call ``number`` for a word, an operation and a value, by the address of C's ``syscall``."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(I64, [I64], var_arg=True)
        zeros = [ir.Constant(I64, 0)] * 3
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [*args[1:], *zeros])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), emit


@intrinsic
def pause(typing: Any) -> Any:
    """Leave the core's units to its other thread for some clocks, as a loop that looks at a word should."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        name, hint = PAUSES.get(builder.module.triple.partition("-")[0], ("", []))
        if name:
            kind = ir.FunctionType(ir.VoidType(), [each.type for each in hint])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), hint)
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def failed(typing: Any, status: Any) -> Any:
    """True for the status of a function that raised."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        code = builder.trunc(args[0], I32)
        fine = [builder.icmp_signed("==", code, good) for good in (RETCODE_OK, RETCODE_NONE)]
        return builder.not_(builder.or_(*fine))

    return types.boolean(types.int64), emit


@intrinsic
def fail(typing: Any, status: Any, problem: Any) -> Any:
    """Raise the exception that a kernel raised in any thread, if ``status`` says that there is one.

    Exceptions of compiled code are constants of its library.
    """

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        raised = builder.icmp_signed(">", args[0], ir.Constant(I64, 0))
        with cgutils.if_unlikely(builder, raised):
            code = builder.trunc(args[0], I32)
            excinfo = builder.inttoptr(args[1], excinfo_ptr_t)
            context.call_conv.return_status_propagate(builder, Raised(code, excinfo))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


def _pointer(dtype: Any) -> Any:
    @intrinsic
    def pointer(typing: Any, address: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(pointer_to(dtype)))

        return pointer_to(dtype)(types.int64), emit

    return pointer


_byte_pointer, _float_pointer = _pointer(types.uint8), _pointer(types.float32)
_word_pointer = _pointer(types.int64)
_int_pointer = _pointer(types.int32)


def _bytes_at(address: int, rows: int, columns: int) -> Any:
    return carray(_byte_pointer(address), (rows, columns))


def _floats_at(address: int, rows: int, columns: int) -> Any:
    return carray(_float_pointer(address), (rows, columns))


def _ints_at(address: int, rows: int, columns: int) -> Any:
    return carray(_int_pointer(address), (rows, columns))


def _words_at(address: int, count: int) -> Any:
    return carray(_word_pointer(address), (count,))


bytes_at = jit(_bytes_at, on_disk=False)
floats_at = jit(_floats_at, on_disk=False)
ints_at = jit(_ints_at, on_disk=False)
words_at = jit(_words_at, on_disk=False)


# --- The reader of a kernel's arguments: a kernel gets the address of a table of words and reads them by
# name
#
# ``workers.py`` calls every kernel as ``kernel(arguments, start, stop)``. A named tuple of integers is the
# description of such a table, and both sides use it: Python fills it and passes it on as it is, and the
# kernel begins with ``fields = reader(Kind)(arguments)`` and says ``fields.rows``. Only the words that a
# kernel names are read; the rest costs nothing.

LONG = ir.IntType(64)


@cache
def reader(kind: type) -> Any:
    """Compiled: the table at an address, as the named tuple ``kind`` of its words."""
    fields = vars(kind)["_fields"]
    words: Any = types.NamedUniTuple(types.int64, len(fields), kind)  # type: ignore[no-untyped-call]

    @intrinsic
    def read(typing: Any, address: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            table = builder.inttoptr(args[0], LONG.as_pointer())
            at = [cgutils.gep_inbounds(builder, table, i) for i in range(len(fields))]
            return context.make_tuple(builder, words, [builder.load(place) for place in at])

        return words(types.int64), emit

    return read
