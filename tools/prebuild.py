#!/usr/bin/env python3
"""Write ggmlq/cuda/prebuilt: code of the kernels that products take by themselves, so that nobody waits.

    python tools/prebuild.py              # compile what is missing or has changed, write the packs
    python tools/prebuild.py --check      # compile nothing: 1 if packs and sources do not agree
    python tools/prebuild.py --list       # what belongs in

Needs no GPU, and the packages of the extra ``test``. A kernel takes 2 to 20 s; all of them, after a change of
what every kernel is made of, about two hours on one core, ten minutes on 16. What has not changed is
kept. Code that was compiled is kept in build/prebuilt too, so that whoever interrupts this loses little, and
that folder may come from another machine with the same compilers. Run it when kernels have changed, before a
release, not in each run of the tests: those only look at digests.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
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

from _packs import (  # noqa: E402
    MACHINE,
    Wanted,
    digest,
    families,
    kept,
    looked_away,
    names,
    problems,
    versions,
    wanted,
    write,
)

from ggmlq.base.progress import Progress  # noqa: E402
from ggmlq.cuda.machine.served import PTX  # noqa: E402
from ggmlq.store.packs import Origin  # noqa: E402

CACHE = ROOT / "build" / "prebuilt"
CAPABILITY = (9, 0)
OLDEST_ISA = "7.8"  # of PTX, the first that knows 9.0: what drivers of CUDA 11.8 and later read
UNUSED = re.compile(r"^(?:\.common \.global .*NumbaEnv.*|\s*//.*)\n", re.MULTILINE)
Answer = tuple[Origin, dict[str, bytes] | str]


def made(task: tuple[Origin, tuple[str, ...]]) -> Answer:
    """The code of a kernel for some folders, or what went wrong."""
    origin, folders = task
    gc.set_threshold(200_000, 50, 50)  # Numba leaves few cycles and many objects: a fifth of the time
    try:
        kernel = families()[origin.family].make(*origin.case)
        text = "" if kernel.lto else kernel.ptx(CAPABILITY)
        found = {}
        if MACHINE in folders:
            found[MACHINE], needs = kernel.assemble(CAPABILITY, text or None)
            if needs.stack:
                raise ValueError(f"the assembler keeps {needs.stack} bytes on a stack")
        if PTX in folders:
            found[PTX] = portable(text).encode()
        for folder, content in found.items():
            path = place(Wanted(origin, folder))
            partial = path.with_name(f"{path.name}-{os.getpid()}")
            partial.write_bytes(content)
            os.replace(partial, path)
        return origin, found
    except Exception as error:  # told with the others at the end
        return origin, f"{origin}: {type(error).__name__}: {error}"


def portable(ptx: str) -> str:
    """PTX without what only tools look at, for drivers as old as can be."""
    return re.sub(
        r"^\.version .*$", f".version {OLDEST_ISA}", UNUSED.sub("", ptx), count=1, flags=re.MULTILINE
    )


def place(each: Wanted) -> Path:
    """Where code waits until packs are written: under what it is made of."""
    facts = (each.folder, str(each.origin), digest(each.origin.family, each.origin.formats), versions())
    return CACHE / hashlib.blake2b(repr(facts).encode(), digest_size=12).hexdigest()


def compiled(missing: list[Wanted], jobs: int) -> Iterator[Answer]:
    """All of them, in processes."""
    folders: dict[Origin, list[str]] = {}
    for each in missing:
        folders.setdefault(each.origin, []).append(each.folder)
    tasks = [(origin, tuple(own)) for origin, own in folders.items()]
    bar = Progress(len(tasks), "compiling", "kernel")
    with multiprocessing.get_context("spawn").Pool(min(jobs, len(tasks)), maxtasksperchild=60) as pool:
        for answer in pool.imap_unordered(made, tasks):
            bar.advance(1)
            yield answer
    bar.close()


def build(only: str, jobs: int) -> int:
    """Compile what has changed and write the packs; the exit status."""
    begun = time.monotonic()
    code = kept()
    here = len(code)
    CACHE.mkdir(parents=True, exist_ok=True)
    for each in wanted():
        if each not in code and (path := place(each)).exists():
            code[each] = path.read_bytes()
    missing = [each for each in wanted() if each not in code and only in str(each.origin)]
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


def check(as_json: bool) -> int:
    """Say where packs and sources do not agree; the exit status."""
    found, others = problems(), looked_away()
    if as_json:
        print(json.dumps({**found, "changed elsewhere": others}, indent=1))
    else:
        print("\n".join(names(found)) or "packs and sources agree")
        if others:
            print(
                f"{len(others)} files changed elsewhere than in kernels: a run writes files.json, in seconds"
            )
    return int(any(found.values()))


def main() -> int:
    """Do as asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="say what is missing or has changed")
    parser.add_argument("--list", action="store_true", help="say what belongs in")
    parser.add_argument("--json", action="store_true", help="with --check: as JSON")
    parser.add_argument("--only", default="", metavar="TEXT", help="compile kernels with this in their name")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: all cores")
    args = parser.parse_args()
    if args.list:
        print(*(f"{each.folder}: {each.origin}" for each in wanted()), sep="\n")
        return 0
    if args.check:
        return check(args.json)
    return build(args.only, max(args.jobs, 1))


if __name__ == "__main__":
    sys.exit(main())
