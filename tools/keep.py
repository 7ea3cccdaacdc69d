#!/usr/bin/env python3
"""Keep the figures of a benchmark in bench/results, from which tables and pictures are written.

    python bench/bench_engine.py --json raw.json
    python tools/keep.py raw.json [NAME]    # bench/results/NAME.json (engine_h200), beside what was there

    pytest bench/bench_ladder.py --benchmark-enable --benchmark-json raw.json
    python tools/keep.py raw.json [NAME]    # bench/results/ladder_<device>.json: figures and versions

Figures of two machines are two files: those of another machine are written over with --replace only. A run of
some cases of the ladder takes the places of these cases with --merge; such a figure says its commit.
--merge takes figures of the same machine alone, with --replace too.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import engine
from ggmlq.base.writing import write_whole

RESULTS = Path(__file__).parents[1] / "bench" / "results"
ON_GPU = (
    "one linear on the GPU's clock: activations quantized within, weights prepared before and "
    "rotated over 200 MB up to 64 rows; median of 12 (slow rungs 3)"
)
ON_CPU = (
    "one linear on the host's clock, all threads: activations quantized within, weights prepared before and "
    "the same in each call; median of the rounds of pytest-benchmark"
)
FACTS = ("kernel", "asked", "format", "M", "N", "K", "us", "TFLOPS", "weight_GBps")
Figures = dict[str, Any]


def main(arguments: list[str] | None = None) -> None:
    """Keep a run of either benchmark."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("raw", type=Path, help="the file that the benchmark wrote")
    parser.add_argument("name", nargs="?", help="of the file in bench/results")
    parser.add_argument(
        "--replace", action="store_true", help="the ladder: over figures of another machine, or of more cases"
    )
    parser.add_argument("--merge", action="store_true", help="the ladder: other cases stay as they are")
    parser.add_argument("--commit", help="of the run, where its folder was no git checkout")
    args = parser.parse_args(arguments)
    run = json.loads(args.raw.read_text())
    if "benchmarks" in run:
        keep_ladder(ladder(run, args.commit), args.name, args.replace, args.merge)
    else:
        keep_engine(run, args.name or "engine_h200", args.commit)


def keep_engine(fresh: engine.Results, name: str, commit: str | None) -> None:
    """Merge a run of bench_engine into the results of its card."""
    path = RESULTS / f"{name}.json"
    for run in fresh["runs"]:
        run["commit"] = run["commit"] or commit or ""
    old = engine.load(path)
    if engine.device_of(old) not in (None, engine.device_of(fresh)):
        sys.exit(
            f"keep: {path.name} holds results of {engine.device_of(old)}, the run is of "
            f"{engine.device_of(fresh)}; figures of two cards are two files; pass another name"
        )
    engine.save(path, engine.merged(old, fresh))


def keep_ladder(fresh: Figures, name: str | None, replace: bool, merge: bool = False) -> None:
    """Write the figures of a ladder, without the names of the machine; not over another machine's."""
    path = RESULTS / f"{name or file_name(fresh['device'])}.json"
    old = json.loads(path.read_text()) if path.exists() else None
    if old and merge:
        _check_machine(path, old, fresh, "--replace without --merge")
        fresh = merged(old, fresh)
    elif old and not replace:
        _check_machine(path, old, fresh, "--replace")
        _check_cases(path, old, fresh)
    lines = json.dumps(fresh, indent=1, ensure_ascii=False).replace("\n   ", " ").replace("\n  }", " }")
    RESULTS.mkdir(exist_ok=True)
    write_whole(path, lines + "\n")
    print(f"{path.name}: {len(fresh['rows'])} figures of {fresh['device']}")


def merged(old: Figures, fresh: Figures) -> Figures:
    """Old figures with those of fresh cases in their places, or behind them, each with its commit."""
    new = {_case(row): {**row, "commit": fresh["commit"]} for row in fresh["rows"]}
    rows = [new.pop(_case(row), row) for row in old["rows"]]
    return {**old, "rows": [*rows, *new.values()]}


def ladder(run: dict[str, Any], commit: str | None) -> Figures:
    """Figures, device and versions of a run; the device is the one that the kernels ran on."""
    facts, rows = run["ggmlq"], [mark["extra_info"] for mark in run["benchmarks"] if mark["extra_info"]]
    if not rows:
        sys.exit("keep: the file holds no figures; run bench/bench_ladder.py with --benchmark-enable")
    gpu = facts["gpu"]["devices"][0] if rows[0]["kernel"].startswith("cuda:") else {}
    threads = {} if gpu else {"threads": facts["cpu"]["threads"]}
    return {
        "what": ON_GPU if gpu else ON_CPU,
        "device": gpu.get("name", facts["cpu"]["name"]),
        **threads,
        "driver_cuda": gpu.get("driver_cuda"),
        "date": run["datetime"][:10],
        "commit": commit or facts["commit"],
        "packages": {name: version for name, version in facts["packages"].items() if version},
        "roofs": {key: rows[0][key] for key in ("copy_GBps", "cublas_f16_TFLOPS") if key in rows[0]},
        "rows": [{key: row[key] for key in FACTS} for row in rows],
    }


def file_name(device: str) -> str:
    """The name of a device's file: ladder_h200 of "NVIDIA H200"."""
    return "ladder_" + re.sub(r"\W+", "_", device.removeprefix("NVIDIA ").lower()).strip("_")


def _check_machine(path: Path, old: Figures, fresh: Figures, option: str) -> None:
    """End where figures of two machines would be mixed, or those of another one lost.

    The name of a CPU is that of many machines; they are one only where their threads are as many too.
    """
    if (old["device"], old.get("threads", -1)) != (fresh["device"], fresh.get("threads", -1)):
        sys.exit(
            f"keep: {path.name} holds figures of {_machine(old)}, the run is of {_machine(fresh)}; "
            f"figures of two machines are two files; pass another name behind the file, or {option}"
        )


def _check_cases(path: Path, old: Figures, fresh: Figures) -> None:
    """End where figures of more cases would be lost."""
    lost = set(map(_case, old["rows"])) - set(map(_case, fresh["rows"]))
    if lost:
        sys.exit(
            f"keep: {path.name} holds {len(old['rows'])} figures, the run lacks {len(lost)} of them, "
            f"{' '.join(map(str, min(lost)))} first; run all of bench/bench_ladder.py, pass another name "
            "behind the file, or --merge, or --replace"
        )


def _machine(figures: Figures) -> str:
    """The device as people call it."""
    on_gpu = figures["rows"][0]["kernel"].startswith("cuda:")
    return (
        figures["device"]
        if on_gpu
        else f"{figures['device']} with {figures.get('threads', 'untold')} threads"
    )


def _case(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["asked"], row["format"], row["M"], row["N"], row["K"]


if __name__ == "__main__":
    main()
