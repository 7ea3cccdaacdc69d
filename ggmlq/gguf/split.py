"""Split models: finds the files that belong together, and checks that they are what their names say."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from ..errors import GGUFError
from .header import ALIGNMENT_KEY, Header
from .metadata import Stored
from .source import Source

NO, COUNT, TENSORS = "split.no", "split.count", "split.tensors.count"
KEYS = (NO, COUNT, TENSORS)  # they describe a file, not the model: a save makes them anew
FILE_KEYS = (*KEYS, ALIGNMENT_KEY)  # may differ from part to part
MAX_PARTS = 65535  # split.count is a uint16
NAMED = 8  # missing parts that an error names

_NAME = re.compile(r"(?P<stem>.*)-(?P<part>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)


class PartName(NamedTuple):
    """The parts of a name such as ``model-00002-of-00003.gguf``."""

    stem: str
    part: int  # counted from 1
    total: int

    def path(self, folder: str, part: int) -> str:
        return os.path.join(folder, part_name(self.stem, part, self.total))


def part_name(stem: str, part: int, count: int) -> str:
    """The file name of a part, counted from 1, as llama.cpp spells it."""
    return f"{stem}-{part:05d}-of-{count:05d}.gguf"


def parse_name(path: str) -> PartName | None:
    """The part that the name of a file states; None for a whole model."""
    match = _NAME.fullmatch(os.path.basename(path))
    if match is None:
        return None
    return PartName(match["stem"], int(match["part"]), int(match["count"]))


def paths_of_set(path: str) -> list[str]:
    """All files of the model that ``path`` belongs to; an error names the parts that are missing."""
    name = parse_name(path)
    if name is None or name.total == 1:
        return [path]
    if not 1 <= name.part <= name.total:
        raise GGUFError(
            f"gguf: {path}: is named part {name.part} of {name.total}; parts count from 1; rename it"
        )
    folder = os.path.dirname(path)
    numbers = range(1, name.total + 1)
    # A hostile name may count to 99999: a few that are missing are enough.
    parts = (path if i == name.part else name.path(folder, i) for i in numbers)
    missing = list(islice((os.path.basename(p) for p in parts if not os.path.exists(p)), NAMED + 1))
    if missing:
        shown = ", ".join(missing[:NAMED]) + (" and more" if len(missing) > NAMED else "")
        raise GGUFError(
            f"gguf: {path}: is one of {name.total} parts; missing beside it: {shown}; "
            "all parts must lie in one folder, fetch the others"
        )
    return [path if i == name.part else name.path(folder, i) for i in numbers]


def check_whole(source: Source, header: Header) -> None:
    """Refuse a file that is opened as a whole model but is a part of one."""
    count = _number(header, COUNT)
    if count is not None and count > 1:
        part = (_number(header, NO) or 0) + 1
        raise GGUFError(
            f"gguf: {source.path}: is part {part} of {count} of a split model, but its name does not say so; "
            f"parts are found by name; rename it to {part_name('name', part, count)}, the others alike"
        )


def check_set(sources: Sequence[Source], headers: Sequence[Header]) -> None:
    """Refuse parts that are not the ones that their names say, or are of another model than the first."""
    total = sum(len(header.tensors) for header in headers)
    owner: dict[str, str] = {}
    for index, (source, header) in enumerate(zip(sources, headers, strict=True)):
        expected = {NO: index, COUNT: len(headers), TENSORS: total}
        for key, right in expected.items():
            value = _number(header, key)
            if value is None and _number(headers[0], key) is not None:
                _foreign(source, f"it has no {key}, the first part has")
            if value is not None and value != right:
                _foreign(source, f"its {key} is {value}, the set as it lies here makes it {right}")
        if header.byteorder != headers[0].byteorder:
            _foreign(source, f"it is {header.byteorder}-endian, the first part {headers[0].byteorder}-endian")
        for name in header.tensors:
            if name in owner:
                _foreign(source, f"tensor {name!r} is in {owner[name]} too")
            owner[name] = os.path.basename(source.path)


def metadata_of_set(headers: Sequence[Header]) -> dict[str, Stored]:
    """The metadata of the model: that of the first part, then what only later parts have."""
    if len(headers) == 1:
        return dict(headers[0].metadata)  # a single file shows all it has
    common = {key: stored for key, stored in headers[0].metadata.items() if key not in KEYS}
    for header in headers[1:]:
        for key, stored in header.metadata.items():
            if key not in FILE_KEYS and not common.setdefault(key, stored).equals(stored):
                other = os.path.basename(common[key].source.path)
                _foreign(stored.source, f"the key {key!r} has another value than in {other}")
    return common


def _foreign(source: Source, reason: str) -> None:
    raise GGUFError(
        f"gguf: {source.path}: does not belong to the split model beside it: {reason}; "
        "fetch all parts of one model again"
    )


def _number(header: Header, key: str) -> int | None:
    """A split key's number; None where the file lacks it, or holds something else there."""
    stored = header.metadata.get(key)
    if stored is None:
        return None
    value = stored.decode()
    if not isinstance(value, int) or isinstance(value, bool):
        stored.source.fail(
            stored.start, f"{key} is {stored.words()}; it must be an integer; the file is damaged"
        )
    return value
