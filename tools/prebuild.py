#!/usr/bin/env python3
"""Write ggmlq/cuda/prebuilt: code of the kernels that products take by themselves, so that nobody waits.

    python tools/prebuild.py              # compile what is missing or has changed, write the packs
    python tools/prebuild.py --check      # compile nothing: exit status 1 if packs are stale
    python tools/prebuild.py --list       # the kernels that belong in

Needs no GPU, and the packages of the extra ``test``. A kernel takes 2 to 20 s; all of them, after a change of
what every kernel is made of, about two hours on one core, ten minutes on 16. What has not changed is
kept. Code that was compiled is kept in build/prebuilt too, so that whoever interrupts this loses little, and
that folder may come from another machine with the same compilers. Run it when kernels have changed, before a
release, not in each run of the tests: those only look at digests.
"""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(Path(__file__).parent))
os.environ["GGMLQ_COMPILE_HERE"] = "1"  # before the words of kernels are imported

from _packs import MACHINE, Wanted, digest, families, fresh_code, versions, wanted, write  # noqa: E402
from _prebuild import command  # noqa: E402

from ggmlq.base.progress import Progress  # noqa: E402
from ggmlq.cuda.machine.served import HERE, PTX  # noqa: E402
from ggmlq.store.packs import Origin  # noqa: E402

CACHE = ROOT / "build" / "prebuilt"
CAPABILITY = (9, 0)
OLDEST_ISA = "7.8"  # of PTX, the first that knows 9.0: what drivers of CUDA 11.8 and later read
UNUSED = re.compile(r"^(?:\.common \.global .*NumbaEnv.*|\s*//.*)\n", re.MULTILINE)
Answer = tuple[Origin, dict[str, bytes] | str]


def code_of(task: tuple[Origin, tuple[str, ...]]) -> Answer:
    """The code of a kernel for some folders, or the error."""
    origin, folders = task
    gc.set_threshold(200_000, 50, 50)  # Numba leaves few cycles and many objects: a fifth of the time
    try:
        kernel = families()[origin.family].make(*origin.case)
        text = "" if kernel.lto else kernel.ptx(CAPABILITY)
        code = {}
        if MACHINE in folders:
            code[MACHINE], needs = kernel.assemble(CAPABILITY, text or None)
            if needs.stack:
                raise ValueError(f"the assembler keeps {needs.stack} bytes on a stack")
        if PTX in folders:
            code[PTX] = portable(text).encode()
        for folder, content in code.items():
            path = place(Wanted(origin, folder))
            partial = path.with_name(f"{path.name}-{os.getpid()}")
            partial.write_bytes(content)
            os.replace(partial, path)
        return origin, code
    except Exception as error:  # printed with the others at the end
        return origin, f"{origin}: {type(error).__name__}: {error}"


def portable(ptx: str) -> str:
    """PTX without the lines that only tools read, for drivers as old as can be."""
    return re.sub(
        r"^\.version .*$", f".version {OLDEST_ISA}", UNUSED.sub("", ptx), count=1, flags=re.MULTILINE
    )


def place(kernel: Wanted) -> Path:
    """The file in which code waits until packs are written, named after its sources and compilers."""
    origin = kernel.origin
    facts = (kernel.folder, str(origin), digest(origin.family, origin.formats), versions())
    return CACHE / hashlib.blake2b(repr(facts).encode(), digest_size=12).hexdigest()


def compiled(missing: list[Wanted], jobs: int) -> Iterator[Answer]:
    """The code of all kernels that are missing, made in processes."""
    folders: dict[Origin, list[str]] = {}
    for kernel in missing:
        folders.setdefault(kernel.origin, []).append(kernel.folder)
    tasks = [(origin, tuple(names)) for origin, names in folders.items()]
    bar = Progress(len(tasks), "compiling", "kernel")
    with multiprocessing.get_context("spawn").Pool(min(jobs, len(tasks)), maxtasksperchild=60) as pool:
        for answer in pool.imap_unordered(code_of, tasks):
            bar.advance(1)
            yield answer
    bar.close()


def build(only: str, jobs: int) -> int:
    """Compile what has changed and write the packs; the exit status."""
    begun = time.monotonic()
    code = fresh_code()
    here = len(code)
    CACHE.mkdir(parents=True, exist_ok=True)
    for kernel in wanted():
        if kernel not in code and (path := place(kernel)).exists():
            code[kernel] = path.read_bytes()
    missing = [kernel for kernel in wanted() if kernel not in code and only in str(kernel.origin)]
    print(f"{here} in the packs, {len(code) - here} in {CACHE}, {len(missing)} to compile", flush=True)
    failed = []
    if missing:
        for origin, answer in compiled(missing, jobs):
            if isinstance(answer, str):
                failed.append(answer)
            else:
                code |= {Wanted(origin, folder): content for folder, content in answer.items()}
    write(code)
    print(f"wrote {len(code)} kernels in {time.monotonic() - begun:.0f} s")
    print(*failed, sep="\n")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(command(__doc__, wanted(), HERE, build))
