"""Tables of measured kernels, by which ``auto`` chooses: one format and one reader, wherever a table lies.

    GGMLQ_TUNE=FILE   a file of ``ggmlq tune --out FILE``
    the cache         times of ``ggmlq tune``, and of first products on a CPU or card of no shipped table
                      (ops/tuning.py), beside compiled code
    measured.json     the shipped table, which ``ggmlq tune`` makes again (its last example, docs/device.md)

The first of them that has a product decides. Where none has it, the device's module orders the kernels that
could be fastest, by estimates or by instructions (cpu/choice.py, cuda/kernels/cost/choice.py).

A table has the kernels of a processor by **case**: a format, N, K and a span of rows of activations. A
product that was not measured takes the nearest case with its number of rows:

    format    groups of the same size (16, or 32 and more), offsets or none, the nearest size
    N and K   the nearest number of weights and length of a row, on a log scale

Times in the cache hold for their case alone. GGMLQ_MEASURE=0, and tests and CI unless it is 1, neither
measure nor use what is remembered, so that choices there depend on nothing but the machine; a file named by
GGMLQ_TUNE always counts.

A file may come from anybody: every field is checked, and only kernels that ``auto`` would time for a problem
are taken from it. So a bad table can make a product slow, never wrong.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import threading
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from ..base.forks import in_child
from ..base.text import printable
from ..errors import ConfigError, FormatError
from ..formats import FORMATS, BlockFormat
from .ladder import CHOICES, forget_choices
from .problems import Linear

TABLE = Path(__file__).with_name("measured.json")  # the shipped one
FILE, SWITCH = "GGMLQ_TUNE", "GGMLQ_MEASURE"
MAX_TIMED_ROWS = 4096  # that are timed: the last span begins below, and has no end
MAX_FILE_BYTES, MAX_PROCESSORS, MAX_CASES, MAX_TEXT_LENGTH = 4 << 20, 256, 100_000, 200
NOISE = 1.1  # so many times as fast is faster
KIND = "ggmlq tune"
VERSION = 2
TIMED = "timed"  # how the reason for a choice by times of this machine or a user's file begins
NAME = re.compile(r"(cpu|cuda):[a-z0-9_]{1,40}")


class Preference(NamedTuple):
    """Names of rungs, the fastest first, and the source of that order."""

    kernels: tuple[str, ...]
    why: str


NOTHING = Preference((), "")


class Processor(NamedTuple):
    """A CPU or card, as times belong to it."""

    device: str  # "cpu" or "cuda"
    name: str  # its maker's
    compiled_for: str  # LLVM's name of a CPU, or sm_89
    dot: str = ""  # the integer dot product of a CPU's kernels
    threads: int = 0  # of a CPU's products

    def fits(self, other: Processor) -> bool:
        """True if another one's times hold here: of a card of this name, of a CPU with the same code."""
        named = self.device == "cpu" or self.name == other.name
        return named and (self.device, *self[2:4]) == (other.device, *other[2:4])


class Case(NamedTuple):
    """A kind of product that is timed once."""

    format: str
    n: int
    k: int
    first: int  # rows of activations, from ...
    last: int | None  # ... to; None: any number from the first on

    @property
    def rows(self) -> int:
        """The rows of activations that are timed."""
        return self.last or MAX_TIMED_ROWS

    def holds(self, rows: int) -> bool:
        """True for a number of rows of this case."""
        return self.first <= rows and (self.last is None or rows <= self.last)

    def overlaps(self, other: Case) -> bool:
        """True for the same weights with a number of rows that both hold."""
        return self[:3] == other[:3] and (self.holds(other.first) or other.holds(self.first))


Times = dict[str, float | None]  # microseconds by kernel; None where only the order was kept, fastest first


class Entry(NamedTuple):
    """A processor's part of a table."""

    times: dict[Case, Times]
    at: str = ""  # the version that was measured, and the day


