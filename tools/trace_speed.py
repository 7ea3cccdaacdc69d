"""Time a trace of 512 tokens through a model of 8B size, and the part of it that is the library's own work.

    python tools/trace_speed.py FOLDER [--layers 32] [--tokens 512] [--type q4_K] [--judge all]

A model with the shapes of Llama 3 8B and random weights (4.4 GB) is written to FOLDER, traced by the
command `ggmlq trace`, and removed: first with one product judged, then with products alone, then with all
nodes, as a user waits for it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from ggmlq.testing.models import Shape, tiny_model

EIGHT_B = {"width": 4096, "hidden": 14336, "heads": 32, "kv_heads": 8}


def timed(command: list[str]) -> tuple[float, float, str]:
    """Seconds of wall clock, seconds of processors, and the output of a command."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - begun
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: ended with status {done.returncode}")
    return wall, used, done.stdout.decode()


def main() -> int:
    """Write the model, trace it, print the times."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--type", default="q4_K", help="of all weights but v and down, which are q6_K")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--lib", help="as for ggmlq trace")
    parser.add_argument("--judge", choices=("all", "sample"), default="all", help="as for ggmlq trace")
    parser.add_argument("--keep", action="store_true", help="leave the model there")
    args = parser.parse_args()
    path = args.folder / f"8b-{args.type}-{args.layers}.gguf"
    if not path.exists():
        args.folder.mkdir(parents=True, exist_ok=True)
        others = dict.fromkeys(("q", "k", "out", "gate", "up"), args.type)
        tiny_model(path, others | {"v": "q6_K", "down": "q6_K"}, Shape(layers=args.layers, **EIGHT_B))
    command = [sys.executable, "-m", "ggmlq", "trace", str(path), "--tokens", str(args.tokens), "--json"]
    command += ["--judge", args.judge]
    command += ["--threads", str(args.threads), *(["--lib", args.lib] if args.lib else [])]
    try:
        without, used_without, _ = timed([*command, "--select", "output.weight", "--no-verify"])
        fewer, used_fewer, _ = timed([*command, "--nodes", "products"])
        wall, used, output = timed(command)
    finally:
        if not args.keep:
            path.unlink()
    *nodes, _end = [json.loads(line) for line in output.splitlines()]
    kinds: dict[str, list[float]] = defaultdict(list)
    for p in nodes:
        kinds[f"{p['op']} {p['type']} {p['m']}×{p['n']}×{p['k']}"].append(p["seconds"])
    print(f"{args.tokens} tokens, {args.layers} layers: {len(nodes)} nodes, "
          f"{sum(p['verdict'] == 'wrong' for p in nodes)} wrong")  # fmt: skip
    judging = sum(p["seconds"] for p in nodes)
    print(f"with one product judged  {without:7.1f} s, {used_without:7.1f} s of processors")
    print(f"with all products judged {fewer:7.1f} s, {used_fewer:7.1f} s of processors")
    print(
        f"with all nodes judged    {wall:7.1f} s, {used:7.1f} s of processors; of it judging {judging:.1f} s"
    )
    for kind, seconds in sorted(kinds.items(), key=lambda item: -sum(item[1])):
        print(f"  {kind:40} {len(seconds):4} × {sum(seconds) / len(seconds):6.3f} s = {sum(seconds):6.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
