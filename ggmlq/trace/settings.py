"""The settings of a trace, checked before a process is started for it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import GGUFNotFoundError, ShapeError, UnsupportedError
from ..formats import FORMATS

NODES = ("all", "products")
JUDGED = ("all", "sample", "full")
MOST_TOKENS = 1 << 17
MOST_REPEATS = 1000
TIMEOUT = 600.0
NUMBERS = {"generate": int, "threads": int, "timeout": float, "seed": int, "repeats": int}
PROMPT = "The quick brown fox jumps over the lazy dog."


@dataclass(frozen=True)
class Settings:
    """The settings of a run and its judgement. See :func:`ggmlq.trace.trace`."""

    model: Path
    lib: Path | None = None
    prompt: str | None = None
    tokens: int | Sequence[int] | None = None
    generate: int = 0
    select: tuple[str, ...] = ()
    judge: str = "all"
    without: tuple[str, ...] = ()
    cache: tuple[str, str] | None = None
    flash: bool | None = None
    threads: int = 0
    timeout: float = TIMEOUT
    seed: int = 0
    verify: bool = True
    nodes: str = "all"
    fused: bool = False
    bisect: bool = False
    repeats: int = 1
    captures: bool = False
    tool: tuple[str, ...] = ()  # a command of llama.cpp, and its words

    def __post_init__(self) -> None:
        request = f"trace of {self.model}"
        if self.judge not in JUDGED:
            raise UnsupportedError(f"{request}: judge={self.judge!r}; choose of {', '.join(JUDGED)}")
        if self.nodes not in NODES:
            raise UnsupportedError(f"{request}: nodes={self.nodes!r}; choose of {', '.join(NODES)}")
        if self.fused and (self.nodes != "all" or self.tool):
            what = f"a command, {self.tool[0]}," if self.tool else f"nodes={self.nodes!r}"
            raise UnsupportedError(
                f"{request}: fused=True with {what} is not possible: groups are of all nodes of a prompt; "
                "drop one of them"
            )
        if self.bisect and (self.tool or not self.verify):
            what = f"a command, {self.tool[0]}," if self.tool else "verify=False"
            raise UnsupportedError(
                f"{request}: bisect=True with {what} is not possible: runs of a prompt with and without "
                "stops are compared; drop one of them"
            )
        if not 1 <= self.repeats <= MOST_REPEATS or (self.repeats > 1 and self.tool):
            raise ShapeError(
                f"{request}: repeats={self.repeats}; 1 to {MOST_REPEATS}, and 1 for a command; choose another"
            )
        if self.prompt is not None and self.tokens is not None:
            raise ShapeError(f"{request}: both a prompt and tokens; they say the same thing twice; drop one")
        if isinstance(self.tokens, int) and not 1 <= self.tokens <= MOST_TOKENS:
            raise ShapeError(
                f"{request}: tokens={self.tokens}; 1 to {MOST_TOKENS} random tokens are run; choose another"
            )
        if not 0 <= self.generate <= MOST_TOKENS:
            raise ShapeError(f"{request}: generate={self.generate}; 0 to {MOST_TOKENS}; choose another")
        if not self.timeout > 0:
            raise ShapeError(f"{request}: timeout={self.timeout}; seconds, more than 0; leave it out")
        if self.threads < 0:
            raise ShapeError(f"{request}: threads={self.threads}; 1 or more, or 0 for all; leave it out")
        if self.prompt == "":
            raise ShapeError(f"{request}: the prompt is empty; a run needs a token; pass a text, or tokens=1")

    @property
    def asks(self) -> Asks:
        """The nodes for which the library stops."""
        return Asks(self.nodes, self.select, self.judge == "sample")

    @property
    def thread_count(self) -> int:
        """The number of threads of the library."""
        return self.threads or min(os.cpu_count() or 1, 16)


def settings(
    model: str | Path, *, lib: str | Path | None = None, prompt: str | None = None,
    tokens: int | Sequence[int] | None = None, select: str | Sequence[str] = (),
    without: str | Sequence[str] = (), cache: str | Sequence[str] | None = None, tool: Sequence[str] = (),
    **more: Any,
) -> Settings:  # fmt: skip
    """The settings of a trace from a call or a command line; ``more``: other fields of Settings.

    Names may be one text with commas, one type stands for both caches, and there is a default prompt.
    """
    path = Path(model).expanduser().absolute()
    if not path.is_file():
        what = "that is a folder" if path.is_dir() else "there is no such file"
        raise GGUFNotFoundError(f"trace of {path}: {what}; name a GGUF file")
    if prompt is None and tokens is None:
        prompt = PROMPT
    if tokens is not None and not isinstance(tokens, int):
        tokens = [int(token) for token in tokens]
        if not tokens:
            raise ShapeError(f"trace of {path}: no tokens; a run needs one")
    where = None if lib is None else Path(lib).expanduser().absolute()
    more |= {name: kind(more[name]) for name, kind in NUMBERS.items() if name in more}
    return Settings(
        path, where, prompt, tokens, select=names_of(select), without=names_of(without), cache=_cache(cache),
        tool=tuple(tool), **more,
    )  # fmt: skip


def names_of(names: str | Sequence[str]) -> tuple[str, ...]:
    """Names of a list, or of one text with commas."""
    words = names.split(",") if isinstance(names, str) else names
    return tuple(word.strip() for word in words if word.strip())


def _cache(types: str | Sequence[str] | None) -> tuple[str, str] | None:
    if types is None:
        return None
    names = names_of(types)
    if len(names) not in (1, 2):
        raise UnsupportedError(
            f"cache={types!r}: a type for both, or one of K and one of V; write q8_0 or q8_0,f16"
        )
    first, last = FORMATS[names[0]].name, FORMATS[names[-1]].name
    return first, last


# --- nodes for which the library stops ------------------------------------------------------------
#
# Nodes of a run are numbered from 0 in the order in which the library asks about them, over all its steps.


@dataclass(frozen=True)
class Asks:
    """The nodes for which a run stops.

    ``nodes``: ``"all"`` that have an oracle, or ``"products"`` with attention; those whose names fit a
    pattern of ``select``. ``sample``: only some slices of large nodes are read. ``groups``: numbers of nodes
    that are judged as one; the library is asked for the last of each alone. ``results``: results alone are
    read, of any operation. ``every`` and ``quiet``: stop at every node, read none. ``listed``: stop at none
    and list them. ``numbers``: stop at these ranges of numbers and at no other node, read none.
    """

    nodes: str = "all"
    select: tuple[str, ...] = ()
    sample: bool = False
    groups: tuple[tuple[int, ...], ...] = ()
    results: bool = False
    every: bool = False
    quiet: bool = False
    listed: bool = False
    numbers: tuple[tuple[int, int], ...] | None = None

    @classmethod
    def of(cls, message: dict[str, Any]) -> Asks:
        """The asks that a message holds, where tuples became lists."""
        groups = tuple(map(tuple, message["groups"]))
        numbers = None if message["numbers"] is None else tuple((a, b) for a, b in message["numbers"])
        return cls(**{**message, "select": tuple(message["select"]), "groups": groups, "numbers": numbers})

    def message(self) -> dict[str, Any]:
        """The asks for the library's process."""
        return asdict(self)

    @property
    def reads(self) -> bool:
        """True where nodes are read, not only stopped at."""
        return not (self.quiet or self.listed or self.numbers is not None)

    @property
    def watches(self) -> bool:
        """True where the library stops at all nodes that compute, and results are read as a whole."""
        return self.reads and self.nodes == "all" and not (self.sample or self.groups or self.results)

    @cached_property
    def group_of(self) -> dict[int, tuple[int, ...]]:
        """The group of each node that is in one."""
        return {number: group for group in self.groups for number in group}

    def names(self, *names: str) -> bool:
        """True where one of these names is selected."""
        if not self.select:
            return True
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.select)

    def stops(self, number: int) -> bool:
        """True for a node in one of the ranges of ``numbers``."""
        return any(first <= number < last for first, last in self.numbers or ())
