#!/usr/bin/env python3
"""Write the table of types in docs/formats.md from the format files themselves.

python tools/format_table.py [--check]
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from _page import put, settle

from ggmlq.formats import FORMATS, BlockFormat, Format

PAGE = Path(__file__).parents[1] / "docs" / "formats.md"
BEGIN = "<!-- table: tools/format_table.py -->"


def formula(fmt: Format) -> str:
    """The value formula in the first line of the format's file."""
    if not isinstance(fmt, BlockFormat):
        return ""
    doc = sys.modules[fmt.unpack.__module__].__doc__ or ""
    found = re.search(r"``value = (.+?)``", doc)
    assert found, f"{fmt.name}: the docstring states no formula"
    return f"`{found[1]}`"


def table() -> str:
    """One line a type, in the order of ids."""
    lines = [
        "| type | id | block | bytes | bits | value | group | encode |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for fmt in FORMATS.values():
        stem = fmt.name.lower() if isinstance(fmt, BlockFormat) else "scalars"
        lines.append(
            f"| [{fmt.name}](../ggmlq/formats/{stem}.py) | {fmt.id} | {fmt.block_size} "
            f"| {fmt.dtype.itemsize} | {fmt.bits_per_weight:g} | {formula(fmt)} "
            f"| {getattr(fmt, 'group', '')} | {'yes' if fmt.can_quantize else ''} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the page, write nothing")
    check = parser.parse_args().check
    return settle(PAGE, put(PAGE.read_text(), BEGIN, table()), check)


if __name__ == "__main__":
    sys.exit(main())
