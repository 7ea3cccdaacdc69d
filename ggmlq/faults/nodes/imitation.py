"""``Imitation``: a mistake as the same operation on other operands, and words to write them with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple


class Imitation(NamedTuple):
    """A node that is computed in place of the right one; its result is that of the mistake."""

    fault: str
    op: str
    inputs: list[Any]
    params: dict[str, Any]


Maker = Callable[[str, list[Any], dict[str, Any]], Iterator[Imitation]]


def changed(params: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Parameters with others in place of some."""
    return {**params, **more}


def replaced(inputs: list[Any], i: int, value: Any) -> list[Any]:
    """Sources with another one as number i."""
    return [value if j == i else x for j, x in enumerate(inputs)]


def has(inputs: list[Any], i: int) -> bool:
    """True where source number i is there."""
    return i < len(inputs) and inputs[i] is not None
