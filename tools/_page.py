"""Parts of documentation pages that tools write: the text between two comments."""

from __future__ import annotations

import sys
from pathlib import Path

END = "<!-- end of table -->"


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
