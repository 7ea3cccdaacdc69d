"""``ggmlq cache``: lists, fills and empties what is stored on this disk."""

from __future__ import annotations

import argparse
import importlib
import time
from typing import Any

from ..base.progress import Progress
from ..base.terminal import table
from ..base.text import count, size
from ..errors import DeviceError, MissingDependencyError, UnsupportedError
from . import _plain
from ._options import Commands, declare, shared

SUMMARY = "list, fill or remove compiled kernels, weights laid out, and copies of files opened by address"
ABOUT = """\
List what ggmlq stores on this disk: kernels that were compiled on this machine, weights of models in the
order that the CPU's kernels read, and the parts of files that were opened by address (https://, hf://). If
the parts take more than 64 GiB, or GGMLQ_REMOTE_BYTES bytes, those that were not opened for the longest time
are removed; all weights take 16 GiB at most, those of a model a quarter of what is free, compiled kernels
half a gigabyte. GGMLQ_CACHE_DIR moves the cache, or turns it off.

"fill FORMAT …" compiles the kernels that products with weights of these types take by themselves on a card,
for all numbers of rows, so that no product waits for a compiler. Kernels that come with the package need no
compiling. The card may be on another machine: its name as NVIDIA writes it, or its capability, such as sm_89.
Where no compiler is installed, the kernels that would need one are named, with the command that installs it.
"""
EXAMPLES = """\
  ggmlq cache
  ggmlq cache fill q4_K q6_K --card sm_89
  ggmlq cache --empty compiled
"""


def add(commands: Commands) -> None:
    parser = declare(commands, "cache", "setup", SUMMARY, ABOUT, EXAMPLES)
    parser.add_argument("fill", nargs="*", metavar="fill FORMAT", help="compile the kernels of these formats")
    card = "with fill: the card's name, or sm_NN; default: the card of this machine"
    parser.add_argument("--card", metavar="NAME", help=card)
    kinds = ("all", "compiled", "layouts", "remote")
    parser.add_argument(
        "--empty", nargs="?", const="all", choices=kinds, help="remove what is stored; of a kind"
    )
    shared(parser, "--json")


def run(args: argparse.Namespace) -> int:
    from ..store import disk, layouts

    if args.fill:
        return _fill(args)
    remote: Any = importlib.import_module("ggmlq.remote")  # what it needs, other commands start without
    compiled = disk.here().examine()
    if args.empty in ("all", "compiled"):
        disk.here().empty()
    weights = layouts.empty() if args.empty in ("all", "layouts") else []
    if args.empty is None:
        weights = layouts.entries()
    removes_files = args.empty in ("all", "remote")
    files = remote.empty() if removes_files else remote.entries() if args.empty is None else []
    if args.json:
        facts: dict[str, Any] = {"compiled": compiled._asdict()}
        facts |= {"layouts": [entry._asdict() for entry in weights]}
        facts |= {"files": [entry._asdict() for entry in files]}
        _plain.print_json({"removed": args.empty, **facts, "problem": remote.problem()})
        return 0
    if files:
        print(table(["address", "size", "here", "opened"], map(_row, files)), end="\n\n")
    if weights:
        print(table(["weights of", "size", "opened"], map(_weights_row, weights)), end="\n\n")
    removed = "removed " if args.empty else ""
    if args.empty in (None, "all", "compiled"):
        place = f", {compiled.path}" if compiled.path else ""
        print(f"{removed}{count(compiled.kernels, 'compiled kernel')}, {size(compiled.bytes)}{place}")
        if compiled.problem:
            print(f"no compiled kernel is kept: {compiled.problem}")
    if args.empty in (None, "all", "layouts"):
        total = size(sum(entry.bytes for entry in weights))
        print(f"{removed}weights of {count(len(weights), 'model')} laid out, {total}")
    if args.empty in (None, "all", "remote"):
        print(f"{removed}{count(len(files), 'file')}, {size(sum(entry.there for entry in files))}")
        if (problem := remote.problem()) is not None:
            print(f"nothing is kept: {problem}")
    return 0


def _row(entry: Any) -> list[str]:
    return [_plain.name(entry.address), size(entry.size), size(entry.there), _time(entry)]


def _weights_row(entry: Any) -> list[str]:
    return [_plain.name(entry.model), size(entry.bytes), _time(entry)]


def _time(entry: Any) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))


def _fill(args: argparse.Namespace) -> int:
    """Compile the kernels of some formats for a card; the exit status."""
    from ..formats import FORMATS

    word, *names = args.fill
    if word != "fill" or not names:
        raise UnsupportedError(
            f"cache {' '.join(args.fill)}: the words are fill FORMAT …, such as cache fill q4_K"
        )
    formats = [FORMATS[name] for name in names]
    served: Any = importlib.import_module("ggmlq.cuda.driver.served")
    dry_run: Any = importlib.import_module("ggmlq.ops.dry_run")
    card = _card(args.card)
    kernels: dict[Any, None] = {}
    for fmt in formats:
        kernels |= dict.fromkeys([*dry_run.product_kernels(fmt, card), *dry_run.block_kernels(fmt, card)])
    packaged = [k for k in kernels if served.is_served(k.origin, card.capability, k.exact)]
    others = [kernel for kernel in kernels if kernel not in packaged]
    lacking = _uncompiled(others, card.capability)
    names = [str(kernel.origin) for kernel in others if kernel not in lacking]
    lacking_names = [str(kernel.origin) for kernel in lacking]
    facts = {"card": card.name, "packaged": len(packaged), "compiled": len(names)}
    if args.json:
        _plain.print_json(facts | {"kernels": names, "lacking": lacking_names})
    else:
        print(
            f"{card.name}: {count(len(packaged), 'kernel')} of the package, {len(names)} on this disk now",
            *([f"{len(lacking)} that would have to be compiled:", *lacking_names] if lacking else ()),
            sep="\n  ",
        )
    if lacking:
        reason = next(iter(lacking.values()))
        raise MissingDependencyError(f"cache fill: {count(len(lacking), 'kernel')} not compiled: {reason}")
    return 0


def _uncompiled(kernels: list[Any], capability: tuple[int, int]) -> dict[Any, MissingDependencyError]:
    """The kernels that nothing here can compile, with the reason; the others lie on the disk then."""
    lacking = {}
    with Progress(len(kernels), "compiling", "kernel") as bar:
        for kernel in kernels:
            try:
                kernel.cubin(capability)
            except MissingDependencyError as error:
                lacking[kernel] = error
            bar.advance(1)
    return lacking


def _card(name: str | None) -> Any:
    """The card of a name or a capability; without a name, the one of this machine."""
    if name is None:
        card = importlib.import_module("ggmlq.cuda.driver.device").card()
        if card is None:
            raise DeviceError("cache fill: this machine has no GPU; name a card, such as --card sm_89")
        return card
    return importlib.import_module("ggmlq.dispatch.card").card_named(f"cache fill --card {name}", name)
