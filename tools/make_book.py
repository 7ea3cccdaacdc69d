#!/usr/bin/env python3
"""Write ggmlq/demo/book.json: the inner loop of each rung of ``linear``, counted, and its measured figures.

    python tools/make_book.py [--check]

The inner loop is the innermost loop with the most products, of the kernel that has the most of them, for q4_0
weights: instructions of PTX, before the assembler removes moves and joins some; or those of this CPU. No GPU
is needed. Figures are those of bench/results/ladder_*.json. ``ggmlq ladder page`` shows both.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import platform
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
os.environ["GGMLQ_COMPILE_HERE"] = "1"  # before the words of kernels are imported

import numpy as np  # noqa: E402

from ggmlq.arrays.array import QuantArray  # noqa: E402
from ggmlq.arrays.blocks import random_weights  # noqa: E402
from ggmlq.base.writing import write_whole  # noqa: E402
from ggmlq.cpu.machine.features import compiled_for  # noqa: E402
from ggmlq.cpu.machine.levels import best  # noqa: E402
from ggmlq.dispatch.card import card_named  # noqa: E402
from ggmlq.dispatch.ladder import Rung, rungs  # noqa: E402
from ggmlq.dispatch.problems import Linear  # noqa: E402
from ggmlq.formats import FORMATS  # noqa: E402
from ggmlq.ops import dry_run  # noqa: E402

BOOK = ROOT / "ggmlq" / "demo" / "book.json"
RESULTS = sorted((ROOT / "bench" / "results").glob("ladder_*.json"))
CARD, FORMAT = "NVIDIA H200", "q4_0"
ROWS = (512, 64, 32, 8)  # of activations; the first that a rung takes
SHAPES = {"cuda": (4096, 14336), "cpu": (64, 512)}
RUN, HALF = 32, 16  # columns that share a scale; products that a GPU's loop has, or many times as many
LANES = 32  # of a warp, for instructions that all lanes do together
PTX, X86 = "ptx", "x86"
# Kinds of instructions, the first that fits; others are "integers and logic".
KINDS = {
    PTX: (
        ("products and sums", r"dp4a|mma\.sync|wgmma\.mma|fma\.rn|mad\.lo\.s32|mul\.lo\.s(32|64)"),
        ("shared memory", r"ld\.shared|st\.shared|ldmatrix|ld\.local"),
        ("memory", r"ld\.global|st\.global|ld\.v|cp\.async"),
        ("conversions", r"cvt"),
        ("control", r"bra|setp|selp|bar\.|barrier|mbarrier|wgmma|griddep|fence|@"),
    ),
    X86: (
        ("products and sums", r"vpdp|vfn?m(add|sub)|vdpbf16|vmul[ps]s|vaddps|vaddss|vpmaddubsw|vpmaddwd"),
        ("memory", r"vmovu|vmova|vmovdq|vmovss|movz|movs|vpbroadcast|vbroadcast"),
        ("conversions", r"vcvt"),
        ("control", r"j|cmp|test"),
    ),
}
IDLE = re.compile(r"^(mov\.|\.|nop|\{|\})")  # of PTX: declarations, and moves that the assembler removes
Loop = dict[str, Any]


# --- loops ------------------------------------------------------------------------------------


def statements(text: str, kind: str) -> Iterator[str]:
    """Instructions and labels of an assembly, one by one."""
    text = re.sub(r"//[^\n]*|\s+#[^\n]*", "", text)
    for line in re.split(r"[;\n]", text) if kind == PTX else text.splitlines():
        rest = line.strip().strip("{}").strip()
        while match := re.match(r"([$.\w]+):(?!:)", rest):
            yield match[0]
            rest = rest[match.end() :].strip()
        if rest:
            yield re.sub(r"^@!?%?\w+\s+", "", rest)


def loops(text: str, kind: str) -> Iterator[list[str]]:
    """The bodies of all loops: from a label to a branch back to it."""
    code, labels = list(statements(text, kind)), {}
    for i, line in enumerate(code):
        if line.endswith(":"):
            labels[line[:-1]] = i
        elif match := re.match(r"(?:bra(?:\.uni)?|j\w+)\s+([$.\w]+)", line):
            start = labels.get(match[1])
            if start is not None:
                yield [each for each in code[start : i + 1] if not each.endswith(":")]


def products(body: list[str]) -> float:
    """Multiplications of weights and activations in a loop: of its widest instructions, else of plain ones.

    What scales or adds up the sums of wide instructions is no product. Of ``mma`` a thread does its share.
    """
    for rule in (_by_warps, _by_fours, _plain):
        if total := sum(map(rule, body)):
            return total
    return 0.0


def _is_wide(body: list[str]) -> bool:
    return any(rule(line) for rule in (_by_warps, _by_fours) for line in body)


def _by_warps(line: str) -> float:
    match = re.match(r"(wg)?mma\..*?m(\d+)n(\d+)k(\d+)", line)
    if not match:
        return 0.0
    return math.prod(map(int, match.groups()[1:])) / (LANES * (4 if match[1] else 1))


def _by_fours(line: str) -> float:
    each = re.match(r"(dp4a|vpdpbusd|vpmaddubsw)|(vdpbf16ps|vpmaddwd|vpdpwssd)|mul\.lo\.s64", line)
    return (4 if each[1] else 2 if each[2] else 1) * _width(line) if each else 0.0


def _plain(line: str) -> float:
    """Additions count on a CPU: products and sums are not contracted there, and scales are not added."""
    match = re.match(r"fma\.rn\.f32|mad\.lo\.s32|mul\.lo\.s32|vadd(p?)s", line)
    return (_width(line) if match[1] else 1) if match else 0.0


def _width(line: str) -> int:
    """The 32-bit numbers of a vector instruction of a CPU; 1 of a GPU's."""
    return next((width for name, width in (("zmm", 16), ("ymm", 8), ("xmm", 4)) if name in line), 1)


