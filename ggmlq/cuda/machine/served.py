"""The code of kernels that comes with the package: machine code for a GPU's own capability, otherwise PTX.

The driver translates PTX for any GPU from the capability on that the kernel declares.
"""

from __future__ import annotations

import re
from pathlib import Path

from ...store.packs import Origin, place_of
from ...store.packs import code as _code

HERE = Path(__file__).parents[1] / "prebuilt"
PTX, FIRST_EARLY = "ptx", (9, 0)  # the folder of PTX; the lowest capability with dependent launches
SERVED = {(9, 0): "sm_90"}  # folders of machine code
TARGET = ".target sm_90"
CLUSTERS, VERSIONS = (
    b"barrier.cluster.arrive.relaxed",
    (b".version 7.8", b".version 8.0"),
)  # the latter has this instruction
# From here on assemblers spill where they are told how many blocks a multiprocessor is to hold, and take far
# fewer registers where they are not. A block of so many threads may have as many registers as a thread can.
UNTOLD, FEW = (12, 0), 256
LIMITS = re.compile(r"\.maxntid (\d+), 1, 1\s*\.minnctapersm ([2-9])\b")


def code_of(origin: Origin, capability: tuple[int, int], exact: bool) -> bytes | None:
    """The package's code of a kernel for a GPU; None where it has none."""
    folder = SERVED.get(capability)
    code = _code(HERE / folder, origin) if folder else None
    if code is None and not exact:
        code = _code(HERE / PTX, origin)
        return None if code is None else for_driver(code, capability)
    return code


def is_served(origin: Origin, capability: tuple[int, int], exact: bool) -> bool:
    """True if :func:`code_of` would find code; nothing is unpacked here."""
    folders = [SERVED[capability]] if capability in SERVED else []
    folders += [] if exact else [PTX]
    return any(place_of(HERE / folder, origin) is not None for folder in folders)


def for_driver(code: bytes, capability: tuple[int, int]) -> bytes:
    """The package's PTX, which was written for 9.0, changed so that a driver takes it for another GPU."""
    if CLUSTERS in code:
        code = code.replace(*VERSIONS)
    if capability >= UNTOLD:
        return LIMITS.sub(_untold, code.decode()).encode()
    if capability >= FIRST_EARLY:
        return code
    text = without_clusters(code.decode())
    for word in ("launch_dependents", "wait"):
        text = text.replace(f"griddepcontrol.{word};", "")
    return text.replace(TARGET, f".target sm_{capability[0]}{capability[1]}").encode()


def _untold(limits: re.Match[str]) -> str:
    return "" if int(limits[1]) <= FEW else limits[0]


def without_clusters(text: str) -> str:
    """PTX for GPUs without clusters: each block is alone there, and code for others is never reached."""
    text = re.sub(r"barrier\.cluster\.[\w.]+;|mapa\.[^;]*;", "", text)
    return text.replace(".shared::cluster", ".shared")
