#!/usr/bin/env python3
"""Write ggmlq/cpu/prebuilt: code of the kernels that products on a CPU take, so that nobody waits.

    python tools/prebuild_cpu.py              # compile what is missing or has changed, write the packs
    python tools/prebuild_cpu.py --check      # compile nothing: 1 if packs and sources do not agree
    python tools/prebuild_cpu.py --list       # what belongs in

Any machine with Linux compiles for all levels, whatever its own CPU is. A kernel takes 1 to 8 s,
all of them 20 minutes of one core; what has not changed is kept. Run it when kernels have changed,
before a release, not in each run of the tests: those only look at digests.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(Path(__file__).parent))

import _packs_cpu as _cpu  # noqa: E402
from _cross import aim  # noqa: E402
from _packs import Wanted, kept, looked_away, names, problems, write  # noqa: E402

from ggmlq.base.progress import Progress  # noqa: E402
from ggmlq.cpu.machine.levels import LEVELS, Level  # noqa: E402
from ggmlq.cpu.machine.loading import sealed  # noqa: E402
from ggmlq.cpu.machine.served import HERE, SWITCH  # noqa: E402

SETTINGS = {"GGMLQ_CACHE_DIR": "off", SWITCH: "off"}


def made(each: Wanted) -> tuple[Wanted, bytes | str]:
    """The code of a kernel, or what went wrong; in a process of its level."""
    from _objects import object_of
    from numba import types

    level = next(level for level in LEVELS if level.folder == each.folder).of(each.origin.family)
    file, _, name = each.origin.family.rpartition(".")
    try:
        kernel = getattr(import_module(file), name)(*each.origin.case)
        return each, sealed(str(each.origin), object_of(kernel, (types.int64,) * 3, level))
    except Exception as error:  # told with the others at the end
        return each, f"{each.folder}: {each.origin}: {type(error).__name__}: {error}"


def compiled(level: Level, missing: list[Wanted], jobs: int, bar: Progress) -> dict[Wanted, bytes | str]:
    """All of a level, in processes that Numba is told in to compile for it."""
    found = {}
    os.environ.update(SETTINGS | {"NUMBA_CPU_NAME": level.cpu, "NUMBA_CPU_FEATURES": level.text})
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(jobs, len(missing)), aim, (level,), maxtasksperchild=60) as pool:
        for each, answer in pool.imap_unordered(made, missing):
            found[each] = answer
            bar.advance(1)
    return found


def build(only: str, jobs: int) -> int:
    """Compile what has changed and write the packs; the exit status."""
    begun = time.monotonic()
    code: dict[Wanted, bytes] = kept(HERE, _cpu.wanted())
    missing = [each for each in _cpu.wanted() if each not in code and only in f"{each.folder}: {each.origin}"]
    print(f"{len(code)} in the packs, {len(missing)} to compile", flush=True)
    failed: list[str] = []
    bar = Progress(len(missing), "compiling", "kernel")
    for level in LEVELS:
        of_level = [each for each in missing if each.folder == level.folder]
        for kind in dict.fromkeys(level.of(each.origin.family) for each in of_level):
            own = [each for each in of_level if level.of(each.origin.family) == kind]
            for each, answer in compiled(kind, own, jobs, bar).items():
                if isinstance(answer, str):
                    failed.append(answer)
                else:
                    code[each] = answer
            write(code, HERE)  # what is there already is not lost to an interrupt
    bar.close()
    write(code, HERE)
    print(f"wrote {len(code)} kernels in {time.monotonic() - begun:.0f} s")
    print(*failed, sep="\n")
    return bool(failed)


def check(as_json: bool) -> int:
    """Say where packs and sources do not agree; the exit status."""
    found, others = problems(HERE, _cpu.wanted()), looked_away(HERE)
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
        print(*(f"{each.folder}: {each.origin}" for each in _cpu.wanted()), sep="\n")
        return 0
    if args.check:
        return check(args.json)
    return build(args.only, max(args.jobs, 1))


if __name__ == "__main__":
    sys.exit(main())
