"""Text from files made harmless for a terminal, and numbers for JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ..errors import GGMLQError
from ..gguf import Array

SHOWN = 8  # elements of a long array
WIDTH = 100  # characters of a long text


def name(text: str) -> str:
    """A name as it is, or escaped where it could move the cursor or break the table."""
    return text if text.isprintable() and text else repr(text)


def value(found: Any) -> str:
    """A metadata value in one line."""
    if isinstance(found, Array):
        items = ", ".join(value(item) for item in found[:SHOWN])
        return f"[{items}{', …' if len(found) > SHOWN else ''}] ({len(found)})"
    if isinstance(found, bytes):  # text that is not UTF-8
        return value(found.decode(errors="backslashreplace"))
    if isinstance(found, str):
        return repr(found if len(found) <= WIDTH else found[:WIDTH] + "…")
    return str(found)


def jsonable(found: Any) -> Any:
    """A value for JSON: long arrays cut to their first elements, NaN and infinity as text."""
    if isinstance(found, dict):
        return {key: jsonable(item) for key, item in found.items()}
    if isinstance(found, Array):
        return [jsonable(item) for item in found[:SHOWN]]
    if isinstance(found, list | tuple):
        return [jsonable(item) for item in found]
    if isinstance(found, bytes):
        return found.decode(errors="backslashreplace")
    if isinstance(found, float) and not math.isfinite(found):
        return str(found)
    return found


def in_full(found: Any) -> Any:
    """A value for JSON with all elements of arrays."""
    if isinstance(found, Array):
        return [in_full(item) for item in found]
    return jsonable(found)


def print_json(found: Any) -> None:
    """Strict JSON on stdout."""
    print(json.dumps(jsonable(found), indent=2, allow_nan=False))


def text_of(option: str, path: Path) -> str:
    """A file of text that an option names."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise GGMLQError(f"{option} {path}: cannot be read as text: {error}; name another") from error
