r"""Files of tensor types, which llama-quantize takes: ``PATTERN=TYPE``, between blanks or line ends.

Patterns are regular expressions, found anywhere in a name. llama-quantize makes them lower case and has no
comments. What is written here fits whole names, all layers of a tensor that get the same type in one line:

    ^blk\.(0|1|7)\.ffn_down\.weight$=q6_K
"""

from __future__ import annotations

import difflib
import os
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..base.text import short
from ..errors import ConvertError, GGUFNotFoundError, GGUFOSError
from ..formats import FORMATS, Format
from ..gguf.atomic import Staging
from ..gguf.source import checked_path
from .model import LAYER

# --- the option keep -------------------------------------------------------------------------
# Patterns of tensor names, and the type for tensors that match.

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


# --- files of types --------------------------------------------------------------------------

PLAIN = set(string.ascii_lowercase + string.digits + "_-")
MOST_BYTES = 1 << 24


def read(path: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """Pairs of pattern and type, in their order, as ``keep`` of :func:`ggmlq.convert.quantize` takes them."""
    name = checked_path("read_tensor_types(path)", path, "pass the path of a text file")
    try:
        with open(name, "rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise GGUFNotFoundError(
            f"tensor types: {name}: there is no such file; check the path", error
        ) from error
    except OSError as error:
        raise GGUFOSError(
            f"tensor types: {name}: cannot be read: {error.strerror or error}; name a text file", error
        ) from error
    try:
        if len(raw) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        text = raw.decode()
        if "\0" in text:
            raise ValueError("it has null bytes")
    except ValueError as error:
        raise ConvertError(
            f"tensor types: {name}: {error}; a file of types is a short text of PATTERN=TYPE, one a line"
        ) from None
    return [_pair(name, i, token) for i, token in enumerate(text.split())]


def _pair(path: str, index: int, token: str) -> tuple[str, str]:
    pattern, equals, kind = token.partition("=")  # at the first, as llama-quantize does
    if not (pattern and equals and kind):
        raise ConvertError(
            f"tensor types: {path}: entry {index + 1}, {short(token)}, is no PATTERN=TYPE; write "
            "attn_v=q6_K, without blanks; there are no comments"
        )
    return pattern.lower(), kind


def patterns(types: Mapping[str, Format]) -> list[tuple[str, str]]:
    """Pairs of pattern and type that give whole names their types, in llama-quantize too."""
    layers: dict[tuple[str, str, Format], list[str]] = {}
    for name, fmt in types.items():
        match = LAYER.match(name)
        number, rest = (match[1], name[match.end() :]) if match else ("", name)
        layers.setdefault(("blk" if match else "", rest, fmt), []).append(number)
    pairs = []
    for (block, rest, fmt), numbers in layers.items():
        which = numbers[0] if len(numbers) == 1 else f"({'|'.join(numbers)})"
        prefix = rf"blk\.{which}\." if block else ""
        pairs.append((f"^{prefix}{_escaped(rest)}$", fmt.name))
    _check_apart(types, pairs)
    return pairs


def _escaped(name: str) -> str:
    """A name as a pattern that stays the same in lower case and holds neither blank nor '='."""
    parts = (c if c in PLAIN else r"\." if c == "." else "." if c.isascii() else ".+" for c in name)
    return "".join(parts)


def _check_apart(types: Mapping[str, Format], pairs: list[tuple[str, str]]) -> None:
    """Refuse patterns that fit a second name: a character that patterns cannot hold became a wildcard."""
    if all(set(name) <= PLAIN | {"."} for name in types):
        return
    compiled = [(re.compile(pattern), kind) for pattern, kind in pairs]
    for name, fmt in types.items():
        first = next((pair for pair in compiled if pair[0].search(name)), None)
        if first is None or FORMATS[first[1]] is not fmt:
            raise ConvertError(
                f"tensor types: {short(name)} to {fmt.name}: no pattern of llama-quantize's tells this name "
                "from another; rename the tensor, or choose its type with --keep"
            )


def write(path: str | os.PathLike[str], types: Mapping[str, Format]) -> str:
    """Write the types of tensors by name; the file is there in full or not at all."""
    name = checked_path("write_tensor_types(path, types)", path, "pass the path of the new file")
    text = "".join(f"{pattern}={kind}\n" for pattern, kind in patterns(types))
    try:
        with Staging([name]) as staging:
            staging.write([text.encode()])
            staging.commit()
    except OSError as error:
        raise GGUFOSError(
            f"tensor types: {name}: the system refused: {error.strerror or error}; check the folder and its "
            "permissions",
            error,
        ) from error
    return name
