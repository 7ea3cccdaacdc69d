"""Faults of a run for a maintainer's CI: a baseline of known ones, JUnit's XML, and annotations of GitHub.

A record stands for one case, whatever numbers of threads it ran with. Its name is the case's own, which is
the same on every machine and which ``--case`` takes.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from ..base.text import count, short
from ..base.writing import write_whole
from ..errors import GGMLQError
from .ops import OpOutcome
from .outcome import Outcome

FORM = "ggmlq baseline 1"
ANNOTATIONS = 10  # of one step that GitHub shows
LISTED = 12  # names in a line
PLACE = re.compile(r"([\w./\\+-]+\.(?:c|cc|cpp|cxx|cu|cuh|h|hpp|m|metal|cl|comp)):(\d+)")


class Record(NamedTuple):
    """One case, and how it went."""

    device: str
    group: str  # the type of the weights, or the operation
    case: str
    verdict: str
    bad: bool
    fault: str
    text: str
    again: str
    threads: tuple[int, ...]
    seconds: float

    @property
    def key(self) -> tuple[str, str, str]:
        """The fault as a baseline knows it."""
        return self.device, self.case, self.verdict

    @property
    def head(self) -> str:
        """The case with its verdict, in one line."""
        return f"{self.case}: {self.verdict}{f', {self.fault}' if self.fault else ''}"


def of_products(outcomes: Iterable[Outcome], device: str) -> list[Record]:
    """Records of products; of weights in a layout of the device's own its name stands behind the case."""
    records = []
    for o in outcomes:
        case = o.case.label + (f" in {o.layout}" if o.layout else "")
        again = f"ggmlq check {o.repeat_options}"
        records.append(Record(device, o.case.format.name, case, o.verdict, o.bad, o.fault, o.text, again,
                              (o.threads,), 0.0 if o.seconds != o.seconds else o.seconds))  # fmt: skip
    return _joined(records)


def of_operations(outcomes: Iterable[OpOutcome], device: str) -> list[Record]:
    """Records of operations."""
    return _joined(
        Record(
            device, o.op, o.case, o.verdict, o.bad, o.fault, o.text, f"ggmlq check {o.again}",
            (o.threads,), o.seconds,
        ) for o in outcomes
    )  # fmt: skip


def _joined(records: Iterable[Record]) -> list[Record]:
    """One record for all numbers of threads with which a case went alike, without right ones beside wrong."""
    cases = dict[str, dict[str, Record]]()
    for one in records:
        of_case = cases.setdefault(one.case, {})
        before = of_case.get(one.verdict)
        if before is not None:
            threads, seconds = (*before.threads, *one.threads), before.seconds + one.seconds
            first = before if before.fault or not one.fault else one
            one = first._replace(threads=threads, seconds=seconds)  # noqa: PLW2901
        of_case[one.verdict] = one
    return [
        one for of_case in cases.values() for one in of_case.values()
        if one.bad or not any(other.bad for other in of_case.values())
    ]  # fmt: skip


def in_shard(name: str, shard: tuple[int, int] | None) -> bool:
    """True for a case of shard i of n, which follows from its name alone."""
    return shard is None or zlib.crc32(name.encode()) % shard[1] == shard[0] - 1


# --- a baseline: faults that are known, and fail no run -------------------------------------------


class Comparison(NamedTuple):
    """The faults of a run beside those that are known."""

    new: list[Record]
    known: list[Record]
    gone: list[str]  # known ones whose case ran, and is right now


