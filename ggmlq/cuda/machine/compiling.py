"""A function for the GPU, and how Numba and nvJitLink make machine code of it; neither needs a GPU.

What stands here is part of every kernel: a change makes all prebuilt code old (ggmlq/store/reach.py).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from ..intrinsics.language import cuda, types

EARLY, WAITS = (9, 0), "griddepcontrol.wait"
UNKNOWN = "UNRECOGNIZED_ARCH"  # what nvJitLink says of a capability newer than itself


class Resources(NamedTuple):
    """What the assembler says about a kernel."""

    registers: int
    stack: int  # bytes of local memory, spills included
    shared: int  # bytes of static shared memory


class Compiled:
    """A function with the types of its parameters and what its code depends on."""

    name: str
    function: Callable[..., None]
    parameters: tuple[Any, ...]
    threads: int
    blocks: int
    exact: bool
    early: bool
    lto: bool

    def ptx(self, capability: tuple[int, int]) -> str:
        """The kernel in PTX, under the name ``kernel``."""
        text = self._compiled(capability, "ptx")
        entry = re.search(r"\.entry (\w+)", text)
        assert entry is not None
        assert self.early == (WAITS in text), self.name
        if capability < EARLY:
            text = without_dependent_launch(text)
        return str(text.replace(entry[1], "kernel"))

    def _compiled(self, capability: tuple[int, int], output: str) -> Any:
        """What Numba makes of the function: PTX or LTO IR."""
        made, _ = cuda.compile(
            self.function, types.void(*self.parameters), cc=(*capability, "a") if self.exact else capability,
            device=False, abi="numba", launch_bounds=(self.threads, self.blocks), output=output,
        )  # fmt: skip
        return made

    def assemble(self, capability: tuple[int, int], ptx: str | None = None) -> tuple[bytes, Resources]:
        """Machine code for a capability (of this PTX, if it is there already), and what it needs."""
        code, said = self.linked(capability, ptx)
        used = re.search(r"used (\d+) registers.*?(\d+) stack(?:, (\d+) bytes smem)?", said)
        if used is not None:
            return code, Resources(int(used[1]), int(used[2]), int(used[3] or 0))
        used = re.search(r"Used (\d+) registers", said)
        kept = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill", said)
        assert used is not None, said
        assert kept is not None, said
        return code, Resources(int(used[1]), max(int(kept[1]), int(kept[2])), 0)

    def linked(self, capability: tuple[int, int], ptx: str | None = None) -> tuple[bytes, str]:
        """Machine code, and all that the assembler says."""
        core: Any = importlib.import_module("cuda.core")

        arch = "sm_" + dotted(capability).replace(".", "") + ("a" if self.exact else "")
        options = core.LinkerOptions(arch=arch, verbose=True, link_time_optimization=self.lto or None)
        if self.lto:
            given = core.ObjectCode.from_ltoir(bytes(self._compiled(capability, "ltoir")))
        else:
            given = core.ObjectCode.from_ptx((ptx or self.ptx(capability)).encode())
        linker = core.Linker(given, options=options)
        code = bytes(linker.link("cubin").code)
        return code, str(linker.get_info_log()).replace("\0", "")

    def code(self, capability: tuple[int, int]) -> bytes:
        """What the driver loads: machine code; for a GPU that nvJitLink does not know yet, PTX.

        Numba writes that for the highest capability below that it knows, and the driver translates it.
        """
        if self.lto:
            return self.linked(capability)[0]
        text = self.ptx(capability)
        try:
            return self.assemble(capability, text)[0]
        except Exception as error:
            if self.exact or UNKNOWN not in str(error):
                raise
            return text.encode()


def without_dependent_launch(ptx: str) -> str:
    """The same PTX for GPUs where no kernel starts before its predecessor has ended."""
    return re.sub(r"griddepcontrol\.\w+;", "", ptx)


def name_in(code: bytes) -> str:
    """The name of the one kernel in machine code: LTO keeps what Numba called it."""
    found = re.search(rb"\.text\.(\w+)\0", code)
    assert found is not None
    return found[1].decode()


def dotted(capability: tuple[int, int]) -> str:
    """``9.0``."""
    return ".".join(map(str, capability))
