"""Names: patterns that pick modules of a model, and parameters for the tensors of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch

import ggmlq as gq

Patterns = str | Callable[[str], bool] | Iterable[str] | None
Names = Mapping[str, str] | Callable[[str], str | None] | None  # of parameters, by names in a file


def matches(name: str, include: Patterns, exclude: Patterns) -> bool:
    """True for a name that ``include`` picks (None picks all) and ``exclude`` does not (None picks none)."""
    return (include is None or _picks(include, name)) and not (exclude is not None and _picks(exclude, name))


def _picks(patterns: Patterns, name: str) -> bool:
    if callable(patterns):
        return bool(patterns(name))
    single = isinstance(patterns, str) or not isinstance(patterns, Iterable)
    several: list[Any] = [patterns] if single else list(patterns)  # type: ignore[arg-type]
    if not all(isinstance(pattern, str) for pattern in several):
        raise gq.errors.DTypeError(
            f"patterns {several!r:.100}: they are str with *, ? and […], as in file names, or a function of "
            'a name; pass "*.mlp.*" or ["*.q_proj", "*.v_proj"]'
        )
    return any(fnmatchcase(name, pattern) for pattern in several)


def check_model(request: str, model: Any) -> None:
    """Refuse what is no module of torch."""
    if not isinstance(model, torch.nn.Module):
        raise gq.errors.DTypeError(
            f"{request}: the model is {model!r:.80}; it is a torch.nn.Module; pass the module itself"
        )


def check_names(names: Names) -> None:
    """Refuse names that lead nowhere."""
    if not (names is None or callable(names) or isinstance(names, Mapping)):
        raise gq.errors.DTypeError(
            f"load_(model, file, names={names!r:.80}): names are a mapping of the file's names to those of "
            'parameters, or a function; pass {"blk.0.ffn_up.weight": "layers.0.up.weight"}'
        )
