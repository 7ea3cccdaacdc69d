"""A kernel's code by its key: from a pack of the package, else from the user's disk.

The key is a digest of the definitions that the kernel is compiled from, of its origin, of the machine that
it is compiled for, and of the compilers. Packs say which compilers made them; the disk is read for those at
hand.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cached_property
from importlib import metadata
from pathlib import Path

from . import disk, packs, reach
from .origin import Origin

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

    def _pack(self, origin: Origin, machine: str) -> packs.Pack | None:
        return (
            packs.opened(self.prebuilt / machine / f"{origin.pack}{packs.SUFFIX}") if uses_packs() else None
        )