def inner(text: str, kind: str, most: float = math.inf) -> list[str]:
    """The loop with the most products, up to ``most``, among those that hold no other loop with products."""
    bodies = [body for body in loops(text, kind) if 0 < products(body) <= most]
    innermost = [
        body for body in bodies
        if not any(other is not body and len(other) < len(body) and _within(other, body) for other in bodies)
    ]  # fmt: skip
    return max(innermost, key=lambda body: (_is_wide(body), products(body)), default=[])


def _within(part: list[str], whole: list[str]) -> bool:
    return any(whole[i : i + len(part)] == part for i in range(len(whole) - len(part) + 1))


def counted(text: str, kind: str, most: float = math.inf) -> Loop | None:
    """The instructions of the inner loop by kind, and its products."""
    body = [line for line in inner(text, kind, most) if kind != PTX or not IDLE.match(line)]
    if not body:
        return None
    counts = Counter(_kind_of(line, kind) for line in body)
    total = products(body)
    if kind == PTX and total > HALF:
        total -= total % HALF  # loops are of whole runs; what is left over multiplies for addresses
    return {"products": total, "instructions": dict(counts.most_common())}


def _kind_of(line: str, kind: str) -> str:
    return next((name for name, words in KINDS[kind] if re.match(words, line)), "integers and logic")


# --- kernels of rungs -------------------------------------------------------------------------


def loop_of(rung: Rung) -> Loop | None:
    """The inner loop of the kernels that a rung launches; None where they are a library's."""
    kind, texts = (PTX, ptx_of(rung)) if rung.device == "cuda" else (X86, assembly_of(rung))
    # LLVM makes wider loops than a run is long, which are never taken, of those that a rung leaves to it.
    mosts = [RUN if kind == X86 and name.startswith("linear.") else math.inf for name in texts]
    counts = [counted(text, kind, most) for text, most in zip(texts.values(), mosts, strict=True)]
    some = [{"kernel": name, **loop} for name, loop in zip(texts, counts, strict=True) if loop]
    return max(some, key=lambda loop: loop["products"], default=None)


