"""``Work``: a limit of the work and memory of a chat template, counted in characters and items."""

from __future__ import annotations

import re
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Set, ValuesView
from typing import Any

ITEM = 64  # an item of a list, a call, a round of a loop: bytes of it, in characters
NODE = 16  # a part of an expression
ESCAPED = 10  # characters that one may become when a value is shown: \U0001f600
BITS = 128  # of a number; larger ones are slow, and nothing in a conversation is counted by them
ITERABLES = (list, tuple, Set, KeysView, ValuesView, ItemsView)


class TooMuch(Exception):
    """A template wants more than a conversation needs."""


class Work:
    """The rest of the work that a template may do."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, amount: int) -> None:
        """Count work before it is done."""
        self.left -= max(amount, 0)
        if self.left < 0:
            raise TooMuch("it wants more work or memory than a conversation of this size needs")

    def measured(self, value: Any) -> Any:
        """A value whose characters or items are counted, without those within items."""
        self.take(len(value) * (1 if isinstance(value, str) else ITEM) if hasattr(value, "__len__") else 0)
        return value

    def weighed(self, value: Any) -> Any:
        """A value that is walked through to its end: compared, sorted, shown."""
        self.weight(value)
        return value

    def weight(self, value: Any) -> int:
        """Characters and items, however deep, which are counted; a list that is there twice counts twice."""
        total, waiting = 0, [value]
        while waiting:
            one = waiting.pop()
            if isinstance(one, str):
                total += len(one)
                continue
            if type(one).__name__ == "Namespace":
                one = one._Namespace__attrs
            inner: list[Iterable[Any]] = []
            if isinstance(one, Mapping):
                inner = [one.keys(), one.values()]
            elif isinstance(one, ITERABLES):
                inner = [one]
            total += ITEM * (1 + len(one) if inner or isinstance(one, range) else 1)
            if total > self.left:
                self.take(total)
            for items in inner:
                waiting.extend(items)
        self.take(total)
        return total

    def shown(self, value: Any) -> str:
        """The text of a value."""
        self.take(len(value) if isinstance(value, str) else ESCAPED * self.weight(value))
        return str(value)

    def listed(self, value: Any) -> Any:
        """A value, as a list where it is an iterator, whose items come one by one."""
        return list(self.counted(value)) if isinstance(value, Iterator) else value

    def counted(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield items, each of which is counted."""
        for item in items:
            self.take(ITEM)
            yield item

    def whole(self, value: Any) -> Any:
        """A value that is no number of hundreds of digits."""
        if isinstance(value, int) and value.bit_length() > BITS:
            raise TooMuch(f"it makes a number of {value.bit_length()} bits; {BITS} are enough to count")
        return value

    def searched(self, text: str, *parts: Any) -> None:
        """Count a search for parts in a text, which may compare each letter with each."""
        letters = sum(len(part) for part in parts if isinstance(part, str))
        self.take(len(text) + letters + len(text) * letters // 16)

    def widths(self, pattern: str) -> None:
        """Count the widths that a pattern for formatting names."""
        self.take(len(pattern) + sum(int(digits) for digits in re.findall(r"\d+", pattern)))
