"""``Library``: ggml's encoders and decoders, called in this process, to compare our bytes and values.

It is for libraries that one trusts, in tests and tools. A library under development may crash: then use
:class:`ggmlq.llama.Bridge`, which keeps it in a process of its own.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.system import mapped
from ..base.text import printable
from ..errors import MissingDependencyError, UnsupportedError
from ..formats import FORMATS, Format
from ..formats.format import Bytes, Floats
from .files import HOW, NAME, PLACES, VARIABLE, Build, locate

ACTIVATIONS = ("q8_1", "q8_K")  # ggml turns activations into these; it has no weights of them
OLD_TYPES = 28  # the highest id of a type that every ggml with backends has, f64
DECODERS = {"f16": "ggml_fp16_to_fp32_row", "bf16": "ggml_bf16_to_fp32_row"}  # the others by their pattern


def is_weight_type(fmt: Format) -> bool:
    """True for a type whose weights ggml multiplies: all blocks but those of activations, and floats."""
    return fmt.name not in ACTIVATIONS and (fmt.block_size > 1 or fmt.can_quantize)


class Library:
    """The C functions of one libggml, checked against our table of types when it is loaded."""

    def __init__(self, path: str | Path | Build | None = None, *, whole: bool = False) -> None:
        build = path if isinstance(path, Build) else locate(path)
        self.path = build.base
        self.symbols = Symbols(build, whole=whole)
        if not self.symbols.has("ggml_quantize_chunk"):
            raise MissingDependencyError(
                f"libggml: {self.path} has no ggml_quantize_chunk; name the file libggml-base; {HOW}"
            )
        if whole:
            checked(build)
        self._check_types()

    @property
    def version(self) -> str:
        """Version and commit as the library states them, where it does."""
        names = ("ggml_version", "ggml_commit")
        parts = [words(getattr(self.symbols, name)()) for name in names if self.symbols.has(name)]
        return " ".join(filter(None, parts)) or "unknown"

    def _check_types(self) -> None:
        self.types: set[str] = set()
        for fmt in FORMATS.values():
            # A release build does not compare an id with its number of types: it reads behind its table.
            if fmt.id > OLD_TYPES and not self.symbols.has(_decoder(fmt)):
                continue  # an older library that lacks the type
            if self.symbols.ggml_type_name(fmt.id) != fmt.name.encode():
                continue  # or has another one under its id
            sizes = self.symbols.ggml_blck_size(fmt.id), self.symbols.ggml_type_size(fmt.id)
            if sizes != (fmt.block_size, fmt.dtype.itemsize):
                raise UnsupportedError(
                    f"libggml: {self.path} has {fmt.name} as {sizes[0]} weights in {sizes[1]} bytes, "
                    f"ggmlq as {fmt.block_size} in {fmt.dtype.itemsize}; use a library of 2026"
                )
            self.types.add(fmt.name)

    def check_type(self, fmt: Format) -> None:
        """Raise an error for a type that the library does not know: it would abort on the id."""
        if fmt.name not in self.types:
            raise UnsupportedError(
                f"libggml: {self.path} (ggml {self.version}) has no type {fmt.name} (id {fmt.id}); "
                "use a newer library or another type"
            )

    def quantize(self, x: Floats, fmt: Format, imatrix: Floats | None = None) -> Bytes:
        """Rows of floats [N, K] to bytes [N, row bytes], as ``ggml_quantize_chunk`` writes them."""
        self.check_type(fmt)
        x = np.ascontiguousarray(x, np.float32)
        rows, columns = x.shape
        out = np.empty((rows, fmt.row_bytes(columns)), np.uint8)
        if fmt.name in ACTIVATIONS:  # they have no chunk encoder
            self._row_function(f"quantize_row_{fmt.name}_ref")(address(x), address(out), LONG(x.size))
            return out
        weights = None if imatrix is None else np.ascontiguousarray(imatrix, np.float32)
        self.symbols.ggml_quantize_chunk(
            fmt.id, address(x), address(out), 0, rows, columns,
            None if weights is None else address(weights),
        )  # fmt: skip
        return out

    def dequantize(self, raw: Bytes, fmt: Format, out: Floats | None = None) -> Floats:
        """Bytes [N, row bytes] to floats [N, K], as ``dequantize_row_*`` reads them."""
        self.check_type(fmt)
        raw = np.ascontiguousarray(raw)
        columns = raw.shape[-1] // fmt.dtype.itemsize * fmt.block_size
        if out is None:
            out = np.empty((*raw.shape[:-1], columns), np.float32)
        self._row_function(_decoder(fmt))(address(raw), address(out), LONG(out.size))
        return out

    def _row_function(self, name: str) -> ctypes._NamedFuncPointer:
        if not self.symbols.has(name):
            raise UnsupportedError(f"libggml: {self.path} has no {name}; ask another type of it")
        function: ctypes._NamedFuncPointer = getattr(self.symbols, name)
        function.restype, function.argtypes = None, [P, P, LONG]
        return function


def _decoder(fmt: Format) -> str:
    """Name of the function that turns rows of a type into floats."""
    return DECODERS.get(fmt.name, f"dequantize_row_{fmt.name}")


def address(array: NDArray[np.generic]) -> ctypes.c_void_p:
    """The address of an array's bytes as a pointer of C."""
    return ctypes.c_void_p(array.ctypes.data)


