#!/usr/bin/env python3
"""Write ggmlq/cpu/prebuilt: code of the kernels that products on a CPU take, so that nobody waits.

    python tools/prebuild_cpu.py              # compile what is missing or has changed, write the packs
    python tools/prebuild_cpu.py --check      # compile nothing: exit status 1 if packs are stale
    python tools/prebuild_cpu.py --list       # the kernels that belong in

Any machine with Linux compiles for all levels, whatever its own CPU is. A kernel takes 1 to 8 s,
all of them 20 minutes of one core; what has not changed is kept. Run it when kernels have changed,
before a release, not in each run of the tests: those only look at digests.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(Path(__file__).parent))

from _cross import aim  # noqa: E402
from _packs import Wanted, fresh_code, write  # noqa: E402
from _packs_cpu import wanted  # noqa: E402
from _prebuild import command  # noqa: E402

from ggmlq.base.progress import Progress  # noqa: E402
from ggmlq.cpu.machine.levels import LEVELS, Level  # noqa: E402
from ggmlq.cpu.machine.loading import sealed  # noqa: E402
from ggmlq.cpu.machine.served import HERE, SWITCH  # noqa: E402

SETTINGS = {"GGMLQ_CACHE_DIR": "off", SWITCH: "off"}


def code_of(kernel: Wanted) -> tuple[Wanted, bytes | str]:
    """The code of a kernel, or the error; in a process of its level."""
    from _objects import object_of
    from numba import types

    origin, folder = kernel
    level = next(level for level in LEVELS if level.folder == folder).of(origin.family)
    file, _, name = origin.family.rpartition(".")
    try:
        function = getattr(import_module(file), name)(*origin.case)
        return kernel, sealed(str(origin), object_of(function, (types.int64,) * 3, level))
    except Exception as error:  # printed with the others at the end
        return kernel, f"{folder}: {origin}: {type(error).__name__}: {error}"


def compiled(level: Level, missing: list[Wanted], jobs: int, bar: Progress) -> dict[Wanted, bytes | str]:
    """The code of a level's kernels, made in processes in which Numba compiles for it."""
    code = {}
    os.environ.update(SETTINGS | {"NUMBA_CPU_NAME": level.cpu, "NUMBA_CPU_FEATURES": level.text})
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(jobs, len(missing)), aim, (level,), maxtasksperchild=60) as pool:
        for kernel, answer in pool.imap_unordered(code_of, missing):
            code[kernel] = answer
            bar.advance(1)
    return code


def build(only: str, jobs: int) -> int:
    """Compile what has changed and write the packs; the exit status."""
    begun = time.monotonic()
    code: dict[Wanted, bytes] = fresh_code(HERE, wanted())
    missing = [k for k in wanted() if k not in code and only in f"{k.folder}: {k.origin}"]
    print(f"{len(code)} in the packs, {len(missing)} to compile", flush=True)
    failed: list[str] = []
    bar = Progress(len(missing), "compiling", "kernel")
    for level in LEVELS:
        kinds: dict[Level, list[Wanted]] = {}
        for kernel in missing:
            if kernel.folder == level.folder:
                kinds.setdefault(level.of(kernel.origin.family), []).append(kernel)
        for kind, kernels in kinds.items():
            for kernel, answer in compiled(kind, kernels, jobs, bar).items():
                if isinstance(answer, str):
                    failed.append(answer)
                else:
                    code[kernel] = answer
            write(code, HERE)  # what is there already is not lost to an interrupt
    bar.close()
    write(code, HERE)
    print(f"wrote {len(code)} kernels in {time.monotonic() - begun:.0f} s")
    print(*failed, sep="\n")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(command(__doc__, wanted(), HERE, build))
