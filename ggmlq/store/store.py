"""A kernel's code by its key: from a pack of the package, else from the user's disk.

The key is a digest of the definitions that the kernel is compiled from, of its origin, of the machine that
it is compiled for, and of the compilers. Packs say which compilers made them; the disk is read for those at
hand.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import warnings
from collections.abc import Callable
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from . import disk, reach
from .origin import Origin

# --- packs: kernels that come with the package, the read-only part ---------------------------
# A pack holds the kernels of a rung or of a room for one machine, whose name is that of its folder. It is a
# line of JSON, then the code, then a digest of all before:
#
#     {"pack": "sm_90/linear.r13_gemv", "compilers": "numba 0.68.1, …", "chunks": [[0, 90112], …],
#      "kernels": {"ggmlq.cuda.ladder.linear.r13_gemv.kernel(…)": ["<key>", 0, 24480, 20864], …}}
#
# Kernels that are alike lie side by side and are compressed together, in chunks of about four megabytes:
# one is unpacked in 10 to 25 ms. A number of a kernel's entry is its chunk, the next two are its place and
# size there.
# A pack that is damaged, or of another machine, is not used: a warning says so, and its kernels are compiled.

SUFFIX = ".pack"
SEAL = 16  # bytes of the digest at the end
CHUNK = 1 << 22  # bytes of code that are compressed together


class Pack(NamedTuple):
    """A pack, read up to its code."""

    path: Path
    compilers: str
    kernels: dict[str, list[Any]]  # by origin: key, chunk, first byte, size
    chunks: tuple[tuple[int, int], ...]  # place in the file and size

    def holds(self, origin: str, key: str) -> bool:
        """True where the pack has a kernel's code of today's sources; nothing is unpacked."""
        return bool(self.kernels.get(origin, [""])[0] == key)

    def load(self, origin: str, key: str) -> bytes | None:
        """A kernel's code; None where it is not there, or of other sources."""
        if not self.holds(origin, key):
            return None
        _, number, first, size = self.kernels[origin]
        return _unpacked(self.path, *self.chunks[number])[first : first + size]


@cache
def opened(path: Path) -> Pack | None:
    """A pack; None where there is none, or one that cannot be used."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    try:
        return _read(path, content)
    except (ValueError, LookupError, TypeError) as error:
        warnings.warn(
            f"{path} is not used: {error}; its kernels are compiled when first used, or install ggmlq again",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def _read(path: Path, content: bytes) -> Pack:
    if seal(content[:-SEAL]) != content[-SEAL:]:
        raise ValueError("the file is damaged")
    line, _, _ = content.partition(b"\n")
    header = json.loads(line)
    if header["pack"] != name_of(path):
        raise ValueError(f"it is the pack {header['pack']}, not {name_of(path)}")
    start = len(line) + 1
    chunks = tuple((start + first, size) for first, size in header["chunks"])
    return Pack(path, header["compilers"], header["kernels"], chunks)


def name_of(path: Path) -> str:
    """The name of a pack: its machine and its rung or room."""
    return f"{path.parent.name}/{path.stem}"


def seal(content: bytes) -> bytes:
    """The digest that a pack ends with."""
    return hashlib.blake2b(content, digest_size=SEAL).digest()


@lru_cache(8)
def _unpacked(path: Path, first: int, size: int) -> bytes:
    """The code of a chunk; of a few, because a product asks for several kernels."""
    with path.open("rb") as file:
        file.seek(first)
        return lzma.decompress(file.read(size), lzma.FORMAT_XZ)


def examine(prebuilt: Path, machine: str) -> dict[str, Any]:
    """A report on the packs of a machine: their number, kernels, bytes, compilers and a digest of all."""
    paths = sorted((prebuilt / machine).glob(f"*{SUFFIX}"))
    usable = [pack for path in paths if (pack := opened(path)) is not None]
    digest = hashlib.blake2b(b"".join(path.read_bytes()[-SEAL:] for path in paths), digest_size=8)
    return {
        "machine": machine,
        "packs": len(usable),
        "kernels": sum(len(pack.kernels) for pack in usable),
        "bytes": sum(path.stat().st_size for path in paths),
        "compilers": sorted({pack.compilers for pack in usable}),
        "digest": digest.hexdigest(),
        "refused": [str(path) for path in paths if opened(path) is None],
    }


# --- a kernel by its key ---------------------------------------------------------------------

SWITCH = "GGMLQ_PREBUILT"  # "off": no code of the package


def key_of(origin: Origin, machine: str, compilers: str) -> str | None:
    """The key of a kernel's code; None where its sources are not there, so that nothing can be stored."""
    return key_by_name(str(origin), origin.formats, machine, compilers)


def key_by_name(name: str, formats: tuple[str, ...], machine: str, compilers: str) -> str | None:
    """The key of a kernel by its origin as text, with the formats that it is made for."""
    digest = reach.digest(name.partition("(")[0], formats)
    if digest == reach.UNKNOWN:
        return None
    facts = "\0".join((digest, name, machine, compilers))
    return hashlib.blake2b(facts.encode(), digest_size=16).hexdigest()


def versions(*names: str) -> str:
    """The installed packages among these with their versions: the compilers of a key."""
    from importlib import metadata  # slow to import, and few ask for it

    return ", ".join(
        f"{name} {metadata.version(name)}" for name in names if any(metadata.distributions(name=name))
    )


def uses_packs() -> bool:
    """True unless the environment says that no code of the package is used."""
    return os.environ.get(SWITCH, "") != "off"


class Store:
    """The kernels of a device: packs in the folders of ``prebuilt``, and the user's disk."""

    def __init__(self, prebuilt: Path, compilers: Callable[[], str]) -> None:
        self.prebuilt = prebuilt
        self._compilers = compilers

    @cached_property
    def compilers(self) -> str:
        """The compilers of this process."""
        return self._compilers()

    def packaged(self, origin: Origin, machine: str) -> bytes | None:
        """The package's code of a kernel for a machine."""
        pack = self._pack(origin, machine)
        key = pack and key_of(origin, machine, pack.compilers)
        return pack.load(str(origin), key) if pack and key else None

    def has_packaged(self, origin: Origin, machine: str) -> bool:
        """True if :meth:`packaged` would return code; nothing is unpacked."""
        pack = self._pack(origin, machine)
        key = pack and key_of(origin, machine, pack.compilers)
        return bool(pack and key and pack.holds(str(origin), key))

    def load(self, origin: Origin, machine: str) -> bytes | None:
        """The code that this machine's compilers made of a kernel before, from the disk."""
        entry = self._entry(origin, machine)
        return disk.here().load(entry) if entry else None

    def save(self, origin: Origin, machine: str, code: bytes) -> None:
        """Write a kernel's code to the disk, if it can be written to."""
        if entry := self._entry(origin, machine):
            disk.here().save(entry, code)

    def _entry(self, origin: Origin, machine: str) -> str | None:
        """The name of a kernel's entry on the disk: for people, then the key."""
        key = key_of(origin, machine, self.compilers)
        return key and f"{machine}-{origin.family.removeprefix('ggmlq.')}-{key}"

    def _pack(self, origin: Origin, machine: str) -> Pack | None:
        return opened(self.prebuilt / machine / f"{origin.pack}{SUFFIX}") if uses_packs() else None
