"""Plain text for people: tables, sizes, numbers, plurals, and names that resemble a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

NARROW = 12  # characters that a column keeps on a narrow page
COMPARED, LONGEST = 2000, 200  # names, and their length, among which similar ones are looked for


def printable(text: str) -> str:
    """Foreign text made safe for a terminal: characters that move the cursor, colour or hide are escaped.

    Line breaks stay, since messages have lines; :func:`table` makes one line of them.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def table(header: Sequence[str], rows: Iterable[Sequence[object]], width: int | None = None) -> str:
    """A table as text, with columns under a header; numbers are aligned to the right. A cell is one line.

    ``width``: of the page; cells are cut to fit it, those of the first column in their middle.
    """
    cells = [[printable(str(cell)).replace("\n", r"\n") for cell in row] for row in rows]
    lines = [list(header), *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    numeric = [bool(cells) and all(_is_number(row[i]) for row in cells) for i in range(len(header))]
    if width is not None:
        _narrow(widths, numeric, width)
    return "\n".join(
        "  ".join(
            cell.rjust(room) if right else cut(cell, room, middle=i == 0).ljust(room)
            for i, (cell, room, right) in enumerate(zip(line, widths, numeric, strict=True))
        ).rstrip()
        for line in lines
    )


def _narrow(widths: list[int], numeric: list[bool], width: int) -> None:
    """Take from the widest columns of words until all fit, or until none can be narrower."""
    while sum(widths) + 2 * (len(widths) - 1) > width:
        words = [i for i, right in enumerate(numeric) if not right and widths[i] > NARROW]
        if not words:
            return
        widths[max(words, key=widths.__getitem__)] -= 1


def cut(words: str, room: int, middle: bool = False) -> str:
    """Words that fit into some characters; a cut shows as ``…``."""
    if len(words) <= room:
        return words
    end = (room - 1) // 2 if middle else 0
    return f"{words[: room - 1 - end]}…{words[len(words) - end :] if end else ''}"


def _is_number(cell: str) -> bool:
    return cell[:1].isdigit() or (cell[:1] in "-+." and cell[1:2].isdigit()) or cell in ("", "-")


def html_table(header: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A table in HTML for a notebook. Everything is escaped, because names come out of files."""
    from html import escape  # where a notebook asks

    def line(cells: Iterable[object], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(printable(str(cell)))}</{tag}>" for cell in cells) + "</tr>"

    title = f"<caption>{escape(printable(caption))}</caption>" if caption else ""
    head = f"<thead>{line(header, 'th')}</thead>" if header else ""
    return f"<table>{title}{head}<tbody>{''.join(line(row, 'td') for row in rows)}</tbody></table>"


class Request:
    """The words of an error about an object, made once it needs them; ``verb`` may be a function too."""

    def __init__(self, verb: str | Callable[[], str], of: object) -> None:
        self._verb, self._of = verb, of

    def __str__(self) -> str:
        return f"{self._verb if isinstance(self._verb, str) else self._verb()} {self._of!r}"


def short(value: object, width: int = 80) -> str:
    """The beginning of an object's repr, for an error; never an error itself."""
    try:
        return f"{value!r:.{width}}"
    except Exception:  # any object may come: a huge int refuses to print, others have a broken repr
        return "(unprintable)"


def size(n: int, unit: str | None = None) -> str:
    """Bytes in the unit that reads best, or in a given one: 18.0 KiB."""
    amount, units = float(n), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while (amount >= 1024 if unit is None else units[0] != unit) and len(units) > 1:
        amount /= 1024
        del units[0]
    return count(n, "byte") if units[0] == "bytes" else f"{amount:.1f} {units[0]}"


def number(n: int) -> str:
    """A number as text in the unit that reads best: 7.24 B, 151 k."""
    for unit, scale in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if n >= scale:
            amount = n / scale
            return f"{amount:.{2 if amount < 10 else 1 if amount < 100 else 0}f} {unit}"
    return str(n)


def three_digits(value: float) -> str:
    """A figure in three digits, without an exponent where it is large: 0.0123, 4.56, 4460."""
    words = f"{value:.3g}"
    return f"{float(words):.0f}" if "e+" in words else words


def count(n: int, thing: str, many: str = "") -> str:
    """``1 tensor``, ``2 tensors``."""
    return f"{n} {thing if n == 1 else many or thing + 's'}"


def near(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Names that a misspelt name may stand for: those that contain it, else those that look like it."""
    low = name.lower()
    if not 0 < len(low) <= LONGEST:
        return []
    names = [
        candidate for candidate in islice(known, COMPARED) if len(candidate) <= LONGEST
    ]  # comparing takes 50 us a name
    lows = [candidate.lower() for candidate in names]
    alike = difflib.get_close_matches(low, lows, most, 0.75) or difflib.get_close_matches(
        low, lows, most, 0.5
    )
    inside = [candidate for candidate in lows if len(low) > 1 and low in candidate]
    by_low = {candidate.lower(): candidate for candidate in reversed(names)}
    return [by_low[candidate] for candidate in dict.fromkeys([*inside, *alike])][:most]


def meant(name: str, known: Iterable[str], way: str) -> str:
    """The end of an error about an unknown name: similar names, or another way out."""
    similar = near(name, known)
    return f"did you mean {' or '.join(map(repr, similar))}?" if similar else way
