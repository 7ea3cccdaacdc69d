"""What compiled code is made of, as Numba would meet it, and what packs have: digests are held against it."""

from __future__ import annotations

from dis import get_instructions
from pathlib import Path
from types import FunctionType, ModuleType

import ggmlq as gq
from ggmlq.cuda.driver import served
from ggmlq.store import store

PACKAGE = Path(gq.__file__).parent


def functions_of(value, seen):
    """All functions of ours that a compiled function refers to."""
    if id(value) in seen:
        return
    seen[id(value)] = value
    for name in ("py_func", "_defn", "meaning"):
        yield from functions_of(getattr(value, name), seen) if hasattr(value, name) else ()
    if isinstance(value, tuple):
        for each in value:
            yield from functions_of(each, seen)
    if isinstance(value, FunctionType) and value.__code__.co_filename.startswith(str(PACKAGE)):
        yield value
        for cell in value.__closure__ or ():
            yield from functions_of(cell.cell_contents, seen)
        codes = [value.__code__]
        for code in codes:
            codes += [const for const in code.co_consts if hasattr(const, "co_names")]
            loads = (step.argval for step in get_instructions(code) if step.opname == "LOAD_GLOBAL")
            for name in dict.fromkeys(loads):  # not in co_names, which has the names of fields, too
                found = value.__globals__.get(name)
                yield from functions_of(found, seen) if not isinstance(found, ModuleType) else ()


def in_packs(kernel, card):
    """Whether the package has a kernel for a card; one that is stale is compiled when it is first used."""
    machines = [served.machine_of(card.capability), *([] if kernel.exact else [served.PTX])]
    paths = (served.STORE.prebuilt / each / f"{kernel.origin.pack}{store.SUFFIX}" for each in machines)
    return any(pack and str(kernel.origin) in pack.kernels for pack in map(store.opened, paths))
