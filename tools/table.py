#!/usr/bin/env python3
"""Write the generated tables and pictures of the documents, or compare them with what the documents hold.

    python tools/table.py --help            # the tables
    python tools/table.py engine            # write the tables of docs/engine.md and README.md
    python tools/table.py engine --check    # write nothing: exit status 1 if the documents hold other tables
    python tools/table.py engine --print    # print the tables, write nothing
    python tools/table.py engine --help     # the options that only this table has

Each file of tools/tables is one of them: its ``texts`` yields documents and what belongs into them, its
``OPTIONS`` are arguments of argparse. A Markdown page is changed between the table's comment and the next
end, "docs/engine.md short" at ``<!-- table: tools/tables/engine.py short -->``; others are written whole.
"""

from __future__ import annotations

import argparse
import ast
import sys
from importlib import import_module
from pathlib import Path

from tables import ROOT

from ggmlq.base.writing import write_whole

TABLES = {path.stem: path for path in sorted((ROOT / "tools" / "tables").glob("[a-z]*.py"))}
END = "<!-- end of table -->"


def main(arguments: list[str] | None = None) -> int:
    """Run one table; the exit status."""
    chosen = _parser(__doc__ or "", epilog="tables:\n" + "\n".join(map(_line, TABLES)))
    chosen.add_argument("table", choices=TABLES, metavar="TABLE", help="a name from the list below")
    chosen.add_argument("options", nargs=argparse.REMAINDER, help="see: TABLE --help")
    name, words = vars(chosen.parse_args(arguments)).values()
    table = import_module(f"tables.{name}")
    parser = _parser(table.__doc__, prog=f"{chosen.prog} {name}")
    parser.add_argument("--check", action="store_true", help="compare with the documents, write nothing")
    parser.add_argument("--print", action="store_true", help="print the texts, write nothing")
    for option, settings in getattr(table, "OPTIONS", {}).items():
        parser.add_argument(option, **settings)
    options = parser.parse_args(words)
    documents: dict[Path, bytes] = {}
    for place, text in table.texts(options):
        if options.print:
            print(text if isinstance(text, str) else f"{place}: {len(text)} bytes")
            continue
        document, _, part = place.partition(" ")
        path = ROOT / document
        if path.suffix == ".md":
            page = documents.get(path) or path.read_bytes()
            comment = f"<!-- table: tools/tables/{name}.py {part}".rstrip() + " -->"
            documents[path] = put(page.decode(), comment, text, document).encode()
        else:
            documents[path] = text.encode() if isinstance(text, str) else text
    return max((settle(path, content, options.check) for path, content in documents.items()), default=0)


def put(page: str, comment: str, text: str, document: str) -> str:
    """The page with a text between the table's comment and the next end; blank lines around it stay."""
    before, begin, rest = page.partition(comment)
    old, end, after = rest.partition(END)
    if not (begin and end):
        sys.exit(
            f"{document} has no place for this table, {comment} and then {END}: a table replaces what lies "
            "between the two; add both lines where it belongs"
        )
    blank = old[: len(old) - len(old.lstrip("\n"))]
    return f"{before}{begin}{blank}{text}{blank}{end}{after}"


def settle(path: Path, content: bytes, check: bool) -> int:
    """Write a document, or only compare it; the exit status."""
    if check:
        same = path.exists() and path.read_bytes() == content
        print(f"{path.name} is {'fresh' if same else 'stale: write it without --check'}")
        return int(not same)
    write_whole(path, content)
    return 0


def _parser(description: str, **settings: str) -> argparse.ArgumentParser:
    shape = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(description=description, formatter_class=shape, **settings)


def _line(name: str) -> str:
    title = ast.get_docstring(ast.parse(TABLES[name].read_text())) or ""
    return f"  {name:14} {title.splitlines()[0]}"


if __name__ == "__main__":
    sys.exit(main())
