"""Text from files made harmless for a terminal, tables of tensors, and numbers for JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.mixes import FILE_TYPE_KEY, file_type_name
from ..base.terminal import table
from ..base.text import size
from ..errors import GGMLQError, GGUFError

if TYPE_CHECKING:
    from ..gguf import GGUFFile

SHOWN = 8  # elements of a long array
WIDTH = 100  # characters of a long text


def name(text: str) -> str:
    """A name as it is, or escaped where it could move the cursor or break the table."""
    return text if text.isprintable() and text else repr(text)


def value(data: Any) -> str:
    """A metadata value in one line."""
    from ..gguf import Array

    if isinstance(data, Array):
        items = ", ".join(value(item) for item in data[:SHOWN])
        return f"[{items}{', …' if len(data) > SHOWN else ''}] ({len(data)})"
    if isinstance(data, bytes):  # text that is not UTF-8
        return value(data.decode(errors="backslashreplace"))
    if isinstance(data, str):
        return repr(data if len(data) <= WIDTH else data[:WIDTH] + "…")
    return str(data)


def jsonable(data: Any) -> Any:
    """A value for JSON: long arrays cut to their first elements, NaN and infinity as text."""
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    if isinstance(data, str | int | float | None):  # the many
        return data
    from ..gguf import Array

    if isinstance(data, dict):
        return {key: jsonable(item) for key, item in data.items()}
    if isinstance(data, Array):
        return [jsonable(item) for item in data[:SHOWN]]
    if isinstance(data, list | tuple):
        return [jsonable(item) for item in data]
    if isinstance(data, bytes):
        return data.decode(errors="backslashreplace")
    return data


def in_full(data: Any) -> Any:
    """A value for JSON with all elements of arrays."""
    if isinstance(data, str | int):  # the many
        return data
    from ..gguf import Array

    if isinstance(data, dict):
        return {key: in_full(item) for key, item in data.items()}
    if isinstance(data, Array):
        return [in_full(item) for item in data]
    return jsonable(data)


def metadata_facts(file: GGUFFile, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Type and value of each key, or the error that its value is; the name of a number that has one."""
    facts: dict[str, dict[str, Any]] = {}
    for key in keys:
        fact = facts[key] = {"type": file.metadata.type(key)}
        try:
            fact["value"] = file.metadata[key]
        except GGUFError as error:  # text that is not UTF-8
            fact["error"] = str(error)
            continue
        if key == FILE_TYPE_KEY and (called := file_type_name(fact["value"])):
            fact["name"] = called
    return facts


def metadata_table(facts: dict[str, dict[str, Any]]) -> str:
    """A table of the facts about keys."""
    return table(
        ["key", "type", "value"], [[name(key), fact["type"], _shown(fact)] for key, fact in facts.items()]
    )


def _shown(fact: dict[str, Any]) -> str:
    import numpy as np

    if "value" not in fact:
        return str(fact["error"])
    if fact["type"] == "float32":  # as it was written: 1e-06, not the double beside it
        return str(np.float32(fact["value"]))
    return value(fact["value"]) + (f" ({fact['name']})" if "name" in fact else "")


def tensor_table(facts: Iterable[dict[str, Any]], folded: bool) -> str:
    """A table of tensors; ``folded``: with the number of tensors that a line stands for."""
    rows = [
        [
            name(fact["name"]), fact["type"], " x ".join(map(str, fact["shape"])) or "scalar",
            *([fact["tensors"]] if folded else []), size(fact["bytes"]),
        ]
        for fact in facts
    ]  # fmt: skip
    return table(["tensor", "type", "shape", *["tensors"] * folded, "size"], rows)


def print_json(data: Any) -> None:
    """Strict JSON on stdout."""
    print(json.dumps(jsonable(data), indent=2, allow_nan=False))


def print_line(data: Any) -> None:
    """An object in a line of JSON on stdout, at once."""
    print(json.dumps(jsonable(data), allow_nan=False), flush=True)


def print_run(bridge: Any, device: Any, **facts: Any) -> None:
    """Facts about a library's run on a device, as JSON on stdout."""
    print_json({"library": library(bridge), "device": device.facts(), **facts})


def library(bridge: Any) -> dict[str, str]:
    """The library of a bridge as JSON has it."""
    return {"path": str(bridge.path), "version": bridge.version}


def text_of(option: str, path: Path) -> str:
    """A file of text that an option names."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise GGMLQError(f"{option} {path}: cannot be read as text: {error}; name another") from error