def span(rows: int) -> tuple[int, int | None]:
    """The first and last number of rows that are timed as one: up to a power of two, above half of it."""
    last = 1 << max(rows - 1, 0).bit_length()
    return (last // 2 + 1, last) if last < MAX_TIMED_ROWS else (MAX_TIMED_ROWS // 2 + 1, None)


def case_of(problem: Linear) -> Case:
    """The case of a product."""
    return Case(problem.format.name, problem.n, problem.k, *span(problem.m))


def is_on() -> bool:
    """True if this process measures, and uses what was measured before."""
    setting = os.environ.get(SWITCH, "")
    if setting:
        return setting.lower() not in ("0", "off")
    return not (os.environ.get("CI") or os.environ.get("PYTEST_CURRENT_TEST"))


def is_timed(why: str) -> bool:
    """True if the reason for a choice is that kernels were timed, here or for the user's file."""
    return why.startswith(TIMED)


# --- the order of kernels by tables -------------------------------------------------------------


def preference(
    problem: Linear, processor: Processor, able: Callable[[Linear], Iterable[str]], untimed: Preference
) -> Preference:  # fmt: skip
    """The order by times of the user's file or of this machine, then ``untimed``, the order without them.

    ``able``: the kernels that such times may choose among.
    """
    order = NOTHING
    if not problem.m:
        return untimed
    if path := os.environ.get(FILE):
        kernels, _ = _nearest(problem, entry_of(_file(path), processor))
        order = Preference(kernels, f"{TIMED}, says {Path(path).name}")
    if not order.kernels and is_on() and (times := remembered(processor).get(case_of(problem))):
        order = Preference(tuple(ranked(times)), f"{TIMED} on this machine")
    names = set(able(problem)) if order.kernels else ()
    kernels = tuple(name for name in order.kernels if name in names)
    return Preference(tuple(dict.fromkeys((*kernels, *untimed.kernels))), order.why) if kernels else untimed


def shipped(problem: Linear, processor: Processor) -> Preference:
    """The order by the shipped table; NOTHING where it has none for the processor."""
    entry = entry_of(table(), processor)
    kernels, stand_in = _nearest(problem, entry)
    if entry is None or not kernels:
        return NOTHING
    why = f"measured on {entry[0].name} at {entry[1].at}"
    return Preference(kernels, why if stand_in == problem.format.name else f"{why} with {stand_in}")


@cache
def table() -> dict[Processor, Entry]:
    """The shipped table; empty if it is missing or damaged."""
    try:
        return read(TABLE)
    except ConfigError:
        return {}


def entry_of(entries: dict[Processor, Entry], processor: Processor) -> tuple[Processor, Entry] | None:
    """The processor of a table whose times hold for another one, and its entry: of the same name, if any."""
    fitting = [item for item in entries.items() if item[0].fits(processor)]
    return max(fitting, key=lambda item: item[0].name == processor.name, default=None)


def _nearest(problem: Linear, entry: tuple[Processor, Entry] | None) -> tuple[tuple[str, ...], str]:
    """The kernels of the nearest case of an entry, the fastest first, and its format; none without one."""
    if entry is None or not entry[1].times or not isinstance(problem.format, BlockFormat):
        return (), ""
    times, n, k = entry[1].times, max(problem.n, 1), max(problem.k, 1)
    name = nearest_format(problem.format, dict.fromkeys(case.format for case in times))

    def apart(case: Case) -> float:
        return abs(math.log(n * k / (case.n * case.k))) + abs(math.log(k / case.k))

    shape, rows = min((case for case in times if case.format == name), key=apart)[:3], max(problem.m, 1)
    of_rows = (us for case, us in times.items() if case[:3] == shape and case.holds(rows))
    return tuple(ranked(next(of_rows, {}))), name


def nearest_format(fmt: BlockFormat, measured: Iterable[str]) -> str:
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


def ranked(times: Times) -> list[str]:
    """The fastest first; one that is listed later passes another only if it is clearly faster."""
    known = {name: us for name, us in times.items() if us is not None}
    if len(known) < len(times):
        return list(times)
    ranking: list[str] = []
    for name, best in known.items():
        at = len(ranking)
        while at and best * NOISE < known[ranking[at - 1]]:
            at -= 1
        ranking.insert(at, name)
    return ranking


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
        content = text_of({processor: Entry(known)})
    import_module("ggmlq.store.disk").here().save(_name(processor), content.encode())
    forget_choices()


def forget() -> None:
    """Forget what this process has read of the cache and of files."""
    with _LOCK:
        _TIMES.clear()
    _file.cache_clear()


def _stored(processor: Processor) -> dict[Case, Times]:
    content = import_module("ggmlq.store.disk").here().load(_name(processor))
    try:
        return parse("the cache", content)[processor].times if content else {}
    except (KeyError, ConfigError):  # of another version
        return {}


def _name(processor: Processor) -> str:
    """The name of a processor's table in the cache."""
    return f"{processor.device}-tuned-{hashlib.blake2b(repr(processor).encode(), digest_size=16).hexdigest()}"


# --- files ----------------------------------------------------------------------------------


def text_of(entries: dict[Processor, Entry]) -> str:
    """The text of a table, a case a line."""
    processors = []
    for processor, (times, at) in entries.items():
        rows = ",\n".join(f"   {json.dumps(row_of(case, us))}" for case, us in times.items())
        facts = json.dumps({**processor._asdict(), "at": at})
        processors.append(f'{facts[:-1]}, "linear": [\n{rows}\n  ]}}')
    joined = ",\n  ".join(processors)
    return f'{{"kind": "{KIND}", "format": {VERSION}, "processors": [\n  {joined}\n]}}\n'


def row_of(case: Case, us: Times) -> dict[str, Any]:
    """A case as the row of a table."""
    return {"format": case.format, "n": case.n, "k": case.k, "rows": [case.first, case.last], "us": us}


def read(path: str | Path) -> dict[Processor, Entry]:
    """The processors of a file; a ConfigError says what is wrong with it."""
    request = f"{FILE}={printable(str(path))}"
    try:
        if not Path(path).is_file():  # a pipe would be waited for
            os.stat(path)
            _refuse(request, "it is no regular file")
        with open(path, "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"{request}: the file cannot be read: {error}; leave the variable out") from None
    return parse(request, content)


def parse(request: str, content: bytes) -> dict[Processor, Entry]:
    """The processors of a table, checked; ``request`` begins the error about a bad one."""
    if len(content) > MAX_FILE_BYTES:
        _refuse(request, f"it has more than {MAX_FILE_BYTES} bytes")
    try:
        whole = json.loads(content, parse_constant=lambda name: _refuse(request, f"{name} is no number"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        _refuse(request, f"it is no JSON: {error}")
    whole = _fields(request, whole, {"kind": str, "format": int, "processors": list})
    if whole["kind"] != KIND or whole["format"] != VERSION:
        _refuse(request, f"its kind is {whole['kind']!r}, version {whole['format']}")
    if len(whole["processors"]) > MAX_PROCESSORS:
        _refuse(request, f"it has {len(whole['processors'])} processors; {MAX_PROCESSORS} are taken")
    entries: dict[Processor, Entry] = {}
    for item in whole["processors"]:
        kinds: dict[str, type] = dict.fromkeys(("device", "name", "compiled_for", "dot", "at"), str)
        facts = _fields(request, item, {**kinds, "threads": int, "linear": list})
        rows, at = facts.pop("linear"), facts.pop("at")
        if len(rows) > MAX_CASES:
            _refuse(request, f"a processor has {len(rows)} cases; {MAX_CASES} are taken")
        times = entries.setdefault(Processor(**facts), Entry({}, at)).times
        times.update(_checked_row(request, row) for row in rows)
    return entries


def _checked_row(request: str, row: Any) -> tuple[Case, Times]:
    facts = _fields(request, row, {"format": str, "n": int, "k": int, "rows": list, "us": dict})
    us, rows = facts.pop("us"), facts.pop("rows")
    if len(rows) != 2 or type(rows[0]) is not int or type(rows[1]) not in (int, type(None)):
        _refuse(request, f"rows are {rows!r}; they are [first, last], and the last may be null")
    try:
        case = Case(FORMATS[facts["format"]].name, facts["n"], facts["k"], *rows)
    except FormatError as error:
        _refuse(request, str(error))
    fmt = FORMATS[case.format]
    if (
        not isinstance(fmt, BlockFormat)
        or not all(1 <= n < 1 << 31 for n in case[1:3])
        or case.k % fmt.block_size
    ):
        _refuse(request, f"N={case.n}, K={case.k} is no shape of {case.format}")
    if not 1 <= case.first <= (case.first if case.last is None else case.last) < 1 << 31:
        _refuse(request, f"rows={rows} are no span of rows from 1 on")
    for name, time in us.items():
        known = type(time) in (int, float) and 0 < time < math.inf
        if not NAME.fullmatch(name) or not (known or time is None):
            _refuse(request, f"{name!r}: {time!r} is no kernel with its microseconds")
    if not 1 <= len(us) <= 64:
        _refuse(request, f"a case has times of {len(us)} kernels")
    return case, {name: None if time is None else float(time) for name, time in us.items()}


def _fields(request: str, item: Any, kinds: dict[str, type]) -> dict[str, Any]:
    """The fields of an object of a file: all of these types, no more."""
    if not isinstance(item, dict):
        _refuse(request, f"{item!r} is no object with {', '.join(kinds)}")
    for name in item:
        if name not in kinds:
            _refuse(request, f"there is no field {name!r}; fields are {', '.join(kinds)}")
    for name, kind in kinds.items():
        value = item.get(name)
        if type(value) is not kind or (kind is str and not _is_short(value)):
            _refuse(request, f"{name} is {value!r}; it is {'a short text' if kind is str else kind.__name__}")
    return dict(item)


def _is_short(text: Any) -> bool:
    return len(text) <= MAX_TEXT_LENGTH and text.isprintable()


def _refuse(request: str, problem: str) -> Any:
    raise ConfigError(
        f"{request}: {printable(problem[:500])}; the file is not used; write one with ggmlq tune --out FILE, "
        "or leave the variable out"
    )


_file = cache(read)
