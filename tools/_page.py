"""Parts of documentation pages that tools write: the text between two comments, tables, llama.cpp's times."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

END = "<!-- end of table -->"
LLAMA = Path(__file__).parents[1] / "bench" / "baseline" / "ggml_cuda_h200.json"


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in rows]
    return "\n".join([f"| {' | '.join(header)} |", "|---" * len(header) + "|", *lines])


def llama(name: str, m: int, n: int, k: int) -> float | None:
    """llama.cpp's microseconds on the reference card, where they were measured."""
    return _times().get((name.lower(), m, n, k))


def llama_card() -> str:
    """The card that they were measured on, and its driver."""
    return str(_llama()["device"])


@cache
def _times() -> dict[tuple[str, int, int, int], float]:
    rows = _llama()["rows"]
    return {(row["type"].lower(), row["M"], row["N"], row["K"]): float(row["us"]) for row in rows}


@cache
def _llama() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(LLAMA.read_text())
    return found


def put(page: str, begin: str, text: str, end: str = END) -> str:
    """The page with this text between its two markers."""
    head, rest = page.split(begin)
    return f"{head}{begin}\n{text}\n{end}{rest.split(end, 1)[1]}"


def settle(path: Path, fresh: str, check: bool) -> int:
    """Write the page; or only say whether it is fresh, as an exit status."""
    if not check:
        path.write_text(fresh)
        return 0
    same = fresh == path.read_text()
    print(f"{path.name} is {'fresh' if same else f'stale: run tools/{Path(sys.argv[0]).name}'}")
    return int(not same)
