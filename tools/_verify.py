"""Packs held against their sources: kernels are compiled again, and the code is compared byte by byte."""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any

from _kernels_cpu import wanted
from _objects import renamed
from _packs import Held, Wanted, fresh_code, held

from ggmlq.base.progress import Progress
from ggmlq.cpu.machine.levels import LEVELS
from ggmlq.cpu.machine.loading import SEAL
from ggmlq.cuda.driver.coverage import families
from ggmlq.cuda.driver.served import PTX
from ggmlq.store.origin import Origin
from ggmlq.store.store import Store

Compiled = Callable[[list[Wanted], int], Iterator[tuple[Wanted, bytes | str]]]
ENV = re.compile(rb"_ZN08NumbaEnv[^\0]*")  # of Python's globals, which no code on a GPU reads
CPUS = {level.folder for level in LEVELS}


def verify(sides: Iterable[tuple[Store, Compiled]], drawn: list[Held], jobs: int) -> int:
    """Compile kernels of packs again and print what differs, with a summary; the exit status."""
    counts, differ = Counter(dict.fromkeys(("equal", "differ", "stale", "not compiled here"), 0)), []
    for store, compiled in sides:
        listed = [each for each in drawn if each.pack.path.parent.parent == store.prebuilt]
        fresh = [each for each in listed if not each.is_stale]
        here = [each for each in fresh if each.pack.compilers == store.compilers]
        code = fresh_code(store.prebuilt, _wanted(here))
        counts["stale"] += len(listed) - len(fresh)
        counts["not compiled here"] += len(fresh) - len(code)
        for compilers in {each.pack.compilers for each in fresh} - {store.compilers}:
            print(f"made by {compilers}; installed are {store.compilers or 'none'}")
        bar = Progress(len(code), "verifying", "kernel")
        for kernel, answer in compiled([*code], jobs) if code else ():
            bar.advance(1)
            same = isinstance(answer, bytes) and _plain(kernel, answer) == _plain(kernel, code[kernel])
            counts["equal" if same else "differ"] += 1
            differ += [] if same else [answer if isinstance(answer, str) else f"{kernel}: other code"]
        bar.close()
    print(*differ, ", ".join(f"{count} {what}" for what, count in counts.items()), sep="\n")
    return int(bool(differ))


def draw(sides: Iterable[Store], only: str, small: int | None, count: int | None, seed: int) -> list[Held]:
    """Kernels of packs with a text in their names, of the ``small`` smallest ``count`` by a seed."""
    kernels = [each for store in sides for each in held(store.prebuilt) if only in str(each)]
    kernels = sorted(kernels, key=lambda each: each.pack.kernels[each.name][-1])[:small]
    return kernels if count is None else Random(seed).sample(kernels, min(count, len(kernels)))


def _wanted(kernels: list[Held]) -> Iterator[Wanted]:
    """Kernels of packs with their origins, by the cases that their families list."""
    names = {each.name.partition("(")[0] for each in kernels}
    known = {str(each.origin): each.origin for each in wanted()}
    if names - {name.partition("(")[0] for name in known}:
        members: Any = families()
        origins = (Origin(name, case) for name in names if name in members for case in members[name].cases)
        known |= {str(origin): origin for origin in origins}
    return (Wanted(known[e.name], e.pack.path.parent.name) for e in kernels if e.name in known)


def _plain(kernel: Wanted, code: bytes) -> Any:
    """Code as it is compared, without what compilers name after a count of their work."""
    if kernel.machine in CPUS:
        return renamed(code[:-SEAL])
    return code if kernel.machine == PTX else _sections(code)


def _sections(code: bytes) -> list[Any]:
    """All of a GPU's machine code but its offsets, which follow from the length of a counted name."""
    ways, start = struct.unpack_from("<QQ", code, 32)
    way_count, size, count = struct.unpack_from("<3H", code, 56)
    heads = [struct.unpack_from("<IIQQQQIIQQ", code, start + size * at) for at in range(count)]
    bodies = [b"" if head[1] == 8 else code[head[4] : head[4] + head[5]] for head in heads]
    content: list[Any] = [code[:32], code[48:64]]
    for head, body in zip(heads, bodies, strict=True):
        parts: Any = body
        if head[1] == 2:
            names = bodies[head[6]]
            symbols = struct.iter_unpack("<I20s", body)
            parts = [(ENV.sub(b"", names[at : names.index(0, at)]), rest) for at, rest in symbols]
        elif head[1] == 3:
            parts = ENV.sub(b"", body)
        content.append((head[1:4], head[6:], head[5] if head[1] == 8 else 0, parts))
    for at in range(ways, ways + 56 * way_count, 56):  # segments, by their sections: gaps follow from offsets
        kind, first, *places, size, whole, align = struct.unpack_from("<QQ5Q", code, at)
        inside = [i for i, h in enumerate(heads) if first <= h[4] and h[4] + len(bodies[i]) <= first + size]
        content.append((kind, inside, places, whole - size, align))
    return content
