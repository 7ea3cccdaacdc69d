"""The filters, tests, methods and operators that a chat template may use, each with the work that it takes.

A cost is counted before the call. Where a filter goes through an iterator, it gets a list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

from .work import ESCAPED, ITEM, Work

Cost = Callable[[Work, list[Any], dict[str, Any]], None]
SEPARATORS = 16  # in the name of an attribute, such as ``function.name``


def free(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Nothing beyond the call."""


def of_items(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
    """An item for each letter or item."""
    args[0] = work.listed(args[0])
    work.take(ITEM * len(args[0]) if hasattr(args[0], "__len__") else 0)


def deep(factor: int) -> Cost:
    """All that is in the operands, so many times."""

    def cost(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
        args[0] = work.listed(args[0])
        work.take(factor * work.weight([args, kwargs]))

    return cost


def named(cost: Cost, first: int = 1, last: int = 4) -> Cost:
    """A cost of a filter that looks up an attribute of each item, among these operands."""

    def checked(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
        for name in [*args[first:last], kwargs.get("attribute")]:
            if isinstance(name, str) and name.count(".") + name.count(",") > SEPARATORS:
                raise TypeError("an attribute of many parts")
        cost(work, args, kwargs)

    return checked


def numbers(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Numbers alone: ``%`` and ``*`` of a text are something else."""
    for value in [*args[:1], *args[1:2]]:
        if not isinstance(value, Real):
            raise TypeError(f"{type(value).__name__} in place of a number")
    work.take(sum(abs(int(value)) ** 2 for value in [*args[1:2], *kwargs.values()] if isinstance(value, int)))


def _sum(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
    deep(4)(work, args, kwargs)
    start = kwargs.get("start", args[2] if len(args) > 2 else 0)
    if not isinstance(start, Real):  # lists, of which each sum is a copy
        work.take(len(args[0]) * work.weight(args[0]) // ITEM)


def _join(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
    args[0] = work.listed(args[0])
    between = kwargs.get("d", args[1] if len(args) > 1 else "")
    joined(work, str(work.shown(between)), args[0])


def joined(work: Work, between: str, items: Any) -> None:
    """Texts with another one between them."""
    of_items(work, [items], {})
    for item in items:
        work.take(len(between) + (len(item) if isinstance(item, str) else ESCAPED * work.weight(item)))


def _trim(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
    work.searched(work.shown(args[0]), *args[1:], *kwargs.values())


def _replace(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
    names = ("s", "old", "new")
    text, old, new = (
        work.shown(kwargs.get(name, args[i] if i < len(args) else "")) for i, name in enumerate(names)
    )
    replaced(work, text, old, new)


def replaced(work: Work, text: str, old: str, new: str) -> None:
    """A text with all places of another one replaced."""
    work.searched(text, old)
    work.take(len(text) + text.count(old) * len(new))


def _indent(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
    width = kwargs.get("width", args[1] if len(args) > 1 else 4)
    lines = len(re.findall(r"[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]", work.shown(args[0]))) + 2
    work.take(lines * (ITEM + (len(width) if isinstance(width, str) else int(width))))


def _json(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
    weight = 6 * work.weight(args[0])
    work.take(weight)
    width = kwargs.get("indent", args[1] if len(args) > 1 else None)
    if width is not None:
        level, depth = [args[0]], 0
        while level and depth < 1000:
            level, depth = [part for one in level for part in _within(one)], depth + 1
        work.take(weight // ITEM * depth * (len(width) if isinstance(width, str) else int(width)))


def _within(value: Any) -> Any:
    return value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()


def _format(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
    formatted(work, work.shown(args[0]), kwargs or tuple(args[1:]))


def formatted(work: Work, pattern: str, values: Any) -> None:
    """A text with ``%``: the widths in it, and the values at each sign."""
    if isinstance(values, tuple) and re.search(r"%[^a-zA-Z%]*\*", pattern):
        raise TypeError("a width of % that is a value itself")
    work.widths(pattern)
    work.take(pattern.count("%") * (ITEM + ESCAPED * work.weight(values)))


def _center(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
    work.shown(args[0])
    work.take(int(kwargs.get("width", args[1] if len(args) > 1 else 80)))


def _pieces(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
    of_items(work, args, kwargs)
    work.take(sum(ITEM * int(value) for value in [*args[1:], *kwargs.values()] if isinstance(value, int)))


def inside(work: Work, part: Any, value: Any) -> None:
    """A search by ``in``."""
    if isinstance(part, str) and isinstance(value, str):
        work.searched(value, part)
        return
    work.weighed(part)
    if not isinstance(value, Mapping) and not (isinstance(value, range) and isinstance(part, int)):
        work.weighed(value)


FREE = (
    "attr", "count", "d", "default", "first", "float", "int", "items", "last", "length", "reject",
    "safe", "select",
)  # fmt: skip
FILTERS: dict[str, Cost] = {
    **dict.fromkeys(FREE, free),
    **dict.fromkeys(("rejectattr", "selectattr"), named(free, last=2)),
    "map": named(free), "abs": numbers, "round": numbers, "list": of_items, "reverse": of_items,
    "batch": _pieces, "slice": _pieces,
    **dict.fromkeys(("capitalize", "lower", "upper", "string"), deep(ESCAPED)),
    **dict.fromkeys(("e", "escape", "forceescape", "urlencode", "truncate"), deep(12)),
    **dict.fromkeys(("title", "wordcount"), deep(ITEM)),
    **dict.fromkeys(("dictsort", "groupby", "max", "min", "sort", "unique"), named(deep(32))),
    "trim": _trim, "sum": named(_sum), "join": named(_join, 2), "replace": _replace, "indent": _indent,
    "tojson": _json, "format": _format, "center": _center,
}  # fmt: skip
COMPARISONS = (
    "==", "eq", "equalto", "!=", "ne", ">", "gt", "greaterthan", "ge", ">=", "<", "lt", "lessthan",
    "<=", "le",
)  # fmt: skip
TESTS: dict[str, Cost] = {
    **dict.fromkeys(("odd", "even", "divisibleby"), numbers),
    **dict.fromkeys(COMPARISONS, deep(1)),
    **dict.fromkeys(("lower", "upper"), deep(ESCAPED)),
    "in": lambda work, args, kwargs: inside(work, args[0], args[1]),
}


# --- operators --------------------------------------------------------------------------------


def operator(work: Work, sign: str, left: Any, right: Any) -> None:
    """An operator between two values."""
    if isinstance(left, int) and isinstance(right, int):
        work.take(max(right, 0) * left.bit_length() if sign == "**" else 0)
    elif isinstance(left, Real) and isinstance(right, Real):
        return
    elif sign == "%" and isinstance(left, str):
        formatted(work, left, right)
    elif sign == "*":
        times = next((value for value in (left, right) if isinstance(value, int)), 0)
        for value in (left, right):
            work.take(
                times * len(value) * (1 if isinstance(value, str) else ITEM)
                if hasattr(value, "__len__")
                else 0
            )
    elif sign == "+":
        for value in (left, right):
            work.measured(value)
            if hasattr(value, "__html__"):  # escapes the other one
                work.take(6 * work.weight([left, right]))
    else:
        work.weighed([left, right])


# --- methods ----------------------------------------------------------------------------------

PLAIN = {
    "capitalize", "casefold", "endswith", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit",
    "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "lower",
    "lstrip", "removeprefix", "removesuffix", "rstrip", "startswith", "strip", "swapcase", "title",
    "upper", "count", "find", "index", "rfind", "rindex",
}  # fmt: skip
CUTS = {"partition", "rpartition", "rsplit", "split", "splitlines"}
WIDE = {"center", "ljust", "rjust", "zfill"}
OTHERS: dict[type, set[str]] = {
    dict: {"get", "items", "keys", "values", "copy"}, list: {"count", "index", "copy"},
    tuple: {"count", "index"},
}  # fmt: skip


def method(work: Work, owner: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Count a method of a value; False for one that templates cannot call."""
    if isinstance(owner, str):
        return _of_text(work, owner, name, args, [*args, *kwargs.values()])
    for kind, names in OTHERS.items():
        if isinstance(owner, kind) and name in names:
            work.weighed([args, owner if name in ("count", "copy", "index") else None])
            return True
    return False


def _of_text(work: Work, text: str, name: str, args: list[Any], operands: list[Any]) -> bool:
    escaped = 6 if hasattr(text, "__html__") else 1
    work.take(3 * len(text) + escaped * work.weight(operands))
    if name in PLAIN or name in CUTS:
        parts = [part for one in operands for part in (one if isinstance(one, tuple) else [one])]
        work.searched(text, *parts)
        if name in CUTS:
            between = [part for part in parts if isinstance(part, str)]
            work.take(ITEM * (2 + (text.count(between[0]) if between and between[0] else len(text) // 2)))
    elif name in WIDE:
        work.take(sum(int(width) for width in operands if isinstance(width, int)))
    elif name == "join" and args:
        args[0] = work.listed(args[0])
        for _ in range(escaped):
            joined(work, text, args[0])
    elif name == "replace" and len(args) > 1:
        replaced(work, text, str(args[0]), str(args[1]))
    else:
        return False
    return True
