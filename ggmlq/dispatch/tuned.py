"""Kernels' times that were measured on this machine, by which ``auto`` chooses on cards and CPUs of no table.

Times come from three sources, which count in this order:

    GGMLQ_TUNE=FILE   a file of ``ggmlq tune --out FILE``; formats and shapes that it lacks take the nearest
                      ones in it, numbers of rows do not
    ``ggmlq tune``    remembered in the cache, beside compiled code
    first products    on a CPU or card that is in no table (ops/tuning.py), remembered there, too

A time belongs to a format, N, K and a **bucket** of rows: the numbers up to a power of two. Remembered times
hold for this bucket alone. GGMLQ_MEASURE=0, and tests and CI unless it is 1, neither measure nor use what is
remembered, so that choices there depend on nothing but the machine; a file named by GGMLQ_TUNE always counts.

A file may come from anybody: every field is checked, and only kernels that ``auto`` would time for a problem
are taken from it. So a bad file can make a product slow, never wrong.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import threading
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from ..base.forks import in_child
from ..base.text import printable
from ..errors import ConfigError, FormatError
from ..formats import FORMATS, BlockFormat
from .ladder import CHOICES, Problem, forget_choices
from .problems import Linear

# --- tables of measured kernels: cpu/choice.json, cuda/choice.json ------------------------------
# A table has an entry for each card or CPU that was measured. The entry says for a format and a shape up
# to which number of rows of activations which rungs are fast, the fastest first:
#
#     {"format": "q4_0", "N": 4096, "K": 14336, "up to": [[22, ["cuda:streamk"]], [null, […]]]}
#
# A problem that was not measured takes the nearest entry:
#
#     format    groups of the same size (16, or 32 and more), offsets or none, the nearest size
#     N and K   the nearest number of weights and length of a row, on a log scale
#     M         the nearest that was measured, on a log scale
#
# The result is only an order for :mod:`ggmlq.dispatch.ladder`: an entry can make a product slow, never wrong.

Entry = dict[str, Any]


class Preference(NamedTuple):
    """Names of rungs, the fastest first, and the source of that order."""

    kernels: tuple[str, ...]
    why: str


NOTHING = Preference((), "")


def entries(table: Path, what: str) -> list[Entry]:
    """The entries of a table, one for each measured card or CPU; none if the file is missing or damaged."""
    try:
        measured: list[Entry] = json.loads(table.read_text())[what]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return measured


def table_preference(problem: Problem, entry: Entry, place: str) -> Preference:
    """The order of rungs for a problem by an entry; ``place`` names the card or CPU of the entry."""
    rows = [row for row in entry.get(problem.op, []) if row["format"] in FORMATS]
    if not rows or not isinstance(problem, Linear) or not isinstance(problem.format, BlockFormat):
        return NOTHING
    name = stand_in(problem.format, (row["format"] for row in rows))
    row = min((r for r in rows if r["format"] == name), key=lambda r: _apart(problem, r))
    kernels: list[str] = next(
        (names for most, names in row["up to"] if most is None or problem.m <= most), []
    )
    why = f"measured on {place} at {entry['commit']}"
    if name != problem.format.name:
        why += f" with {name}"
    return Preference(tuple(kernels), why)


def stand_in(fmt: BlockFormat, measured: Iterable[str]) -> str:
    """The measured format that is most like this one: itself if it is among them."""

    def unlike(name: str) -> tuple[bool, bool, bool, float]:
        other = FORMATS[name]
        assert isinstance(other, BlockFormat)
        return (
            other is not fmt,
            min(other.group, 32) != min(fmt.group, 32),
            other.has_offset != fmt.has_offset,
            abs(other.bits_per_weight - fmt.bits_per_weight),
        )

    return min(measured, key=unlike)


def _apart(problem: Linear, row: Entry) -> float:
    n, k = max(problem.n, 1), max(problem.k, 1)
    return abs(math.log(n * k / (row["N"] * row["K"]))) + abs(math.log(k / row["K"]))


# --- times that were measured on this machine ---------------------------------------------------

FILE, SWITCH = "GGMLQ_TUNE", "GGMLQ_MEASURE"
MOST_ROWS = 4096  # of the last bucket
MOST_BYTES, MOST_PROCESSORS, MOST_TIMES, MOST_TEXT = 4 << 20, 256, 100_000, 200
NOISE = 1.1  # so many times as fast is faster
KIND = "ggmlq tune"
VERSION = 1
TIMED = "timed"  # how the reason for a choice by times begins
NAME = re.compile(r"(cpu|cuda):[a-z0-9_]{1,40}")


class Processor(NamedTuple):
    """A CPU or card, as times belong to it."""

    device: str  # "cpu" or "cuda"
    name: str  # its maker's
    compiled_for: str  # LLVM's name of a CPU, or sm_89
    dot: str = ""  # the integer dot product of a CPU's kernels
    threads: int = 0  # of a CPU's products

    def fits(self, other: Processor) -> bool:
        """True if another one's times hold here; threads aside."""
        return self[:4] == other[:4]


