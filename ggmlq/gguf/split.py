"""Split models: which files belong together, and whether they are what their names say."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from ..errors import GGUFError
from .header import Header
from .source import Source

NO, COUNT, TENSORS = "split.no", "split.count", "split.tensors.count"
KEYS = (NO, COUNT, TENSORS)  # they describe a file, not the model: a save makes them anew
MAX_PARTS = 65535  # split.count is a uint16
NAMED = 8  # missing parts that an error names

_NAME = re.compile(r"(?P<stem>.*)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


class PartName(NamedTuple):
    """``model-00002-of-00003.gguf`` taken apart."""

    stem: str
    part: int  # counted from 1
    total: int

    def path(self, folder: str, part: int) -> str:
        return os.path.join(folder, part_name(self.stem, part, self.total))


def part_name(stem: str, part: int, count: int) -> str:
    """The file name of a part, counted from 1, as llama.cpp spells it."""
    return f"{stem}-{part:05d}-of-{count:05d}.gguf"


def parse_name(path: str) -> PartName | None:
    """What the name of a file says; None for a whole model."""
    found = _NAME.fullmatch(os.path.basename(path))
    if found is None:
        return None
    return PartName(found["stem"], int(found["part"]), int(found["count"]))


def paths_of_set(path: str, header: Header) -> list[str]:
    """All files of the model that ``path`` belongs to; an error names the parts that are missing."""
    name = parse_name(path)
    said = _number(header, COUNT)
    if name is None or name.total == 1:
        if said is not None and said > 1:
            part = (_number(header, NO) or 0) + 1
            raise GGUFError(
                f"gguf: {path}: is part {part} of {said} of a split model, but its name does not say so; "
                f"parts are found by name; rename it to {part_name('name', part, said)}, the others alike"
            )
        return [path]
    if not 1 <= name.part <= name.total:
        raise GGUFError(
            f"gguf: {path}: is named part {name.part} of {name.total}; parts count from 1; rename it"
        )
    folder = os.path.dirname(path)
    paths = [path if i == name.part else name.path(folder, i) for i in range(1, name.total + 1)]
    # A hostile name may count to 99999: a few that are missing are enough.
    missing = list(islice((os.path.basename(p) for p in paths if not os.path.exists(p)), NAMED + 1))
    if missing:
        shown = ", ".join(missing[:NAMED]) + (" and more" if len(missing) > NAMED else "")
        raise GGUFError(
            f"gguf: {path}: is one of {name.total} parts; missing beside it: {shown}; "
            "all parts must lie in one folder, fetch the others"
        )
    return paths


def check_set(sources: Sequence[Source], headers: Sequence[Header]) -> None:
    """Every part must be the part that its name says, and of the same model as the first."""
    total = sum(len(header.tensors) for header in headers)
    owner: dict[str, str] = {}
    for index, (source, header) in enumerate(zip(sources, headers, strict=True)):
        expected = {NO: index, COUNT: len(headers), TENSORS: total}
        for key, right in expected.items():
            found = _number(header, key)
            if found is None and _number(headers[0], key) is not None:
                _foreign(source, f"it has no {key}, the first part has")
            if found is not None and found != right:
                _foreign(source, f"its {key} is {found}, the set as it lies here makes it {right}")
        if header.byteorder != headers[0].byteorder:
            _foreign(source, f"it is {header.byteorder}-endian, the first part {headers[0].byteorder}-endian")
        for name in header.tensors:
            if name in owner:
                _foreign(source, f"tensor {name!r} is in {owner[name]} too")
            owner[name] = os.path.basename(source.path)


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