# --- the C functions that the bridge calls, found in whichever file has them ----------------------
#
# No struct of ggml is read: tensors and graphs stay pointers, so that a library of another year,
# whose structs have other fields, still fits. Only ``ggml_init_params`` goes by value.

P, TEXT, SIZE = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
INT, LONG, BOOL, FLOAT = ctypes.c_int, ctypes.c_int64, ctypes.c_bool, ctypes.c_float


class InitParams(ctypes.Structure):
    """Memory of a context: its size, its address (NULL: ggml allocates), and whether tensors have data."""

    _fields_ = [("mem_size", SIZE), ("mem_buffer", P), ("no_alloc", BOOL)]


LETTERS: dict[str, Any] = {
    "s": TEXT, "p": P, "z": SIZE, "i": INT, "l": LONG, "b": BOOL, "f": FLOAT, "v": None, "c": InitParams,
}  # fmt: skip

# For each function a letter for its result, and those of its arguments.
SIGNATURES = {
    "ggml_version": "s:", "ggml_commit": "s:", "ggml_type_name": "s:i", "ggml_type_size": "z:i",
    "ggml_blck_size": "l:i", "ggml_quantize_chunk": "z:ipplllp",
    # tensors and graphs
    "ggml_init": "p:c", "ggml_free": "v:p", "ggml_tensor_overhead": "z:", "ggml_graph_overhead": "z:",
    "ggml_nbytes": "z:p", "ggml_new_tensor_2d": "p:pill", "ggml_new_tensor_3d": "p:pilll",
    "ggml_mul_mat": "p:ppp", "ggml_mul_mat_id": "p:pppp", "ggml_soft_max": "p:pp", "ggml_top_k": "p:ppi",
    "ggml_argsort_top_k": "p:ppi", "ggml_get_rows": "p:ppp", "ggml_reshape_3d": "p:pplll",
    "ggml_view_2d": "p:ppllzz", "ggml_silu": "p:pp", "ggml_mul": "p:ppp", "ggml_add": "p:ppp",
    "ggml_scale": "p:ppf", "ggml_new_graph": "p:p", "ggml_build_forward_expand": "v:pp",
    # for a trace, which looks at nodes of llama.cpp's graphs
    "ggml_op_desc": "s:p", "ggml_get_name": "s:p", "ggml_get_data": "p:p",
    "ggml_new_tensor_4d": "p:pillll", "ggml_view_1d": "p:pplz", "ggml_view_4d": "p:ppllllzzzz",
    "ggml_view_tensor": "p:pp", "ggml_flash_attn_ext": "p:pppppfff", "ggml_backend_cpu_buffer_type": "p:",
    "ggml_backend_buffer_name": "s:p", "ggml_backend_buffer_is_host": "b:p",
    # backends
    "ggml_backend_reg_count": "z:", "ggml_backend_reg_get": "p:z", "ggml_backend_reg_name": "s:p",
    "ggml_backend_reg_dev_count": "z:p", "ggml_backend_reg_dev_get": "p:pz",
    "ggml_backend_reg_get_proc_address": "p:ps", "ggml_backend_load_all_from_path": "v:s",
    "ggml_backend_dev_name": "s:p", "ggml_backend_dev_description": "s:p", "ggml_backend_dev_type": "i:p",
    "ggml_backend_dev_memory": "v:ppp", "ggml_backend_dev_init": "p:ps",
    "ggml_backend_dev_buffer_type": "p:p", "ggml_backend_dev_supports_op": "b:pp",
    "ggml_backend_buft_name": "s:p", "ggml_backend_buft_get_alignment": "z:p",
    "ggml_backend_buft_get_alloc_size": "z:pp", "ggml_backend_buft_alloc_buffer": "p:pz",
    "ggml_backend_buffer_get_base": "p:p",
    "ggml_backend_tensor_alloc": "i:ppp",  # before 2025 it returned nothing
    "ggml_backend_view_init": "i:p", "ggml_backend_alloc_ctx_tensors_from_buft": "p:pp",
    "ggml_backend_buffer_set_usage": "v:pi", "ggml_backend_buffer_free": "v:p",
    "ggml_backend_tensor_set": "v:ppzz", "ggml_backend_tensor_get": "v:ppzz",
    "ggml_backend_graph_compute": "i:pp", "ggml_backend_synchronize": "v:p",
}  # fmt: skip


