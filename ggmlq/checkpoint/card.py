"""Reader of the model card: the YAML between two lines of ``---`` at the top of a checkpoint's README.md.

It reads texts, lists of texts and lists of pairs, which model cards have, and leaves out deeper nesting.
"""

from __future__ import annotations

import os
import re
from typing import Any

from ..errors import ConvertError
from ..safetensors import jsons

LINE = re.compile(r"([A-Za-z_][\w-]*):(?:\s+(.*))?$")
MOST_BYTES = 1 << 22  # of the card; long tables of results take some hundred KB
MOST_ITEMS = 1 << 16  # of its lists; the longest known have some ten thousand


def read(folder: str) -> dict[str, Any]:
    """The entries of the card; empty where there is none, ConvertError where it is larger than cards are."""
    path = os.path.join(folder, "README.md")
    if not os.path.isfile(path):
        return {}
    values: dict[str, Any] = {}
    key, items = None, 0
    for line in _lines(path):
        items += line.count(",") + 1
        if items > MOST_ITEMS:
            raise _too_large(path, f"more than {MOST_ITEMS} entries")
        entry = LINE.match(line)
        if entry:
            key, value = entry[1], (entry[2] or "").strip()
            values[key] = _value(value) if value else []
        elif key is not None and isinstance(values[key], list) and re.match(r"\s*- ", line):
            values[key].append(_value(line.strip()[2:].strip()))
    return {key: value for key, value in values.items() if value not in ([], None)}


def _lines(path: str) -> list[str]:
    """The lines of the card."""
    text = jsons.read(path)
    lines = text[:MOST_BYTES].decode(errors="replace").replace("\t", "  ").splitlines()
    if not lines or lines[0] != "---":
        return []
    if "---" in lines[1:]:
        return lines[1 : lines.index("---", 1)]
    if len(text) > MOST_BYTES:
        raise _too_large(path, f"more than {MOST_BYTES} bytes")
    return []


def _too_large(path: str, size: str) -> ConvertError:
    return ConvertError(
        f"{path}: the model card at its top has {size}; none is as large; shorten it, or move the file away"
    )


def _value(text: str) -> Any:
    if text[:1] == "[" and text[-1:] == "]":
        parts = (part.strip() for part in text[1:-1].split(","))
        return [_value(part) for part in parts if part and part[0] != "["]
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    text = text.partition(" #")[0].strip()
    return None if text in ("null", "~", "") or text[:1] in "|>{&*" else text


def texts(values: Any) -> list[str]:
    """A value as a list of texts."""
    listed = values if isinstance(values, list) else [values]
    return [text for text in listed if isinstance(text, str)]