def ptx_of(rung: Rung) -> dict[str, str]:
    """The PTX of the kernels in a rung's own room, by their names."""
    card = card_named("make_book", CARD)
    for m in ROWS:
        problem = Linear(FORMATS[FORMAT], m, *SHAPES["cuda"], device="cuda", card=card)
        if rung.refuses(problem) is None:
            kernels = dry_run.kernels_of(problem, rung.name)
            return {kernel.name: kernel.ptx(kernel.least if kernel.exact else (9, 0)) for kernel in kernels}
    return {}


def assembly_of(rung: Rung) -> dict[str, str]:
    """The machine code of the kernels that a rung of the CPU is the first to compile, by their names."""
    n, k = SHAPES["cpu"]
    q = QuantArray.from_bytes(random_weights(FORMATS[FORMAT], n, k), FORMAT, (n, k))
    names = importlib.import_module("ggmlq.cpu.machine.numba_names")
    make, compiled = names.dispatcher, []

    def noted(function: Any, on_disk: bool, **more: Any) -> Any:
        compiled.append(make(function, False, **more))  # code from the disk cannot be read
        return compiled[-1]

    with mock.patch.object(names, "dispatcher", noted):
        for m in ROWS[::-1]:
            if rung.refuses(Linear.here(q.format, m, n, k, device="cpu")) is None:
                rung.launch(np.ones((m, k), np.float32), q, np.empty((m, n), np.float32))
    texts = {}
    for function in compiled:
        if re.search(r"\.(unpack|activations|encode)\b", function.py_func.__module__):
            continue  # what comes before the products
        name = f"{function.py_func.__module__.removeprefix('ggmlq.cpu.')}.{function.py_func.__name__}"
        texts[name] = "\n".join(function.inspect_asm().values())
    return texts


# --- figures ----------------------------------------------------------------------------------


def figures() -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Measured times by rung and machine: q4_0 alone."""
    book: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for path in RESULTS:
        run = json.loads(path.read_text())
        for row in run["rows"]:
            if row["format"] == FORMAT and row["asked"] == row["kernel"]:
                machine = book.setdefault(row["kernel"], {}).setdefault(run["device"], [])
                machine.append({name: row[name] for name in ("M", "N", "K", "us")})
    return book


def written() -> dict[str, Any]:
    """The whole book: facts of each rung."""
    measured, book = figures(), {}
    for device in ("cpu", "cuda"):
        for rung in rungs("linear", device):
            book[rung.name] = {"loop": loop_of(rung), "figures": measured.get(rung.name, {})}
    here = best(platform.machine(), compiled_for())
    return {"format": FORMAT, "card": CARD, "cpu": here.folder if here else "another CPU", "rungs": book}


def text_of(book: dict[str, Any]) -> str:
    """The book as JSON, a rung a line."""
    lines = [f"  {json.dumps(name)}: {json.dumps(facts)}" for name, facts in book["rungs"].items()]
    head = json.dumps({name: value for name, value in book.items() if name != "rungs"})[:-1]
    return head + ', "rungs": {\n' + ",\n".join(lines) + "\n}}\n"


def main() -> int:
    """Write the book, or say what is stale in it."""
    if "--check" in sys.argv[1:]:
        book = json.loads(BOOK.read_text())
        stale = [name for name, facts in book["rungs"].items() if facts["figures"] != figures().get(name, {})]
        print(f"stale figures: {', '.join(stale)}; run python tools/make_book.py" if stale else "fresh")
        return bool(stale)
    os.environ["GGMLQ_PREBUILT"] = "off"  # only Numba's own code can be read
    write_whole(BOOK, text_of(written()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