def words(text: bytes | None) -> str:
    """A name that a library gives, as one printable line; empty where there is none."""
    return printable((text or b"").decode(errors="replace").strip()).replace("\n", r"\n")


class Symbols:
    """``symbols.ggml_nbytes(tensor)``: functions by name, out of all loaded files of a build."""

    def __init__(self, build: Build, *, whole: bool = False) -> None:
        """Load the base alone, or the whole build with its registry and backends."""
        self.build = build
        self.troubles: list[str] = []  # backends that did not load, and why
        self.servers: list[int] = []  # backends of servers of RPC
        self._files = {build.base: _load(build.base)}
        if whole:
            self._load_backends()

    def _load_backends(self) -> None:
        """Load the registry, which brings its backends; where it cannot find them, load them first."""
        if "" in self.build.parts and self._try(self.build.parts[""]):
            return
        for path in self.build.backends.values():
            self._try(path)
        if "" in self.build.parts:
            self._try(self.build.parts[""])

    def _try(self, path: Path) -> bool:
        if path in self._files:
            return True
        try:
            self._files[path] = _load(path)
        except MissingDependencyError as error:
            self.troubles.append(str(error))
            return False
        return True

    def has(self, name: str) -> bool:
        """True where any loaded file exports the function."""
        return any(hasattr(file, name) for file in self._files.values())

    def __getattr__(self, name: str) -> Any:
        for file in self._files.values():
            if hasattr(file, name):
                function = getattr(file, name)
                if name in SIGNATURES:
                    result, arguments = SIGNATURES[name].split(":")
                    function.restype, function.argtypes = LETTERS[result], [LETTERS[a] for a in arguments]
                setattr(self, name, function)
                return function
        listed = ", ".join(str(path) for path in self._files)
        more = "".join(f"; {trouble}" for trouble in self.troubles)
        raise UnsupportedError(
            f"libggml: {name} is missing from {listed}{more}; this needs a complete shared build "
            "of ggml from 2025 or later; name its folder"
        )

    def procedure(self, reg: int, name: str, result: Any, *takes: Any) -> Any:
        """A function that a backend offers by name only, or None."""
        address = self.ggml_backend_reg_get_proc_address(reg, name.encode())
        return ctypes.CFUNCTYPE(result, *takes)(address) if address else None


