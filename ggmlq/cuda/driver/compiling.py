"""Compiles a kernel's Python function to machine code, by Numba and nvJitLink; neither needs a GPU.

This file is part of every kernel: a change makes all prebuilt code stale (ggmlq/store/reach.py).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from ..intrinsics.language import cuda, types

EARLY, WAITS = (9, 0), "griddepcontrol.wait"
UNKNOWN = "UNRECOGNIZED_ARCH"  # nvJitLink's error for a capability newer than itself


class Resources(NamedTuple):
    """The registers and the memory of a kernel, as the assembler reports them."""

    registers: int
    stack: int  # bytes of local memory, spills included
    shared: int  # bytes of static shared memory


class Compiled:
    """A function with the types of its parameters, and all else that its code depends on."""

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
        """Numba's output for the function: PTX or LTO IR."""
        output_code, _ = cuda.compile(
            self.function, types.void(*self.parameters), cc=(*capability, "a") if self.exact else capability,
            device=False, abi="numba", launch_bounds=(self.threads, self.blocks), output=output,
        )  # fmt: skip
        return output_code

    def assemble(self, capability: tuple[int, int], ptx: str | None = None) -> tuple[bytes, Resources]:
        """Machine code for a capability (of this PTX, if there is one already), and its resources."""
        code, report = self.linked(capability, ptx)
        facts = re.search(r"used (\d+) registers.*?(\d+) stack(?:, (\d+) bytes smem)?", report)
        if facts is not None:
            return code, Resources(int(facts[1]), int(facts[2]), int(facts[3] or 0))
        facts = re.search(r"Used (\d+) registers", report)
        spills = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill", report)
        assert facts is not None, report
        assert spills is not None, report
        return code, Resources(int(facts[1]), max(int(spills[1]), int(spills[2])), 0)

    def linked(self, capability: tuple[int, int], ptx: str | None = None) -> tuple[bytes, str]:
        """Machine code, and the assembler's report."""
        core: Any = importlib.import_module("cuda.core")

        arch = "sm_" + dotted(capability).replace(".", "") + ("a" if self.exact else "")
        options = core.LinkerOptions(arch=arch, verbose=True, link_time_optimization=self.lto or None)
        if self.lto:
            source = core.ObjectCode.from_ltoir(bytes(self._compiled(capability, "ltoir")))
        else:
            source = core.ObjectCode.from_ptx((ptx or self.ptx(capability)).encode())
        linker = core.Linker(source, options=options)
        code = bytes(linker.link("cubin").code)
        return code, str(linker.get_info_log()).replace("\0", "")

    def code(self, capability: tuple[int, int]) -> bytes:
        """Code that the driver loads: machine code; for a GPU that nvJitLink does not know yet, PTX.

        Numba writes that PTX for the highest capability below that it knows, and the driver translates it.
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
    """PTX for GPUs where no kernel starts before its predecessor has ended."""
    return re.sub(r"griddepcontrol\.\w+;", "", ptx)


def name_in(code: bytes) -> str:
    """The name of the one kernel in machine code: LTO keeps what Numba called it."""
    name = re.search(rb"\.text\.(\w+)\0", code)
    assert name is not None
    return name[1].decode()


def dotted(capability: tuple[int, int]) -> str:
    """A capability as people write it: ``9.0``."""
    return ".".join(map(str, capability))
