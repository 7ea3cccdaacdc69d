"""The model card: what stands between two lines of ``---`` at the top of README.md.

That is YAML. Of it texts, lists of texts and lists of pairs are read, which is what model cards have; what is
nested deeper is left out.
"""

from __future__ import annotations

import os
import re
from typing import Any

from ..safetensors import jsons

LINE = re.compile(r"([A-Za-z_][\w-]*):(?:\s+(.*))?$")


def read(folder: str) -> dict[str, Any]:
    """The entries of the card; empty where there is none."""
    path = os.path.join(folder, "README.md")
    if not os.path.isfile(path):
        return {}
    lines = jsons.read(path).decode(errors="replace").replace("\t", "  ").splitlines()
    if not lines or lines[0] != "---" or "---" not in lines[1:]:
        return {}
    found: dict[str, Any] = {}
    key = None
    for line in lines[1 : lines.index("---", 1)]:
        entry = LINE.match(line)
        if entry:
            key, value = entry[1], (entry[2] or "").strip()
            found[key] = _value(value) if value else []
        elif key is not None and isinstance(found[key], list) and re.match(r"\s*- ", line):
            found[key].append(_value(line.strip()[2:].strip()))
    return {key: value for key, value in found.items() if value not in ([], None)}


def _value(text: str) -> Any:
    if text[:1] == "[" and text[-1:] == "]":
        return [_value(part.strip()) for part in text[1:-1].split(",") if part.strip()]
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    text = text.partition(" #")[0].strip()
    return None if text in ("null", "~", "") or text[:1] in "|>{&*" else text


def texts(found: Any) -> list[str]:
    """A value as a list of texts."""
    listed = found if isinstance(found, list) else [found]
    return [text for text in listed if isinstance(text, str)]