def _load(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path.absolute()), mode=getattr(ctypes, "RTLD_GLOBAL", 0))
    except OSError as error:
        why = f"{printable(str(error))}; {HOW}"
        with suppress(OSError), path.open("rb") as file:
            head = file.read(20)
            built_for = MACHINES.get(head[18], "") if len(head) == 20 and head[:4] == b"\x7fELF" else ""
            if built_for and built_for != platform.machine():
                why = f"it is for {built_for}, this is {platform.machine()}; --emulate EMULATOR:ROOT runs it"
        raise MissingDependencyError(f"libggml: cannot load {path}: {why}") from error


MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64", 22: "s390x", 21: "ppc64le"}  # in an ELF header


# --- libraries that are loaded: do they belong to the build that the user named? ------------------
#
# A library that is copied out of its build keeps the path of that build (RUNPATH), and the loader takes its
# neighbours from there. Then another build than the named one would be judged.

ALSO = (
    f"{VARIABLE}_ALSO"  # folders whose libraries belong to any build, with colons (Windows: ;) between them
)
LLAMA = re.compile(r"(?:lib)?llama(?:\.\d+)*\.(?:so|dylib|dll)(?:\.\d+)*$")


def libraries(build: Build) -> list[Path]:
    """Real paths of the files of ggml and llama.cpp in this process, sorted; on Linux."""
    parts = {path.resolve() for path in build.parts.values()}
    return [path for path in mapped() if NAME.match(path.name) or LLAMA.match(path.name) or path in parts]


def homes(build: Build) -> list[Path]:
    """Real folders whose libraries belong to a build.

    The named one with all below it; where the files of the build lie, also if they are links; and beside a
    folder lib or bin the other places of the same build or prefix.
    """
    named = build.named or build.folder
    folders = [named if named.is_dir() else named.parent, *(path.parent for path in build.parts.values())]
    folders += [path.resolve().parent for path in build.parts.values()]
    for folder in dict.fromkeys(folders):
        for place in PLACES[1:]:
            if folder.resolve().parts[-place.count("/") - 1 :] == tuple(place.split("/")):
                prefix = folder.resolve().parents[place.count("/")]
                folders += [prefix / other for other in PLACES[1:]]
    also = [Path(folder).expanduser() for folder in os.environ.get(ALSO, "").split(os.pathsep) if folder]
    return list(dict.fromkeys(folder.resolve() for folder in [*folders, *also]))


def checked(build: Build, *others: Path) -> list[Path]:
    """The loaded libraries; an error where one lies neither in the build nor beside ``others``."""
    loaded = libraries(build)
    allowed = [*homes(build), *(path.resolve().parent for path in others)]
    strangers = [path for path in loaded if not any(path.is_relative_to(folder) for folder in allowed)]
    if strangers:
        paths = ", ".join(map(str, strangers))
        folder, other = build.folder.absolute(), strangers[0].parent
        raise UnsupportedError(
            f"libggml: {build.named or build.folder} has loaded {paths}, which lies outside of it: a library "
            "that is copied out of its build looks for its neighbours there (RUNPATH), and that build would "
            f"be judged. Name it instead, or have the copies come first with LD_LIBRARY_PATH={folder}; if "
            f"both belong together, say so with {ALSO}={other}"
        )
    return loaded


def listed(paths: list[Path]) -> str:
    """The paths in few words: files by folder."""
    folders: dict[Path, list[str]] = {}
    for path in paths:
        folders.setdefault(path.parent, []).append(path.name)
    return "; ".join(f"{folder}: {', '.join(sorted(names))}" for folder, names in folders.items())
