"""The loader of prebuilt kernels: LLVM links their object code into memory, and nothing is compiled.

An object defines two functions: ``entry(arguments, start, stop)``, called from Python, and ``kernel``, the
same in Numba's convention, which threads call. It refers to a few functions of the C library alone.
"""

from __future__ import annotations

import ctypes
import hashlib
import pickle
from functools import cache
from typing import Any, NamedTuple

import llvmlite.binding as llvm

from ...base.system import c_library
from ...base.threads import need_room
from ...base.unwinding import Whole

ENTRY, KERNEL = "entry", "kernel"
OUTER = ("free", "malloc", "memcpy", "memmove", "memset")  # all that objects may refer to
SEAL = 16  # bytes of the digest behind an object
ROOM, PIECES = 4 << 20, 8  # bytes of addresses and mappings, more than LLVM asks for
FAILED = -1  # the result of entry for an unknown exception; else the address of one, or 0

_engines: list[Any] = []  # code lives as long as the process


class Loaded(NamedTuple):
    """Functions of an object in memory."""

    call: Any
    address: int


class Raised(ctypes.Structure):
    """An exception of compiled code, as Numba lays it down."""

    _fields_ = (
        ("pickled", ctypes.c_void_p),
        ("nbytes", ctypes.c_int32),
        ("arguments", ctypes.c_void_p),
        ("unwrap", ctypes.c_void_p),
    )


def sealed(name: str, content: bytes) -> bytes:
    """An object as packs hold it, with a digest behind it: LLVM ends the process over a truncated one."""
    return content + hashlib.blake2b(name.encode() + b"\0" + content, digest_size=SEAL).digest()


def load(name: str, content: bytes) -> Loaded:
    """The functions of a sealed object; ValueError if it is damaged, or not of that name.

    Nothing interrupts LLVM's Python: it may free memory twice if an exception comes in between.
    """
    with Whole():
        return _load(name, content)


def _load(name: str, content: bytes) -> Loaded:
    content, seal = content[:-SEAL], content[-SEAL:]
    if not content or sealed(name, content)[-SEAL:] != seal:
        raise ValueError(f"{name}: its code is damaged")
    need_room(f"{name}: its code cannot be loaded", ROOM, PIECES)  # without, LLVM ends the process
    _ready()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(content))
    engine.finalize_object()
    places = [engine.get_function_address(name) for name in (ENTRY, KERNEL)]
    if not all(places):
        raise ValueError("an object without its functions")
    _engines.append(engine)
    entry = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(places[0])

    def call(arguments: int, start: int, stop: int) -> None:
        if problem := entry(arguments, start, stop):
            fail(problem)

    return Loaded(call, places[1])


@cache
def _ready() -> None:
    """Set up LLVM and the functions that objects refer to: an unknown name would end the process."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    library = c_library()
    for name in OUTER:
        try:
            place = ctypes.cast(library[name], ctypes.c_void_p).value
        except AttributeError as error:
            raise ValueError(f"this system has no {name}") from error
        llvm.add_symbol(name, place)


def fail(problem: int) -> None:
    """Raise the exception of compiled code."""
    if problem != FAILED:
        raised = Raised.from_address(problem)
        if raised.pickled and not raised.unwrap:
            kind, arguments, *_ = pickle.loads(ctypes.string_at(raised.pickled, raised.nbytes))
            raise kind(*(arguments or ()))
    raise SystemError("a kernel failed without an exception of compiled code")
