"""Compile a format's atoms, and all they call, with any compiler of Python functions.

A compiled function may only call compiled functions, while an atom calls plain helpers such as
``half``. So an atom is rebuilt from its own code object over a copy of its globals in which every
helper is compiled first. The source stays one plain function for plain Python, Numba on the CPU
and Numba on CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from .format import BlockFormat


class Atoms(NamedTuple):
    """The three verbs of a format, compiled."""

    code: Callable[..., Any]  # (block, i) -> integer
    scale: Callable[..., Any]  # (block, g) -> float32
    offset: Callable[..., Any]  # (block, g) -> float32, zero where the format has no offset


def rebuild(
    fmt: BlockFormat,
    compiler: Callable[[Any], Any],
    replaced: Mapping[str, Any] | None = None,
    table: Callable[[Any], Any] | None = None,
) -> Atoms:
    """The atoms of a format under a compiler.

    ``replaced`` names helpers (such as ``half_value``) for which the target has something better;
    ``table`` wraps the arrays of constants that atoms look things up in.
    """
    build = recompiler(compiler, replaced or {}, table)
    return Atoms(build(fmt.code), build(fmt.scale), build(fmt.offset))  # type: ignore[arg-type]


def recompiler(
    compiler: Callable[[Any], Any],
    replaced: Mapping[str, Any],
    table: Callable[[Any], Any] | None = None,
) -> Callable[[FunctionType], Any]:
    """A compiler of functions together with all they call; each is compiled once."""
    done: dict[Any, Any] = {}

    def build(function: FunctionType) -> Any:
        if function not in done:
            names = dict(function.__globals__)
            for name in function.__code__.co_names:
                if name in replaced:
                    names[name] = replaced[name]
                elif isinstance(names.get(name), FunctionType):
                    names[name] = build(names[name])
                elif table and isinstance(names.get(name), np.ndarray):
                    names[name] = table(names[name])
            done[function] = compiler(FunctionType(function.__code__, names, function.__name__))
        return done[function]

    return build
