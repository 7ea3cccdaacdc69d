#!/usr/bin/env python3
"""Machine code of the PTX that comes with the package, for every GPU: does it assemble, without a stack?

    python tools/assemble.py [--capabilities 7.5,8.6,12.0] [--only TEXT]

Drivers of GPUs other than Hopper get this PTX (ggmlq/cuda/driver/served.py). nvJitLink assembles it here; no
GPU is needed. All of it takes some four minutes on one core; the tests draw a few. Kernels that want more
shared memory than such a GPU gives to a block are never launched there, and left out.

A driver makes whole programs. nvJitLink makes code to be linked: before 9.0 that calls functions (of a warp's
barrier, of a shuffle), and a stack keeps what they may change. Where it has one, ptxas judges, which makes
whole programs too; without it, such a stack may be small.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(Path(__file__).parent))
os.environ["GGMLQ_COMPILE_HERE"] = "1"  # before the words of kernels are imported

from _kernels_cuda import families, wanted  # noqa: E402
from _packs import fresh_code  # noqa: E402

from ggmlq.cuda.driver.served import PTX, STORE, for_driver  # noqa: E402
from ggmlq.store.origin import Origin  # noqa: E402

REGISTERS = 1 << 16  # of a multiprocessor
Capability = tuple[int, int]
SPILL = 16  # bytes of stack that are no error: up to four registers of a kernel that has all it may have
CALLS, FIRST_WITHOUT = 128, (9, 0)  # where ptxas cannot judge: of code to be linked, before this capability
# Bytes of shared memory that a block may have, by capability: the CUDA programming guide's table.
ROOM = {(7, 5): 64, (8, 0): 163, (8, 6): 99, (8, 9): 99, (9, 0): 227, (10, 0): 227, (12, 0): 99}


def able(kernel: Any, capability: Capability) -> bool:
    """True where a kernel may be launched on GPUs of a capability."""
    return bool(kernel.least <= capability and kernel.shared <= ROOM[capability] << 10)


def blocks(kernel: Any, capability: Capability) -> int:
    """The blocks of a kernel that a multiprocessor is to hold: as many as shared memory has room for."""
    return min(kernel.blocks, ((ROOM[capability] + 1) << 10) // (kernel.shared + (1 << 10)))


def assembled(code: bytes, capability: Capability) -> tuple[bytes, int, int]:
    """Machine code of PTX as a driver gets it; its registers; bytes of stack."""
    core = importlib.import_module("cuda.core")
    options = core.LinkerOptions(arch="sm_{}{}".format(*capability), verbose=True)
    linker = core.Linker(core.ObjectCode.from_ptx(for_driver(code, capability)), options=options)
    machine = bytes(linker.link("cubin").code)
    log = str(linker.get_info_log()).replace("\0", "")
    used = re.search(r"used (\d+) registers.*?(\d+) stack", log)
    assert used is not None, log
    return machine, int(used[1]), int(used[2])


def stack_of_program(code: bytes, capability: Capability) -> int | None:
    """Bytes of stack of PTX that ptxas assembles as a whole program; None where no ptxas can."""
    assembler = shutil.which("ptxas")
    if assembler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        (place := Path(folder) / "kernel.ptx").write_bytes(for_driver(code, capability).rstrip(b"\0"))
        target = "-arch=sm_{}{}".format(*capability)
        command = [assembler, "-v", target, str(place), "-o", str(place.with_suffix(".cubin"))]
        log = subprocess.run(command, check=False, capture_output=True, text=True).stderr
    used = re.search(r"(\d+) bytes stack", log)
    return None if used is None else int(used[1])  # a ptxas older than the GPU or the PTX says an error


def problem(origin: Origin, code: bytes, capability: Capability) -> str | None:
    """The error of a kernel on GPUs of a capability, or None."""
    kernel = families()[origin.family].make(*origin.case)
    if not able(kernel, capability):
        return None
    try:
        machine, registers, stack = assembled(code, capability)
    except Exception as error:  # of nvJitLink, for one kernel: the others are looked at all the same
        return f"{type(error).__name__}: {error}"
    if machine[:4] != b"\x7fELF":
        return "no machine code"
    whole = stack_of_program(code, capability) if stack > SPILL else stack
    most_stack = CALLS if whole is None and capability < FIRST_WITHOUT else SPILL
    if (stack if whole is None else whole) > most_stack:
        return f"{stack} bytes of stack; as a whole program: {whole}"
    most = REGISTERS // (kernel.threads * blocks(kernel, capability))
    return f"{registers} registers, there are {most}" if registers > most else None


def problems(capabilities: list[Capability], only: str = "") -> Iterator[str]:
    """A line for each error of a kernel in the packs."""
    for (origin, machine), code in fresh_code(STORE.prebuilt, wanted()).items():
        if machine == PTX and only in str(origin):
            for capability in capabilities:
                if error := problem(origin, code, capability):
                    yield f"{origin} for {capability[0]}.{capability[1]}: {error}"


def main() -> int:
    """Look at all kernels, print what is wrong; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = ",".join("{}.{}".format(*capability) for capability in ROOM)
    parser.add_argument("--capabilities", default=names, help=f"some of {names}")
    parser.add_argument("--only", default="", metavar="TEXT", help="kernels with this in their name")
    args = parser.parse_args()
    listed = [tuple(map(int, name.split("."))) for name in args.capabilities.split(",")]
    status = 0
    for line in problems(listed, args.only):
        print(line, flush=True)
        status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
