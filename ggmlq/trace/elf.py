"""Redirects the calls that a loaded ELF library makes to another library, for a trace of llama.cpp.

A library keeps the address of each imported function in a slot. After another address is written there, the
library calls that one. It needs no struct of the library and no change to the program; but it needs ELF,
64 bits, and a function that is really imported.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from ctypes import c_int32, c_int64, c_size_t, c_uint64, c_void_p

from ..errors import UnsupportedError

# Tags of the dynamic section, and the size of an entry of each table.
STRTAB, SYMTAB, RELA, RELASZ, JMPREL, PLTRELSZ = 5, 6, 7, 8, 23, 2
ENTRY, SYMBOL = 24, 24
READ_WRITE = 3


def import_slot(library: ctypes.CDLL, name: str) -> c_uint64:
    """The slot in which the library keeps the address of the function ``name``, made writable."""
    if not sys.platform.startswith("linux") or ctypes.sizeof(c_void_p) != 8:
        raise UnsupportedError(
            f"{name}: calls of a library are redirected on 64-bit Linux only, this is {sys.platform}; "
            "leave out what needs that (--without, attach, tools), or run it there"
        )
    base, _, at = (c_uint64 * 3).from_address(library._handle)  # struct link_map: l_addr, l_name, l_ld
    tags: dict[int, int] = {}
    while True:
        tag, value = (c_int64 * 2).from_address(at)
        if tag == 0:
            break
        tags[tag], at = value, at + 16
    for table, size in ((tags.get(JMPREL), tags.get(PLTRELSZ)), (tags.get(RELA), tags.get(RELASZ))):
        for entry in range(table or 0, (table or 0) + (size or 0), ENTRY):
            offset, info = (c_uint64 * 2).from_address(entry)
            if _symbol(tags, info >> 32) == name.encode():
                slot = c_uint64.from_address(base + offset)
                _make_writable(base + offset)
                return slot
    raise UnsupportedError(
        f"{name}: {library._name} does not import it, so its calls cannot be redirected; build llama.cpp "
        "with -DBUILD_SHARED_LIBS=ON, or leave out what needs that (--without, attach, tools)"
    )


def _symbol(tags: dict[int, int], index: int) -> bytes:
    if not index:
        return b""
    at = c_int32.from_address(tags[SYMTAB] + SYMBOL * index).value
    return ctypes.string_at(tags[STRTAB] + at)


def _make_writable(address: int) -> None:
    """Make the page writable: the linker may have made the table read-only."""
    libc = ctypes.CDLL(None, use_errno=True)
    page = address & -mmap.PAGESIZE
    if libc.mprotect(c_void_p(page), c_size_t(2 * mmap.PAGESIZE), READ_WRITE):
        raise UnsupportedError(
            f"the import table of a library stays read-only (errno {ctypes.get_errno()}): the system does "
            "not let calls be redirected; leave out what needs that"
        )
