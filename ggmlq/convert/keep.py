"""The option ``keep`` of a conversion: patterns of tensor names, and the type for tensors that match."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..errors import ConvertError
from ..formats import FORMATS, Format

SAME = "same"  # in place of a type: stay as you are

Keep = Mapping[str, "str | Format"] | Iterable[tuple[str, "str | Format"]]


class Rule(NamedTuple):
    """A pattern and a type: tensors with the pattern in their name get the type; None leaves them as is."""

    pattern: re.Pattern[str]
    format: Format | None

    def __str__(self) -> str:
        return f"{self.pattern.pattern}={self.format.name if self.format else SAME}"


def rules(keep: Keep) -> list[Rule]:
    """The rules of a user's ``keep``, with patterns compiled and types looked up."""
    rules = []
    for pattern, kind in keep.items() if isinstance(keep, Mapping) else keep:
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise ConvertError(
                f"keep {pattern!r}: is no regular expression: {error}; write a plain part of the name, or "
                "escape what has a meaning"
            ) from None
        fmt = None if isinstance(kind, str) and kind.lower() == SAME else FORMATS[kind]
        rules.append(Rule(compiled, fmt))
    return rules


def first(rules: Sequence[Rule], name: str) -> Rule | None:
    """The rule for a tensor: the first whose pattern is found in its name."""
    return next((rule for rule in rules if rule.pattern.search(name)), None)


def check_used(rules: Sequence[Rule], quantized: Sequence[str], left: Mapping[str, str]) -> None:
    """Refuse a pattern that matches no tensor that can change: it is probably mistyped."""
    for rule in rules:
        if any(rule.pattern.search(name) for name in quantized):
            continue
        only = [name for name in left if rule.pattern.search(name)]
        if only:
            raise ConvertError(
                f"keep {rule}: matches {len(only)} tensors, and all of them stay as they are, the first "
                f"is {only[0]!r} ({left[only[0]]}); as in llama.cpp a pattern chooses among the tensors "
                "that are converted; leave it out"
            )
        names = [*quantized, *left]
        near = difflib.get_close_matches(re.sub(r"[\\^$*+?()]", "", rule.pattern.pattern), names, 3, 0.3)
        way = f"did you mean {', '.join(map(repr, near))}?" if near else "`ggmlq info --tensors` lists them"
        raise ConvertError(f"keep {rule}: none of the {len(names)} tensors has such a name; {way}")
