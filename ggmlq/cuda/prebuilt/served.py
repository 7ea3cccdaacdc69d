"""Which packs serve a GPU: code for its own capability, then PTX.

The driver translates PTX for any GPU from the capability on that the kernel declares.
"""

from __future__ import annotations

from pathlib import Path

from ...prebuilt.packs import Origin
from ...prebuilt.packs import code as _code

HERE = Path(__file__).parent
PTX, FIRST_EARLY = "ptx", (9, 0)  # the folder of what drivers translate; from where on kernels start early
SERVED = {(9, 0): "sm_90"}  # folders of machine code
TARGET = ".target sm_90"


def found(origin: Origin, capability: tuple[int, int], exact: bool) -> bytes | None:
    """The code of a kernel for a GPU, or None."""
    own = SERVED.get(capability)
    code = _code(HERE / own, origin) if own else None
    if code is None and not exact:
        code = _code(HERE / PTX, origin)
        return None if code is None else for_driver(code, capability)
    return code


def for_driver(code: bytes, capability: tuple[int, int]) -> bytes:
    """PTX, written for 9.0, as a driver takes it for another GPU."""
    if capability >= FIRST_EARLY:
        return code
    text = code.decode()
    for word in ("launch_dependents", "wait"):
        text = text.replace(f"griddepcontrol.{word};", "")
    return text.replace(TARGET, f".target sm_{capability[0]}{capability[1]}").encode()
