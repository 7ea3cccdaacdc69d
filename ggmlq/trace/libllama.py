"""libllama through ctypes, for a trace: load a model, tokenize, run tokens, read logits.

It works with libraries since 2024, whose structs differ: structs stay opaque bytes. The library fills in its
default parameters, and we find a field by its default values: three lengths in a row, a callback of NULL
before two types of f16. A field that is not found cannot be set, and an error says so.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
from ctypes import c_bool, c_float, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.system import LINUX, c_library
from ..base.text import printable
from ..errors import LibraryFailedError, MissingDependencyError, UnsupportedError
from ..formats import FORMATS
from ..llama.files import HOW, PLACES, Build, locate
from ..llama.library import LLAMA, Symbols, words

EVAL = ctypes.CFUNCTYPE(c_bool, c_void_p, c_bool, c_void_p)
F16 = 1


class Opaque(ctypes.Structure):
    """A struct by value, larger than any of llama.h: the library reads and writes its own part of it."""

    _fields_ = [("bytes", ctypes.c_uint8 * 1024)]

    def find(self, pattern: str, *values: Any, step: int = 4) -> int | None:
        """The only offset at which these values stand; None where there are none, or several."""
        needle, raw = struct.pack(pattern, *values), bytes(self.bytes)
        last = len(raw) - len(needle)
        offsets = [at for at in range(0, last, step) if raw[at : at + len(needle)] == needle]
        return offsets[0] if len(offsets) == 1 else None

    def put(self, pattern: str, at: int, *values: Any) -> None:
        """Write values at an offset of the struct."""
        struct.pack_into(pattern, self.bytes, at, *values)


@dataclass(frozen=True)
class Wishes:
    """The settings of a context; None stands for the library's default."""

    tokens: int  # in all
    threads: int = 2
    cache: tuple[str, str] | None = None  # types of K and V
    flash: bool | None = None


