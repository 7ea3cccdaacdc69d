"""Reader of JSON that may be hostile: bounded before parsing, and every failure is an error in words.

A parser makes an object of some hundred bytes out of two characters, so the brackets and commas decide about
memory. Both are counted first, which takes a millisecond a megabyte.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any, NoReturn

from ..base.text import short
from ..errors import SafetensorsError, SafetensorsNotFoundError, SafetensorsOSError

MOST_BYTES = 1 << 26  # of a text; the largest tokenizers take 33 MB
MOST_NESTED = 1 << 21  # brackets: a merge of a tokenizer has one; the largest have half a million merges
MOST_ITEMS = 1 << 22  # commas; the largest tokenizers have 1.3 million


class _Refused(ValueError):
    """A reason in words."""


def parsed(raw: bytes, most_nested: int = MOST_NESTED, most_items: int = MOST_ITEMS) -> Any:
    """The value of a JSON text; ValueError with the reason for anything that is not strict JSON."""
    for what, most, count in (
        ("brackets", most_nested, raw.count(b"[") + raw.count(b"{")),
        ("commas", most_items, raw.count(b",")),
    ):
        if count > most:
            raise _Refused(
                f"it has {count} {what}, {most} are read; it is damaged or made to fill the memory"
            )
    try:
        return json.loads(raw.decode(), object_pairs_hook=_unique, parse_constant=_constant)
    except UnicodeDecodeError as error:
        raise _Refused(f"it is not UTF-8 at its byte {error.start} ({error.reason})") from None
    except json.JSONDecodeError as error:
        raise _Refused(f"it is no JSON: {error.msg} at its character {error.pos}") from None
    except RecursionError:
        raise _Refused("it is nested too deep") from None
    except _Refused:
        raise
    except ValueError:  # of numbers with thousands of digits
        raise _Refused("it has a number of thousands of digits") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        seen_names: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen_names or seen_names.add(key))  # type: ignore[func-returns-value]
        raise _Refused(f"the key {short(twice)} is there twice; keys must differ")
    return table


def _constant(word: str) -> NoReturn:
    raise _Refused(f"it has {word}, which JSON does not know")


def load(path: str, most: int = MOST_BYTES) -> Any:
    """The value of a JSON file; SafetensorsError if it is no JSON."""
    raw = read(path, most)
    try:
        return parsed(raw)
    except ValueError as error:
        raise SafetensorsError(f"{path}: {error}; fetch the file again") from None


def read(path: str, most: int = MOST_BYTES) -> bytes:
    """The bytes of a small regular file."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise SafetensorsOSError(f"{path}: is not a regular file, and one is needed; check the path")
        if status.st_size > most:
            raise SafetensorsError(
                f"{path}: has {status.st_size} bytes, {most} are read of such a file; it is damaged, or not "
                "what its name says"
            )
        with open(path, "rb") as file:
            return file.read(most)
    except FileNotFoundError as error:
        raise SafetensorsNotFoundError(f"{path}: there is no such file; check the path", error) from error
    except SafetensorsOSError:
        raise
    except OSError as error:
        raise SafetensorsOSError(
            f"{path}: cannot be read: {error.strerror or error}; check its permissions", error
        ) from error


def load_object(path: str, most: int = MOST_BYTES) -> dict[str, Any]:
    """The value of a JSON file that must hold an object."""
    value = load(path, most)
    if not isinstance(value, dict):
        raise SafetensorsError(
            f"{path}: it holds {short(value, 40)}; such a file holds an object, {{…}}; fetch it again"
        )
    return value
