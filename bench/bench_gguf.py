"""Opening and writing GGUF files beside gguf-py and ``cp``, every figure from a fresh process.

    python bench/bench_gguf.py [--folder DIR] [--megabytes 1024] [--rounds 5]

The file to open has 150k tokens, 280k merges, 150k token types, 40 scalars and 200 small tensors.
DIR decides which disk is measured; it needs twice the megabytes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

TOKENS, MERGES, TENSORS = 150_000, 280_000, 200


def main() -> None:
    """Measure everything and print a table for bench/notes/files.md."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--folder", default=None, help="where files are written; a temporary folder if not given"
    )
    parser.add_argument("--megabytes", type=int, default=1024, help="size of the file to write")
    parser.add_argument("--rounds", type=int, default=5, help="repetitions; medians are shown")
    parser.add_argument("--without-gguf-py", action="store_true", help="spare the ten seconds")
    parser.add_argument("--child", nargs=2, metavar=("NAME", "PATH"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        name, path = args.child
        print(json.dumps(CHILDREN[name](path)))
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        rows = reading(folder, args) + writing(folder, args)
    print("| what | figure |\n|---|---|")
    print("\n".join(f"| {what} | {figure} |" for what, figure in rows))


def child(name: str, path: str) -> dict[str, float]:
    """Run one measurement in a process of its own."""
    command = [sys.executable, __file__, "--child", name, path]
    figures: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return figures


# --- reading --------------------------------------------------------------------------------


def reading(folder: str, args: argparse.Namespace) -> list[tuple[str, str]]:
    """The figures of reading a file with a large vocabulary."""
    path = os.path.join(folder, "vocabulary.gguf")
    make_vocabulary(path)
    runs = [child("ours", path) for _ in range(args.rounds)]
    ours = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    rows = [
        ("file", f"{os.path.getsize(path) / 1e6:.1f} MB"),
        ("`gq.open` and `list(f)`, first in its process", f"{1e3 * ours['first']:.1f} ms"),
        ("the same, again in that process", f"{1e3 * ours['again']:.1f} ms"),
        ("`import ggmlq`, NumPy imported before", f"{1e3 * ours['import']:.0f} ms"),
        ("numba imported", "yes" if ours["numba"] else "no"),
        ("memory of its own after open (RssAnon)", f"{ours['open_memory'] / 1e6:.2f} MB"),
        ("150k tokens as a list of str", f"{1e3 * ours['tokens']:.0f} ms"),
        ("first access of a tensor, median", f"{1e6 * ours['access']:.1f} µs"),
        ("first access of a tensor, slowest of 200", f"{1e6 * ours['slowest']:.1f} µs"),
    ]
    if not args.without_gguf_py:
        theirs = child("gguf_py", path)
        rows += [
            ("`gguf.GGUFReader` (gguf-py), first in its process", f"{theirs['first']:.2f} s"),
            ("memory of its own after that", f"{theirs['open_memory'] / 1e6:.0f} MB"),
            ("gguf-py's time over ours, both first", f"{theirs['first'] / ours['first']:.0f}"),
        ]
    return rows


def make_vocabulary(path: str) -> None:
    """Write a file whose vocabulary has words of 1 to 11 letters, the same in every run."""
    import numpy as np

    import ggmlq as gq

    rng = np.random.default_rng(0)
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)

    def words(n: int) -> list[str]:
        return [bytes(letters[rng.integers(0, 26, k)]).decode() for k in rng.integers(1, 12, n)]

    metadata: dict[str, object] = {"general.architecture": "llama"}
    metadata |= {f"llama.scalar.{i}": i for i in range(40)}
    metadata["tokenizer.ggml.tokens"] = words(TOKENS)
    metadata["tokenizer.ggml.merges"] = [
        f"{a} {b}" for a, b in zip(words(MERGES), words(MERGES), strict=True)
    ]
    metadata["tokenizer.ggml.token_type"] = rng.integers(0, 6, TOKENS).tolist()
    w = gq.quantize(rng.standard_normal((4, 64)).astype(np.float32), "q4_0")
    gq.save(path, {f"blk.{i}.weight": w for i in range(TENSORS)}, metadata)


def memory() -> int:
    """Resident bytes of this process that are no file's; 0 where the system does not tell."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return 1024 * int(status.split("RssAnon:")[1].split()[0])


def timed(function: Callable[[], object]) -> tuple[float, object]:
    """Seconds and the result."""
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def ours(path: str) -> dict[str, float]:
    """The figures of ggmlq's reader."""
    import numpy as np  # noqa: F401

    load, _ = timed(lambda: __import__("ggmlq"))
    import ggmlq as gq

    def opened() -> object:
        f = gq.open(path)
        return f, list(f)

    before = memory()
    first, (f, names) = timed(opened)  # type: ignore[misc]
    used = memory() - before
    accesses = [timed(lambda name=name: f[name])[0] for name in names]  # type: ignore[misc]
    tokens, words = timed(lambda: list(f.metadata["tokenizer.ggml.tokens"]))
    assert len(words) == TOKENS  # type: ignore[arg-type]
    return {
        "import": load,
        "first": first,
        "again": statistics.median(timed(opened)[0] for _ in range(9)),
        "open_memory": used,
        "access": statistics.median(accesses),
        "slowest": max(accesses),
        "tokens": tokens,
        "numba": "numba" in sys.modules,
    }


def gguf_py(path: str) -> dict[str, float]:
    """The figures of gguf-py's reader."""
    import gguf

    before = memory()
    first, reader = timed(lambda: gguf.GGUFReader(path))
    assert len(reader.tensors) == TENSORS  # type: ignore[attr-defined]
    return {"first": first, "open_memory": memory() - before}


# --- writing --------------------------------------------------------------------------------


def writing(folder: str, args: argparse.Namespace) -> list[tuple[str, str]]:
    """A large file, copied by turns with ``cp`` and with ``gq.save``, from the page cache."""
    source = os.path.join(folder, "large.gguf")
    make_large(source, args.megabytes)
    megabytes = os.path.getsize(source) / 1e6
    speeds: dict[str, list[float]] = {"cp": [], "cp and sync": [], "save": []}
    for _ in range(args.rounds):
        for name, figures in speeds.items():
            figures.append(megabytes / child(name.replace(" ", "_"), source)["seconds"])
    best = {name: statistics.median(figures) for name, figures in speeds.items()}
    return [
        ("file to write", f"{megabytes:.0f} MB, 24 tensors"),
        ("`cp`, leaves all in the page cache", f"{best['cp']:.0f} MB/s"),
        ("`cp` and `sync FILE`", f"{best['cp and sync']:.0f} MB/s"),
        ("`gq.save(path, f)`, synced to the disk", f"{best['save']:.0f} MB/s"),
        ("save over cp", f"{100 * best['save'] / best['cp']:.0f} %"),
        ("save over cp and sync", f"{100 * best['save'] / best['cp and sync']:.0f} %"),
    ]


def make_large(path: str, megabytes: int) -> None:
    """Write a file of 24 tensors of random q8_0 blocks."""
    import numpy as np

    import ggmlq as gq

    rows = max(1, megabytes * 1_000_000 // 24 // 4352)
    raw = np.random.default_rng(0).integers(0, 256, (rows, 4352), np.uint8)
    q = gq.QuantArray.from_bytes(raw, "q8_0", (rows, 4096))
    gq.save(path, {f"blk.{i}.weight": q for i in range(24)}, {"general.architecture": "llama"})


def fresh(source: str) -> str:
    """A name that is free, on a disk that has nothing left to do."""
    target = source + ".copy"
    if os.path.exists(target):
        os.unlink(target)
    if hasattr(os, "sync"):
        os.sync()
    with open(source, "rb") as file:  # into the page cache
        while file.read(1 << 24):
            pass
    return target


def copied(source: str, sync: bool) -> dict[str, float]:
    """Seconds of a copy by the system's cp."""
    target = fresh(source)
    if shutil.which("cp") is None:
        sys.exit("there is no cp on this system; writing cannot be compared")
    start = time.perf_counter()
    subprocess.run(["cp", source, target], check=True)
    if sync:
        subprocess.run(["sync", target], check=True)
    return {"seconds": time.perf_counter() - start}


def saved(source: str) -> dict[str, float]:
    """Seconds to open a file and save it again."""
    import ggmlq as gq

    target = fresh(source)
    seconds, _ = timed(lambda: gq.save(target, gq.open(source)))
    return {"seconds": seconds}


CHILDREN: dict[str, Callable[[str], dict[str, float]]] = {
    "ours": ours,
    "gguf_py": gguf_py,
    "cp": lambda path: copied(path, sync=False),
    "cp_and_sync": lambda path: copied(path, sync=True),
    "save": saved,
}


if __name__ == "__main__":
    main()
