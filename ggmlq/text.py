"""Plain text for people: tables and sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def printable(text: str) -> str:
    """Text of others as a terminal may see it: what moves the cursor, colours or hides comes escaped.

    Line breaks stay, since messages have lines; where one line is meant see :func:`table`.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns under a header; a column of numbers is aligned to the right. A cell is one line."""
    cells = [[printable(str(cell)).replace("\n", r"\n") for cell in row] for row in rows]
    lines = [list(header), *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    numeric = [bool(cells) and all(_is_number(row[i]) for row in cells) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    )


def _is_number(cell: str) -> bool:
    return cell[:1].isdigit() or (cell[:1] in "-+." and cell[1:2].isdigit()) or cell in ("", "-")


def html_table(header: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """The same for a notebook. Everything is escaped: names come out of files."""
    from html import escape  # where a notebook asks

    def line(cells: Iterable[object], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(printable(str(cell)))}</{tag}>" for cell in cells) + "</tr>"

    said = f"<caption>{escape(printable(caption))}</caption>" if caption else ""
    head = f"<thead>{line(header, 'th')}</thead>" if header else ""
    return f"<table>{said}{head}<tbody>{''.join(line(row, 'td') for row in rows)}</tbody></table>"


def short(value: object, width: int = 80) -> str:
    """The beginning of an object's repr, for an error; never an error itself."""
    try:
        return f"{value!r:.{width}}"
    except Exception:  # any object may come: a huge int refuses to print, others have a broken repr
        return "(unprintable)"


def size(n: int) -> str:
    """Bytes in the unit that reads best: 18.0 KiB."""
    amount, units = float(n), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        del units[0]
    return f"{n} bytes" if units[0] == "bytes" else f"{amount:.1f} {units[0]}"
