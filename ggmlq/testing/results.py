"""The results of ``bench/bench_engine.py`` as a JSON file: rows of figures, and the runs of these rows.

    {"what": …, "runs": [{"device": …, "commit": …, "read_GBps": …}],
     "rows": [{"run": 0, "format": "q4_0", "N": 4096, "K": 14336, "M": 1, "asked": "auto", "way": "graph",
               "kernel": "cuda:streamk", "us": 12.3}]}

A row belongs to a run because a share of a roof only means something beside the roof of that run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..base.writing import write_whole

Row = dict[str, Any]
Results = dict[str, Any]

KEY = ("format", "N", "K", "M", "asked", "way")
ROOF = "cublas_f16"  # asked for: the product of halves, which belongs to its run like a roof


def merged(old: Results, new: Results) -> Results:
    """New results, and those old rows that were not measured again."""
    fresh = {key(row) for row in new["rows"]}
    old_rows = [row for row in old["rows"] if row["asked"] != ROOF and key(row) not in fresh]
    used = sorted({row["run"] for row in old_rows})
    old_rows = [row for row in old["rows"] if row["asked"] == ROOF and row["run"] in used] + old_rows
    runs = [old["runs"][i] for i in used] + new["runs"]
    rows = [{**row, "run": used.index(row["run"])} for row in old_rows]
    rows += [{**row, "run": row["run"] + len(used)} for row in new["rows"]]
    return {"what": new["what"], "runs": runs, "rows": rows}


def key(row: Row) -> tuple[Any, ...]:
    """The case that a row measures."""
    return tuple(row[name] for name in KEY)


def device_of(results: Results) -> str | None:
    """The card of all runs; results of two cards are two files."""
    return results["runs"][0]["device"] if results["runs"] else None


def load(path: Path) -> Results:
    """The rows of a file; none if there is no file."""
    if not path.exists():
        return {"what": "", "runs": [], "rows": []}
    results: Results = json.loads(path.read_text())
    return results


def save(path: Path, results: Results) -> None:
    """Write all results or nothing, a row a line."""
    lines = [f' "what": {_json(results["what"])},', ' "runs": [']
    lines += _lines(results["runs"])
    lines += [" ],", ' "rows": [', *_lines(results["rows"]), " ]"]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "\n".join(["{", *lines, "}"]) + "\n")


def _lines(records: list[Row]) -> list[str]:
    return [f"  {_json(record)}{',' * (i + 1 < len(records))}" for i, record in enumerate(records)]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