class Case(NamedTuple):
    """A kind of product that is timed once."""

    format: str
    n: int
    k: int
    rows: int  # of activations: the last number of its bucket


Times = dict[str, float]  # microseconds by kernel


def bucket(rows: int) -> int:
    """The last number of the bucket of a number of rows."""
    return min(1 << max(rows - 1, 0).bit_length(), MOST_ROWS)


def case_of(problem: Linear) -> Case:
    """The case of a product."""
    return Case(problem.format.name, problem.n, problem.k, bucket(problem.m))


def is_on() -> bool:
    """True if this process measures, and uses what was measured before."""
    setting = os.environ.get(SWITCH, "")
    if setting:
        return setting.lower() not in ("0", "off")
    return not (os.environ.get("CI") or os.environ.get("PYTEST_CURRENT_TEST"))


def ranked(times: Times) -> list[str]:
    """The fastest first; one that is listed later passes another only if it is clearly faster."""
    ranking: list[str] = []
    for name, best in times.items():
        at = len(ranking)
        while at and best * NOISE < times[ranking[at - 1]]:
            at -= 1
        ranking.insert(at, name)
    return ranking


def preference(problem: Problem, processor: Processor, able: Iterable[str]) -> Preference:
    """The order of the kernels ``able`` by times that were measured; NOTHING where there are none."""
    if not isinstance(problem, Linear) or not isinstance(problem.format, BlockFormat) or not problem.m:
        return NOTHING
    order, names = NOTHING, set(able)
    if path := os.environ.get(FILE):
        order = _of_file(problem, processor, path)
    if order is NOTHING and is_on() and (times := remembered(processor).get(case_of(problem))):
        order = Preference(tuple(ranked(times)), f"{TIMED} on this machine")
    kernels = tuple(name for name in order.kernels if name in names)
    return Preference(kernels, order.why) if kernels else NOTHING


# --- what is remembered ---------------------------------------------------------------------

_LOCK = threading.Lock()
_TIMES: dict[Processor, dict[Case, Times]] = {}


def _after_fork() -> None:
    """Replace the lock: the thread that held it is not in this process."""
    globals()["_LOCK"] = threading.Lock()


in_child(_after_fork)


def remembered(processor: Processor) -> dict[Case, Times]:
    """The times of a processor by case, from this process and from the cache."""
    with _LOCK:
        if processor not in _TIMES:
            _TIMES[processor] = _stored(processor)
        return _TIMES[processor]


def is_known(problem: Linear) -> bool:
    """True if there are times of a product, on the processor of this process."""
    choice = import_module(CHOICES[problem.device])
    return case_of(problem) in remembered(choice.processor(problem))


def remember(processor: Processor, times: dict[Case, Times]) -> None:
    """Add times to those of a processor, here and in the cache; what other processes added stays."""
    known = remembered(processor)
    with _LOCK:
        known |= _stored(processor) | known | times
        content = json.dumps(_row_texts(known))
    import_module("ggmlq.store.disk").here().save(_entry(processor), content.encode())
    forget_choices()


def forget() -> None:
    """Forget what this process has read of the cache and of files."""
    with _LOCK:
        _TIMES.clear()
    _entries.cache_clear()


def _stored(processor: Processor) -> dict[Case, Times]:
    content = import_module("ggmlq.store.disk").here().load(_entry(processor))
    try:
        return dict(_checked_row("the cache", row) for row in json.loads(content)) if content else {}
    except (ValueError, ConfigError, RecursionError):  # of another version
        return {}


def _entry(processor: Processor) -> str:
    """The name of a processor's entry in the cache."""
    return f"{processor.device}-tuned-{hashlib.blake2b(repr(processor).encode(), digest_size=16).hexdigest()}"


def _row_texts(times: dict[Case, Times]) -> list[dict[str, Any]]:
    return [{**case._asdict(), "us": us} for case, us in times.items()]


# --- files ----------------------------------------------------------------------------------


def text_of(times: dict[Processor, dict[Case, Times]], version: str, date: str) -> str:
    """The text of a file with the times of some processors, a case a line."""
    processors = []
    for processor, cases in times.items():
        rows = ",\n".join(f"   {json.dumps(row)}" for row in _row_texts(cases))
        processors.append(f'{json.dumps(processor._asdict())[:-1]}, "linear": [\n{rows}\n  ]}}')
    head = json.dumps({"kind": KIND, "format": VERSION, "ggmlq": version, "date": date})
    joined = ",\n  ".join(processors)
    return f'{head[:-1]}, "processors": [\n  {joined}\n]}}\n'


