#!/usr/bin/env python3
"""Write the packs of compiled kernels that come with the package, so that no first product waits.

    python tools/prebuild.py              # compile what is missing or stale, write the packs
    python tools/prebuild.py --check      # compile nothing: exit status 1 if a pack is stale
    python tools/prebuild.py --list       # the kernels that belong in
    python tools/prebuild.py --only gemv  # compile those with this in their name alone
    python tools/prebuild.py --verify     # compile what is in packs again: exit status 1 if code differs

Run it once for a whole piece of work, as its last commit. Between, a stale kernel is compiled when it is
first used, and tools/test names it. After a merge of two branches that touched packs, take either side's
packs and run it: nothing in a pack is merged.

It needs no GPU, and the packages of the extra ``test``. A kernel takes 2 to 20 s, all of them about five
hours of one core, 20 minutes of 16; what is not stale stays. Code waits in build/prebuilt until packs are
written, so an interrupted run goes on where it was, and that folder may come from another machine with the
same compilers, such as one with 16 cores.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from secrets import randbelow

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(Path(__file__).parent))
os.environ["GGMLQ_COMPILE_HERE"] = "1"  # before the words of kernels are imported

import _compile_cpu  # noqa: E402
import _compile_cuda  # noqa: E402
import _kernels_cpu  # noqa: E402
import _kernels_cuda  # noqa: E402
import _verify  # noqa: E402
from _packs import Wanted, fresh_code, held, write, write_digests  # noqa: E402

from ggmlq.base.progress import Progress  # noqa: E402
from ggmlq.cpu.machine import served as cpu  # noqa: E402
from ggmlq.cuda.driver import served as cuda  # noqa: E402
from ggmlq.store.disk import Disk  # noqa: E402
from ggmlq.store.store import Store, key_of  # noqa: E402

SIDES = (
    (cuda.STORE, _kernels_cuda.wanted, _compile_cuda.compiled),
    (cpu.STORE, _kernels_cpu.wanted, _compile_cpu.compiled),
)


def place(kernel: Wanted, store: Store) -> str:
    """The name under which a kernel's code waits until packs are written."""
    return key_of(kernel.origin, kernel.machine, store.compilers) or ""


def build(only: str, jobs: int) -> int:
    """Compile what is missing or stale and write the packs; the exit status."""
    begun, waiting = time.monotonic(), Disk(ROOT / "build" / "prebuilt")
    failed: list[str] = []
    for store, wanted, compiled in SIDES:
        code = fresh_code(store.prebuilt, wanted())
        count = len(code)
        for kernel in wanted():
            if kernel not in code and (content := waiting.load(place(kernel, store))) is not None:
                code[kernel] = content
        missing = [kernel for kernel in wanted() if kernel not in code and only in str(kernel)]
        side, waits = store.prebuilt.parent.name, len(code) - count
        print(f"{side}: {count} kernels in packs, {waits} wait, {len(missing)} to compile", flush=True)
        bar = Progress(len(missing), "compiling", "kernel")
        for kernel, answer in compiled(missing, jobs) if missing else ():
            bar.advance(1)
            if isinstance(answer, str):
                failed.append(answer)
            else:
                waiting.save(place(kernel, store), answer)
                code[kernel] = answer
        bar.close()
        write(store.prebuilt, code, store.compilers)
    write_digests(_families())
    print(f"wrote the packs in {time.monotonic() - begun:.0f} s", *failed, sep="\n")
    return bool(failed)


def _families() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Families of kernels with their formats: those in packs, and all of the GPU's."""
    for store, _, _ in SIDES:
        yield from ((kernel.name.partition("(")[0], kernel.formats) for kernel in held(store.prebuilt))
    yield from _kernels_cuda.all_families()


def check(as_json: bool) -> int:
    """Print the kernels of packs that are stale; the exit status."""
    kernels = [str(kernel) for store, _, _ in SIDES for kernel in held(store.prebuilt) if kernel.is_stale]
    if as_json:
        print(json.dumps({"stale": kernels}, indent=1))
    elif kernels:
        print(*kernels, sep="\n")
        print(f"{len(kernels)} kernels are stale, so compiled when first used; run python tools/prebuild.py")
    else:
        print("packs and sources agree")
    return int(bool(kernels))


def main() -> int:
    """Build packs, check or verify them, or list their kernels; the exit status."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("--check", action="store_true", help="print what is stale")
    parser.add_argument("--list", action="store_true", help="print the kernels that belong in")
    parser.add_argument("--verify", action="store_true", help="compile again and compare; write nothing")
    parser.add_argument("--sample", type=int, metavar="N", help="with --verify: N drawn kernels")
    parser.add_argument("--small", type=int, metavar="N", help="with --verify: of the N smallest alone")
    parser.add_argument("--seed", type=int, help="with --verify: draw the kernels by it; default: a new one")
    parser.add_argument("--json", action="store_true", help="with --check: as JSON")
    parser.add_argument("--only", default="", metavar="TEXT", help="kernels with this in their name alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: all cores")
    args = parser.parse_args()
    if args.list:
        print(*(kernel for _, wanted, _ in SIDES for kernel in wanted()), sep="\n")
        return 0
    if args.verify:
        seed, stores = randbelow(10**9) if args.seed is None else args.seed, [store for store, _, _ in SIDES]
        drawn = _verify.draw(stores, args.only, args.small, args.sample, seed)
        print(f"{len(drawn)} kernels, by --seed {seed}", flush=True)
        return _verify.verify([(store, c) for store, _, c in SIDES], drawn, max(args.jobs, 1))
    return check(args.json) if args.check else build(args.only, max(args.jobs, 1))


if __name__ == "__main__":
    sys.exit(main())
