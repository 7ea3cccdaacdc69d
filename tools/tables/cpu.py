"""The tables of bench/notes/cpu.md and README.md: what bench/bench_cpu.py measured, machines side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import RESULTS, Options, Texts, load, table

SHOWN = ("q4_0", "q8_0", "q4_K", "q6_K", "mxfp4")
MACHINES = sorted(RESULTS.glob("cpu_*.json"))
OPTIONS = {"--results": {"nargs": "*", "type": Path, "default": MACHINES, "help": "one of each machine"}}
ROW = ("M = 1, GB/s", "× llama.cpp", "from memory, of read", "many rows, GOP/s", "of peak", "× llama.cpp")
SHORT_ROW = ("one row, GB/s", "× llama.cpp", "512 rows, GOP/s", "× llama.cpp")
Report = dict[str, Any]


def texts(options: Options) -> Texts:
    """The note's tables, and the short one of the first page."""
    reports = [load(path) for path in options.results]
    most = max(run["threads"] for report in reports for run in report["results"])
    yield "bench/notes/cpu.md", "\n".join([*map(roofs, reports), "", full(reports, most)])
    yield "README.md", short(reports)


def full(reports: list[Report], threads: int) -> str:
    """One row a format, for a number of threads."""
    names = dict.fromkeys(run["format"] for report in reports for run in report["results"])
    rows = []
    for name in names:
        records = [records_of(report["results"], name, threads) for report in reports]
        many = next(record[1]["m"] for record in records if record)
        machines = zip(records, reports, strict=True)
        cells = [cell for record, report in machines for cell in _cells(record, report["results"], threads)]
        rows.append([name, many, *cells])
    return table([f"type, {_threads(threads)}", "many", *_header(reports, ROW)], rows)


def short(reports: list[Report]) -> str:
    """Types that are asked for most, on all threads; and which of all types are slower than llama.cpp."""
    machines, notes = [], []
    for report in reports:
        results = report["results"]
        threads = max(run["threads"] for run in results)
        records = {run["format"]: records_of(results, run["format"], threads) for run in results}
        machines.append(records)
        one, many = (_slower([(name, r[i]["ratio"]) for name, r in records.items() if r]) for i in (0, 1))
        notes.append(
            f"{brand(report)}: {threads} threads of {report['machine']['cpu']['name']}, {report['peer']}. "
            f"Slower than llama.cpp, of {len(records)} types: with one row {one}; with many rows {many}."
        )
    rows = [[name, *(cell for m in machines for cell in _short_cells(m[name]))] for name in SHOWN]
    return "\n".join([table(["type", *_header(reports, SHORT_ROW)], rows), "", *notes])


def roofs(report: Report) -> str:
    """A machine and what it can do at most: of several runs the best."""
    results, machine = report["results"], report["machine"]
    most = "; ".join(
        f"{_threads(n)} {best(results, n, 'peak_gops'):.0f} GOP/s in registers, "
        f"{best(results, n, 'read_gbs'):.1f} GB/s read"
        for n in dict.fromkeys(run["threads"] for run in results)
    )
    commits = ", ".join(dict.fromkeys(run["commit"] for run in results))
    return (
        f"- {machine['cpu']['name']}: {report['peer']}, Python {machine['python']}, "
        f"numba {machine['packages']['numba']}, commits {commits}; {most}"
    )


def best(results: list[Report], threads: int, roof: str) -> float:
    """The highest roof that a run saw."""
    return max(float(run[roof]) for run in results if run["threads"] == threads)


def brand(report: Report) -> str:
    """The maker of the CPU, as a heading."""
    name = report["machine"]["cpu"]["name"]
    return "Intel" if "Intel" in name else "AMD" if name.startswith(("AMD", "znver")) else str(name)


def records_of(results: list[Report], name: str, threads: int) -> tuple[Any, Any, Any] | None:
    """Records of a format: one row of activations, many, and one with weights from memory (or None)."""
    runs = [run for run in results if (run["format"], run["threads"]) == (name, threads)]
    if not runs:
        return None
    return (
        next(run for run in runs if run["m"] == 1 and "ratio" in run),
        next(run for run in runs if run["m"] > 1),
        next((run for run in runs if run.get("in_memory")), None),
    )


def _header(reports: list[Report], cells: tuple[str, ...]) -> list[str]:
    return [cell for report in reports for cell in (f"{brand(report)}: {cells[0]}", *cells[1:])]


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"


def _cells(record: tuple[Any, Any, Any] | None, results: list[Report], threads: int) -> list[str]:
    if record is None:
        return ["–"] * len(ROW)
    one, many, memory = record
    read = (memory or {}).get("beside_gbs") or best(results, threads, "read_gbs")
    peak = best(results, threads, "peak_gops")
    return [
        f"{one['gbs']:.1f}", f"{one['ratio']:.2f}", f"{memory['gbs'] / read:.0%}" if memory else "–",
        f"{many['gops']:.0f}", f"{many['gops'] / peak:.0%}", f"{many['ratio']:.2f}",
    ]  # fmt: skip


def _short_cells(record: Any) -> list[str]:
    one, many, _ = record
    return [f"{one['gbs']:.1f}", f"{one['ratio']:.2f}", f"{many['gops']:.0f}", f"{many['ratio']:.2f}"]


def _slower(ratios: list[tuple[str, float]]) -> str:
    """The types below 1, the slowest first."""
    slow = sorted((ratio, name) for name, ratio in ratios if ratio < 1)
    return ", ".join(f"{name} ({ratio:.2f})" for ratio, name in slow) or "none"