def read(path: str | Path) -> dict[Processor, dict[Case, Times]]:
    """The times of a file, checked; a ConfigError says what is wrong with it."""
    request = f"{FILE}={printable(str(path))}"
    try:
        if not Path(path).is_file():  # a pipe would be waited for
            os.stat(path)
            _refuse(request, "it is no regular file")
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"{request}: the file cannot be read: {error}; leave the variable out") from None
    if len(content) > MOST_BYTES:
        _refuse(request, f"it has more than {MOST_BYTES} bytes")
    try:
        whole = json.loads(content, parse_constant=lambda name: _refuse(request, f"{name} is no number"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        _refuse(request, f"it is no JSON: {error}")
    whole = _fields(request, whole, {"kind": str, "format": int, "processors": list}, ("ggmlq", "date"))
    if whole["kind"] != KIND or whole["format"] != VERSION:
        _refuse(request, f"its kind is {whole['kind']!r}, version {whole['format']}")
    if len(whole["processors"]) > MOST_PROCESSORS:
        _refuse(request, f"it has {len(whole['processors'])} processors; {MOST_PROCESSORS} are taken")
    times: dict[Processor, dict[Case, Times]] = {}
    for item in whole["processors"]:
        kinds: dict[str, type] = dict.fromkeys(("device", "name", "compiled_for", "dot"), str)
        facts = _fields(request, item, {**kinds, "threads": int, "linear": list})
        rows = facts.pop("linear")
        if len(rows) > MOST_TIMES:
            _refuse(request, f"a processor has {len(rows)} cases; {MOST_TIMES} are taken")
        times.setdefault(Processor(**facts), {}).update(_checked_row(request, row) for row in rows)
    return times


def _checked_row(request: str, row: Any) -> tuple[Case, Times]:
    facts = _fields(request, row, {"format": str, "n": int, "k": int, "rows": int, "us": dict})
    us = facts.pop("us")
    try:
        case = Case(**{**facts, "format": FORMATS[facts["format"]].name})
    except FormatError as error:
        _refuse(request, str(error))
    fmt = FORMATS[case.format]
    if (
        not isinstance(fmt, BlockFormat)
        or not all(1 <= n < 1 << 31 for n in case[1:3])
        or case.k % fmt.block_size
    ):
        _refuse(request, f"N={case.n}, K={case.k} is no shape of {case.format}")
    if not 1 <= case.rows <= MOST_ROWS or case.rows & (case.rows - 1):
        _refuse(request, f"rows={case.rows} is no power of two of 1 … {MOST_ROWS}")
    for name, time in us.items():
        if not NAME.fullmatch(name) or type(time) not in (int, float) or not 0 < time < math.inf:
            _refuse(request, f"{name!r}: {time!r} is no kernel with its microseconds")
    if not 1 <= len(us) <= 64:
        _refuse(request, f"a case has times of {len(us)} kernels")
    return case, {name: float(time) for name, time in us.items()}


def _fields(request: str, item: Any, kinds: dict[str, type], others: Sequence[str] = ()) -> dict[str, Any]:
    """The fields of an object of a file: all of these types, and others that are texts, but no more."""
    if not isinstance(item, dict):
        _refuse(request, f"{item!r} is no object with {', '.join(kinds)}")
    for name in item:
        if name not in kinds and name not in others:
            _refuse(request, f"there is no field {name!r}; fields are {', '.join((*kinds, *others))}")
    for name in (*kinds, *set(others).intersection(item)):
        kind, value = kinds.get(name, str), item.get(name)
        if type(value) is not kind or (kind is str and not _is_short(value)):
            _refuse(request, f"{name} is {value!r}; it is {'a short text' if kind is str else kind.__name__}")
    return dict(item)


def _is_short(text: Any) -> bool:
    return len(text) <= MOST_TEXT and text.isprintable()


def _refuse(request: str, problem: str) -> Any:
    raise ConfigError(
        f"{request}: {printable(problem[:500])}; the file is not used; write one with ggmlq tune --out FILE, "
        "or leave the variable out"
    )


@cache
def _entries(path: str) -> dict[Processor, Entry]:
    """The processors of a file as entries of :mod:`ggmlq.dispatch.tuned`, read once."""
    return {processor: _entry_of(cases) for processor, cases in read(path).items()}


def _entry_of(cases: dict[Case, Times]) -> Entry:
    shapes: dict[tuple[str, int, int], dict[int, Times]] = {}
    for case, us in cases.items():
        shapes.setdefault(case[:3], {})[case.rows] = us
    rows = []
    for (name, n, k), by_rows in shapes.items():
        spans: list[list[Any]] = []
        for m, us in sorted(by_rows.items()):
            if m > 1 and (not spans or spans[-1][0] < m // 2):
                spans.append([m // 2, []])  # nothing is known of these
            spans.append([m, ranked(us)])
        rows.append({"format": name, "N": n, "K": k, "up to": [*spans, [None, []]]})
    return {"linear": rows, "commit": ""}


def is_timed(why: str) -> bool:
    """True if the reason for a choice is that kernels were timed, here or for the user's file."""
    return why.startswith(TIMED)


def _of_file(problem: Linear, processor: Processor, path: str) -> Preference:
    entry = next((entry for known, entry in _entries(path).items() if known.fits(processor)), None)
    if entry is None:
        return NOTHING
    kernels, _ = table_preference(problem, entry, processor.name)
    return Preference(kernels, f"{TIMED}, says {Path(path).name}") if kernels else NOTHING