class Baseline:
    """The known faults of a file, by device, case and verdict; each may have a reason of its maintainer's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known = dict[tuple[str, str, str], dict[str, Any]]()
        if not path.exists():
            return
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            if facts["form"] != FORM:
                raise ValueError(f"its form is {facts['form']!r}")
            self._known = {(one["device"], one["case"], one["verdict"]): one for one in facts["known"]}
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise GGMLQError(
                f"--baseline {path}: no file that --accept wrote ({error!r}); name another, or write it anew"
            ) from error

    def compared(self, records: Sequence[Record]) -> Comparison:
        """The faults of a run, those that are known apart, and known ones that are gone."""
        bad = [one for one in records if one.bad]
        right = {(one.device, one.case) for one in records if one.verdict == "ok"}
        here = {one.key for one in bad}
        return Comparison(
            [one for one in bad if one.key not in self._known],
            [one for one in bad if one.key in self._known],
            [case for device, case, verdict in self._known
             if (device, case) in right and (device, case, verdict) not in here],
        )  # fmt: skip

    def accept(self, records: Sequence[Record], library: str) -> int:
        """Write the faults of a run as known; those of cases that did not run stay. Returns their number."""
        ran = {(one.device, one.case) for one in records}
        known = {key: one for key, one in self._known.items() if key[:2] not in ran}
        for one in records:
            if one.bad:
                why = self._known.get(one.key, {}).get("why", "")
                known[one.key] = {"device": one.device, "case": one.case, "verdict": one.verdict,
                                  "fault": one.fault, "why": why}  # fmt: skip
        every = [known[key] for key in sorted(known)]
        facts = {"form": FORM, "library": library, "known": every}
        _write("--baseline", self.path, f"{json.dumps(facts, indent=1)}\n")
        return len(every)


def sentences(comparison: Comparison) -> Iterator[str]:
    """Sentences on a run beside its baseline."""
    new, known, gone = comparison
    yield f"baseline: {count(len(known), 'known fault')}, {len(new)} new{_names(one.head for one in new)}"
    if gone:
        yield f"known and gone: {count(len(gone), 'fault')}{_names(gone)}; --accept takes them out"


def _names(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - LISTED} more" if len(every) > LISTED else ""
    return f": {'; '.join(every[:LISTED])}{more}" if every else ""


def _write(option: str, path: Path, text: str) -> None:
    try:
        write_whole(path, text)
    except OSError as error:
        raise GGMLQError(f"{option} {path}: {error.strerror}; name another file") from error


# --- JUnit's XML, which most CIs show -------------------------------------------------------------


def write_junit(path: Path, records: Sequence[Record], known: Iterable[Record] = ()) -> None:
    """Write a suite for each type or operation; known faults and cases that did not run are skipped ones."""
    root, quiet = ElementTree.Element("testsuites", name="ggmlq check"), {one.key for one in known}
    for group in dict.fromkeys(one.group for one in records):
        members = [one for one in records if one.group == group]
        failed = [one for one in members if one.bad and one.key not in quiet]
        errors = [one for one in members if one.verdict == "not judged"]
        skipped = [one for one in members if one.key in quiet or one.verdict == "not run"]
        suite = ElementTree.SubElement(
            root, "testsuite", name=group, tests=str(len(members)), failures=str(len(failed)),
            errors=str(len(errors)), skipped=str(len(skipped)), time=f"{sum(m.seconds for m in members):.3f}",
        )  # fmt: skip
        for one in members:
            case = ElementTree.SubElement(
                suite, "testcase", classname=f"ggmlq.{one.device}.{group}", name=one.case,
                time=f"{one.seconds:.3f}",
            )  # fmt: skip
            kind = (
                "skipped"
                if one in skipped
                else "failure"
                if one in failed
                else "error"
                if one in errors
                else ""
            )
            if kind:
                said = _clean(one.head if one.bad else f"{one.verdict}: {one.text}")
                ElementTree.SubElement(case, kind, message=said).text = _clean(f"{one.text}\n{one.again}")
    _write("--junit", path, ElementTree.tostring(root, encoding="unicode", xml_declaration=True))


def _clean(text: str) -> str:
    """Text without characters that XML cannot hold."""
    return "".join(
        c if c in "\t\n" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" else "?" for c in text
    )


# --- GitHub: annotations beside the source, and a summary of the step ------------------------------


def workflow_commands(faults: Sequence[Record]) -> Iterator[str]:
    """Commands of a workflow, one for each new fault, those of different groups first."""
    seen = Counter[str]()
    ranked = []
    for one in sorted(faults, key=lambda one: not one.fault):  # the doctor examined a few
        seen[one.group] += 1
        ranked.append((seen[one.group], one))
    for _, one in sorted(ranked, key=lambda pair: pair[0])[:ANNOTATIONS]:
        place = PLACE.search(one.text)
        where = f"file={_property(_of_repository(place[1]))},line={place[2]}," if place else ""
        body = f"{one.head}\n{one.text}\nagain: {one.again}"
        yield f"::error {where}title={_property(f'ggmlq check: {one.case}')}::{_data(body)}"


def _of_repository(path: str) -> str:
    """A file of the source as the repository names it."""
    root = os.environ.get("GITHUB_WORKSPACE", "").rstrip("/")
    return path.removeprefix(f"{root}/") if root else path


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def markdown(title: str, records: Sequence[Record], faults: Sequence[Record], notes: Iterable[str]) -> str:
    """The summary of a step: counts by type or operation that has faults, and each new fault."""
    ran = [one for one in records if one.verdict not in ("not run", "not judged")]
    lines = [f"### {title}", "", f"{count(len(ran), 'case')} ran, {count(len(faults), 'new fault')}.", ""]
    lines += [f"* {_cell(note)}" for note in notes]
    if faults:
        lines += ["", "| case | verdict | fault | threads | again |", "|---|---|---|---|---|"]
    for one in faults[:200]:
        threads = ", ".join(map(str, one.threads))
        cells = one.case, one.verdict, one.fault or "–", threads, f"`{one.again}`"
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    for one in faults[:LISTED]:
        if one.text:
            fence = "\n".join(["```", one.text.replace("```", "'''"), "```"])
            lines += ["", f"<details><summary>{_cell(one.head)}</summary>", "", fence, "", "</details>"]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ").replace("<", "&lt;")


def write_summary(text: str) -> None:
    """Append to the summary of the step of a workflow, where one runs."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise GGMLQError(
            f"GITHUB_STEP_SUMMARY {short(path)}: {error.strerror}; leave --github out"
        ) from error
