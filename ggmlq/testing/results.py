"""Results of ``bench/bench_engine.py``: rows of figures, and the runs that they come from.

    {"what": …, "runs": [{"device": …, "commit": …, "read_GBps": …}],
     "rows": [{"run": 0, "format": "q4_0", "N": 4096, "K": 14336, "M": 1, "asked": "auto", "way": "graph",
               "kernel": "cuda:streamk", "us": 12.3}]}

A row belongs to a run because a share of a roof only means something beside the roof of that run.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Results = dict[str, Any]

KEY = ("format", "N", "K", "M", "asked", "way")
ROOF = "cublas_f16"  # asked for: the product of halves, which belongs to its run like a roof


def merged(old: Results, new: Results) -> Results:
    """New results, and of the old ones what was not measured again."""
    fresh = {key(row) for row in new["rows"]}
    kept = [row for row in old["rows"] if row["asked"] != ROOF and key(row) not in fresh]
    used = sorted({row["run"] for row in kept})
    kept = [row for row in old["rows"] if row["asked"] == ROOF and row["run"] in used] + kept
    runs = [old["runs"][i] for i in used] + new["runs"]
    rows = [{**row, "run": used.index(row["run"])} for row in kept]
    rows += [{**row, "run": row["run"] + len(used)} for row in new["rows"]]
    return {"what": new["what"], "runs": runs, "rows": rows}


def key(row: Row) -> tuple[Any, ...]:
    """What a row is about."""
    return tuple(row[name] for name in KEY)


def device_of(found: Results) -> str | None:
    """The card of all runs; results of two cards are two files."""
    return found["runs"][0]["device"] if found["runs"] else None


def load(path: Path) -> Results:
    """What a file holds; nothing if it is not there."""
    if not path.exists():
        return {"what": "", "runs": [], "rows": []}
    found: Results = json.loads(path.read_text())
    return found


def save(path: Path, found: Results) -> None:
    """Write all of it or nothing, a line a row."""
    lines = [f' "what": {_json(found["what"])},', ' "runs": [']
    lines += _lines(found["runs"])
    lines += [" ],", ' "rows": [', *_lines(found["rows"]), " ]"]
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    beside.write_text("\n".join(["{", *lines, "}"]) + "\n")
    os.replace(beside, path)


def _lines(records: list[Row]) -> list[str]:
    return [f"  {_json(record)}{',' * (i + 1 < len(records))}" for i, record in enumerate(records)]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
