"""Machine code and PTX of the GPU's kernels, made in processes; no GPU is needed."""

from __future__ import annotations

import gc
import multiprocessing
import re
from collections.abc import Iterator

from _packs import Wanted

from ggmlq.cuda.driver.coverage import families
from ggmlq.cuda.driver.served import PTX
from ggmlq.store.origin import Origin

CAPABILITY = (9, 0)
OLDEST_ISA = "7.8"  # of PTX, the first that knows 9.0: what drivers of CUDA 11.8 and later read
UNUSED = re.compile(r"^(?:\.common \.global .*NumbaEnv.*|\s*//.*)\n", re.MULTILINE)
Answer = list[tuple[Wanted, bytes | str]]  # code, or an error


def compiled(missing: list[Wanted], jobs: int) -> Iterator[tuple[Wanted, bytes | str]]:
    """The code of kernels, as it is ready."""
    machines: dict[Origin, list[str]] = {}
    for kernel in missing:
        machines.setdefault(kernel.origin, []).append(kernel.machine)
    with multiprocessing.get_context("spawn").Pool(min(jobs, len(machines)), maxtasksperchild=60) as pool:
        for answer in pool.imap_unordered(_code_of, machines.items()):
            yield from answer


def _code_of(task: tuple[Origin, list[str]]) -> Answer:
    """The code of a kernel for some machines."""
    origin, machines = task
    gc.set_threshold(200_000, 50, 50)  # Numba leaves few cycles and many objects: a fifth of the time
    try:
        kernel = families()[origin.family].make(*origin.case)
        text = "" if kernel.lto else kernel.ptx(CAPABILITY)
        answer: Answer = []
        for machine in machines:
            if machine == PTX:
                code = portable(text).encode()
            else:
                code, needs = kernel.assemble(CAPABILITY, text or None)
                if needs.stack:
                    raise ValueError(f"the assembler keeps {needs.stack} bytes on a stack")
            answer.append((Wanted(origin, machine), code))
        return answer
    except Exception as error:  # printed with the others at the end
        return [
            (Wanted(origin, machine), f"{origin}: {type(error).__name__}: {error}") for machine in machines
        ]


def portable(ptx: str) -> str:
    """PTX without the lines that only tools read, for drivers as old as can be."""
    text = UNUSED.sub("", ptx)
    return re.sub(r"^\.version .*$", f".version {OLDEST_ISA}", text, count=1, flags=re.MULTILINE)