def positions_of(tokens: int) -> int:
    """The positions of a context for so many tokens."""
    return max(256, -(-tokens // 256) * 256)


class LibLlama:
    """A libllama loaded into this process, with a method for each step of a run."""

    def __init__(self, path: Path) -> None:
        try:
            self.lib = ctypes.CDLL(str(path.absolute()), mode=getattr(ctypes, "RTLD_GLOBAL", 0))
        except OSError as error:
            raise MissingDependencyError(
                f"libllama: cannot load {path}: {printable(str(error))}; {HOW}"
            ) from error
        self.path = path
        self._call("llama_backend_init", None, c_bool(False))

    def _call(self, names: str, result: Any, *arguments: Any) -> Any:
        """The result of the first of these functions that the library has."""
        for name in names.split():
            if hasattr(self.lib, name):
                function = getattr(self.lib, name)
                function.restype = result
                return function(*arguments)
        raise UnsupportedError(
            f"libllama: {names.split(maxsplit=1)[0]} is missing from {self.path}; a trace needs a libllama "
            "of 2024 or later; name another build with --lib"
        )

    # --- a model and its context ----------------------------------------------------------

    def load(self, model: str) -> int:
        """Load a model and return its handle; the library decides on which devices its tensors lie."""
        params = self._call("llama_model_default_params", Opaque)
        handle = self._call(
            "llama_model_load_from_file llama_load_model_from_file", c_void_p, model.encode(), params
        )
        if not handle:
            raise LibraryFailedError(
                f"loading {model}: the library refuses the model; try `ggmlq validate` on it, or a newer "
                "library (its architecture may be unknown to this one)"
            )
        return int(handle)

    def context(self, model: int, wishes: Wishes, callback: Any = None) -> int:
        """The handle of a new context for a model; ``callback`` is called before each node, and after it."""
        params = self._call("llama_context_default_params", Opaque)
        sizes = params.find("=3i", 512, 2048, 512)  # n_ctx, n_batch, n_ubatch
        if sizes is None and wishes.tokens > 512:
            raise self._not_found("n_ctx", "ask for 512 tokens at most")
        if sizes is not None:
            room = positions_of(wishes.tokens)
            params.put("=3i", sizes, room, room, room)
        place = params.find("=QQii", 0, 0, F16, F16, step=8)  # cb_eval, its data, type_k, type_v
        if place is None and (callback is not None or wishes.cache or wishes.flash is not None):
            raise self._not_found("cb_eval", "use another library")
        if place is not None:
            self._fill(params, place, wishes, callback)
        handle = self._call(
            "llama_init_from_model llama_new_context_with_model", c_void_p, c_void_p(model), params
        )
        if not handle:
            raise LibraryFailedError(
                f"a context of {wishes.tokens} tokens, cache {wishes.cache or 'as it is'}, flash attention "
                f"{wishes.flash}: the library makes none; a quantized V cache needs flash attention, and "
                "long contexts need memory; ask for others"
            )
        self._call(
            "llama_set_n_threads", None, c_void_p(handle), c_int32(wishes.threads), c_int32(wishes.threads)
        )
        return int(handle)

    def _fill(self, params: Opaque, place: int, wishes: Wishes, callback: Any) -> None:
        """Set the callback, the types of the cache, and flash attention in a context's parameters."""
        if wishes.flash is not None:
            kinds = params.find("=4i3f", -1, -1, -1, -1, 0, 0, -1)  # rope, pooling, attention, flash, …
            if kinds is not None:
                params.put("=i", kinds + 12, int(wishes.flash))
            else:  # before autumn 2025 a bool; the first that is true after the types is offload_kqv
                raw = bytes(params.bytes)
                at = raw.find(1, place + 24, place + 64)
                if at < 0:
                    raise self._not_found("flash_attn", "leave --flash out")
                params.put("=?", at + 1, wishes.flash)
        if wishes.cache is not None:
            params.put("=2i", place + 16, *(FORMATS[name].id for name in wishes.cache))
        if callback is not None:
            params.put("=Q", place, ctypes.cast(callback, c_void_p).value)

    def _not_found(self, field: str, way: str) -> UnsupportedError:
        return UnsupportedError(
            f"libllama: {field} is not where its default would show it in the parameters of {self.path}; "
            f"libraries of 2024 to 2026 were tried; {way}"
        )

    def free_context(self, context: int) -> None:
        """Free the memory of a context."""
        self._call("llama_free", None, c_void_p(context))

    # --- tokens ---------------------------------------------------------------------------

    def _vocabulary(self, model: int) -> c_void_p:
        if hasattr(self.lib, "llama_model_get_vocab"):
            return c_void_p(self._call("llama_model_get_vocab", c_void_p, c_void_p(model)))
        return c_void_p(model)  # before 2025 the model itself

    def vocabulary_size(self, model: int) -> int:
        """The number of tokens in the vocabulary."""
        return int(self._call("llama_vocab_n_tokens llama_n_vocab", c_int32, self._vocabulary(model)))

    def tokenize(self, model: int, text: str, whole: bool = True) -> list[int]:
        """The tokens of a text; ``whole``: with the special tokens that begin and end a text."""
        raw, n = text.encode(), -64
        while n < 0:  # less than 0: minus the number of tokens that need room
            room = (c_int32 * max(-n, len(raw)))()
            before, n = n, self._call(
                "llama_tokenize", c_int32, self._vocabulary(model), raw, c_int32(len(raw)), room,
                c_int32(len(room)), c_bool(whole), c_bool(True),
            )  # fmt: skip
            if n == before:
                break
        if n < 1:
            raise UnsupportedError(
                f"the prompt of {len(text)} characters gives {n} tokens: the model has no tokenizer for it; "
                "pass --tokens N for random ones"
            )
        return list(room[:n])

    def decode(self, context: int, tokens: list[int], position: int, through: bool = False) -> None:
        """Run one batch; ``through``: all tokens go through the last layer, not only the last one."""
        array = (c_int32 * len(tokens))(*tokens)
        count = c_int32(len(tokens))
        # Libraries since 2025 take two arguments; they ignore the others.
        batch = self._call("llama_batch_get_one", Opaque, array, count, c_int32(position), c_int32(0))
        if through:
            flags = (ctypes.c_int8 * len(tokens))(*[1] * len(tokens))
            # Tokens; then embeddings, positions, counts and ids of sequences, and for whom logits are made.
            place = batch.find("=6Q", ctypes.addressof(array), 0, 0, 0, 0, 0, step=8)
            if place is None:
                raise self._not_found("logits of a batch", "use another library")
            batch.put("=Q", place + 40, ctypes.addressof(flags))
        status = self._call("llama_decode", c_int32, c_void_p(context), batch)
        self._call("llama_synchronize", None, c_void_p(context))
        if status:
            raise LibraryFailedError(
                f"llama_decode of {len(tokens)} tokens at {position} returned {status}, 0 is success; "
                "try fewer tokens"
            )

    def logits(self, context: int, model: int) -> NDArray[np.float32]:
        """The logits of the last token."""
        n = self.vocabulary_size(model)
        self.lib.llama_get_logits_ith.restype = ctypes.POINTER(c_float)
        values = self.lib.llama_get_logits_ith(c_void_p(context), c_int32(-1))
        if not values:
            raise LibraryFailedError("the library has no logits of the last token; the model may only embed")
        return np.ctypeslib.as_array(values, (n,)).copy()


def extra_kinds(names: list[str], symbols: Any, library: LibLlama, offered: set[str]) -> list[Any]:
    """Hide the layouts of weights with these names from libllama; the caller keeps the result alive.

    libllama looks up by name the function with which a backend lists its layouts; that lookup is redirected
    here. The names of all layouts that exist are added to ``offered``.
    """
    lookup = ctypes.CFUNCTYPE(c_void_p, c_void_p, ctypes.c_char_p)
    listing = ctypes.CFUNCTYPE(c_void_p, c_void_p)
    real = lookup(ctypes.cast(symbols.ggml_backend_reg_get_proc_address, c_void_p).value or 0)
    kinds = (c_void_p * 16)()
    listings: list[Any] = []
    hidden = {name.lower() for name in names}

    def rest_of_kinds(device: int) -> int:
        pointers = ctypes.cast(listings[-1](device), ctypes.POINTER(c_void_p))
        count = next((i for i in range(15) if not pointers[i]), 15) if pointers else 0
        called = [words(symbols.ggml_backend_buft_name(pointers[i])) for i in range(count)]
        offered.update(called)
        rest = [pointers[i] for i, name in enumerate(called) if name.lower() not in hidden]
        kinds[:] = rest + [None] * (len(kinds) - len(rest))
        return ctypes.addressof(kinds)

    rest_in_c = listing(rest_of_kinds)

    def lookup_without(reg: int, name: bytes) -> int | None:
        address = real(reg, name)
        if name != b"ggml_backend_dev_get_extra_bufts" or not address:
            return int(address) if address else None
        listings.append(listing(address))
        return ctypes.cast(rest_in_c, c_void_p).value

    lookup_in_c = lookup(lookup_without)
    slot = import_slot(library.lib, "ggml_backend_reg_get_proc_address")
    slot.value = ctypes.cast(lookup_in_c, c_void_p).value or 0
    return [rest_in_c, lookup_in_c, kinds, listings, real]


# --- redirected calls of a loaded ELF library ------------------------------------------------------
#
# A library keeps the address of each imported function in a slot. After another address is written there, the
# library calls that one. It needs no struct of the library and no change to the program; but it needs ELF,
# 64 bits, and a function that is really imported.

# Tags of the dynamic section, and the size of an entry of each table.
STRTAB, SYMTAB, RELA, RELASZ, JMPREL, PLTRELSZ = 5, 6, 7, 8, 23, 2
ENTRY, SYMBOL = 24, 24
READ_WRITE = 3


def import_slot(library: ctypes.CDLL, name: str) -> c_uint64:
    """The slot in which the library keeps the address of the function ``name``, made writable."""
    if not LINUX or ctypes.sizeof(c_void_p) != 8:
        raise UnsupportedError(
            f"{name}: calls of a library are redirected on 64-bit Linux only, this is {platform.system()}; "
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
    libc = c_library(use_errno=True)
    page = address & -mmap.PAGESIZE
    if libc.mprotect(c_void_p(page), c_size_t(2 * mmap.PAGESIZE), READ_WRITE):
        raise UnsupportedError(
            f"the import table of a library stays read-only (errno {ctypes.get_errno()}): the system does "
            "not let calls be redirected; leave out what needs that"
        )


# --- a callback for a program that sets none --------------------------------------------------------
#
# libllama passes its own callback to ``ggml_backend_sched_set_eval_callback``. We redirect that call by one
# slot of libllama's import table and pass ours instead. No struct is read.

NAME = "ggml_backend_sched_set_eval_callback"
SETTER = ctypes.CFUNCTYPE(None, c_void_p, EVAL, c_void_p)


class Hook:
    """While ``with`` lasts, every scheduler gets ``callback`` when libllama sets its callback."""

    def __init__(self, symbols: Symbols, libllama: ctypes.CDLL, callback: Any) -> None:
        real = SETTER(ctypes.cast(getattr(symbols, NAME), c_void_p).value or 0)
        self._slot = import_slot(libllama, NAME)
        self._ours = SETTER(lambda sched, theirs, data: real(sched, callback, None))
        self._before = self._slot.value

    def __enter__(self) -> Hook:
        self._slot.value = ctypes.cast(self._ours, c_void_p).value or 0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._slot.value = self._before


# --- the file of libllama: beside libggml, or in another folder of the same build -------------------


def locate_llama(named: str | Path | None = None) -> tuple[Build, Path]:
    """The build that the user named (a folder, a libggml or a libllama), and its libllama."""
    named_path = None if named is None else Path(named).expanduser()
    if named_path is not None and named_path.is_file() and LLAMA.match(named_path.name):
        return _beside(named_path), named_path
    build = locate(named)
    for folder in _folders(build, named_path):
        path = _in(folder)
        if path is not None:
            return build, path
    raise MissingDependencyError(
        f"libllama: {named_path or build.folder} has none (libggml is in {build.folder}); a trace runs a "
        f"model and needs both: name a whole build of llama.cpp, or libllama itself; {HOW}"
    )


def _beside(path: Path) -> Build:
    """The build of ggml that a libllama belongs to; an old libllama may hold all of it."""
    for root in (path.parent, *path.parent.parents[:3]):
        try:
            return locate(root)
        except MissingDependencyError:
            continue
    return Build(path.parent, {"": path}, path)


def _folders(build: Build, named: Path | None) -> list[Path]:
    roots = [build.folder]
    if named is not None:
        root = named if named.is_dir() else named.parent
        roots += [base / place for base in (root / "build", root) for place in PLACES]
    return roots


def _in(folder: Path) -> Path | None:
    if not folder.is_dir():
        return None
    paths = [path for path in folder.iterdir() if LLAMA.match(path.name) and path.is_file()]
    return min(paths, key=lambda path: (len(path.name), path.name), default=None)
