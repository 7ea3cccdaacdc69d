#!/usr/bin/env python3
"""Compare the PTX of the GPU's kernels before and after a change of their sources, but for names of symbols.

    python tools/same_ptx.py BEFORE.json                        # before: digests of all kernels that ship
    python tools/same_ptx.py AFTER.json --against BEFORE.json   # after: exit status 1 if any PTX differs

A kernel is known by its digest, so modules, functions and classes may be renamed between. ``--sample N``
takes N kernels drawn by a seed, and ``--against`` such a file compares those alone. It needs no GPU, and the
packages of the extra ``test``; a kernel takes 1 to 30 s of one core.
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
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from secrets import randbelow

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
os.environ["GGMLQ_COMPILE_HERE"] = "1"  # before the words of kernels are imported

import _kernels_cuda
from _compile_cuda import CAPABILITY, portable

from ggmlq.base.progress import Progress
from ggmlq.cuda.driver.coverage import families
from ggmlq.store.origin import Origin

SYMBOL = re.compile(r"[$\w]*(?:_Z|cudapy|ggmlq|numba_)[$\w]*")  # names that follow from those of functions
FACTS = ("threads", "blocks", "shared", "least", "exact", "early", "lto", "together", "max_blocks")


def digest(origin: Origin) -> tuple[str, str]:
    """A kernel's label, and the digest of its PTX and of its launch; or an error, which begins with ``!``."""
    gc.set_threshold(200_000, 50, 50)
    try:
        kernel = families()[origin.family].make(*origin.case)
        names: dict[str, str] = {}
        text = SYMBOL.sub(
            lambda match: names.setdefault(match[0], f"s{len(names)}"), portable(kernel.ptx(CAPABILITY))
        )
        facts = repr([getattr(kernel, name) for name in FACTS])
        return label(origin), hashlib.sha256((facts + text).encode()).hexdigest()[:32]
    except Exception as error:
        return label(origin), f"! {type(error).__name__}: {error}"


def label(origin: Origin) -> str:
    """A kernel's name without the modules of the classes among its arguments."""
    family, _, case = str(origin).partition("(")
    return family + "(" + re.sub(r"\bggmlq\.[\w.]*\.(?=\w)", "", case)


def every() -> Iterator[Origin]:
    """All kernels of all families."""
    for name, family in families().items():
        yield from (Origin(name, case) for case in family.cases)


def selected(args: argparse.Namespace, before: dict[str, str]) -> dict[str, Origin]:
    """The kernels to compile, by their labels."""
    if before:
        kernels = {label(origin): origin for origin in every()}
        # A family that moved has another name, but the same cases; digests tell which kernel is which.
        cases = {name.partition("(")[2] for name in before if name not in kernels}
        return {
            name: origin for name, origin in kernels.items()
            if args.only in name and (name in before or name.partition("(")[2] in cases)
        }  # fmt: skip
    origins = every() if args.sample is not None else (wanted.origin for wanted in _kernels_cuda.wanted())
    kernels = {label(origin): origin for origin in origins if args.only in str(origin)}
    if args.sample is None:
        return kernels
    seed = randbelow(10**9) if args.seed is None else args.seed
    names = Random(seed).sample(sorted(kernels), min(args.sample, len(kernels)))
    print(f"{len(names)} of {len(kernels)} kernels, by --seed {seed}", flush=True)
    return {name: kernels[name] for name in names}


def main() -> int:
    """Write digests and compare them; the exit status."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("file", type=Path, help="JSON of digests; what it has is not compiled again")
    parser.add_argument("--against", type=Path, metavar="FILE", help="digests of the state before")
    parser.add_argument("--only", default="", metavar="TEXT", help="kernels with this in their name alone")
    parser.add_argument("--sample", type=int, metavar="N", help="N kernels of all; default: those that ship")
    parser.add_argument("--seed", type=int, help="of the draw; default: a new one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: all cores")
    args = parser.parse_args()
    before = json.loads(args.against.read_text()) if args.against else {}
    digests = json.loads(args.file.read_text()) if args.file.exists() else {}
    kernels = selected(args, before)
    missing = [origin for name, origin in kernels.items() if name not in digests]
    bar = Progress(len(missing), "writing PTX", "kernel")
    jobs = max(min(args.jobs, len(missing)), 1)
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=60) as pool:
        for name, answer in pool.imap_unordered(digest, missing):
            bar.advance(1)
            digests[name] = answer
            args.file.write_text(json.dumps(digests, indent=0, sort_keys=True))
    bar.close()
    failed = [f"{name}: {digests[name][2:]}" for name in kernels if digests[name].startswith("!")]
    print(*failed, f"{len(kernels)} kernels, {len(failed)} failed", sep="\n")
    return compare(before, {name: digests[name] for name in kernels}) if before else int(bool(failed))


def compare(before: dict[str, str], after: dict[str, str]) -> int:
    """Print the kernels that differ; 1 if there are any. Each digest stands for one kernel."""
    old, new = Counter(before.values()), Counter(after.values())
    gone, come = old - new, new - old
    for sign, digests, lost in (("-", before, gone), ("+", after, come)):
        for name in (name for name, value in digests.items() if value in lost):
            print(sign, name)
    print(f"{(old & new).total()} equal, {gone.total()} only before, {come.total()} only after")
    return int(bool(gone or come))


if __name__ == "__main__":
    sys.exit(main())
