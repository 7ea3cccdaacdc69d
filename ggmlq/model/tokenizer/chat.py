"""Chat templates: the text of a conversation by a file's template, in a sandbox of Jinja2 with limits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from ...base import missing
from ...base.text import printable, short
from ...errors import MissingDependencyError, UnsupportedError
from .vocabulary import Cutter
from .work import TooMuch, Work

BASE = 1 << 24  # work of a template: so many characters, and of each character of the messages so many
SHARE = 64
MARKS = (*range(0x30000, 0x3134A), *range(0x20000, 0x2A6DE))  # rare letters, which ``repr`` shows as they are
WAY = "pass a text as it is, without --chat"


class Conversation(str):
    """The text of a conversation, which remembers the names of control tokens that its messages hold.

    ``encode`` reads these as text: only the template's own control tokens are tokens. A plain ``str`` of it,
    or a text made from it, has forgotten that.
    """

    __slots__ = ("marked", "names")
    marked: str  # with a mark in place of each name
    names: dict[int, str]  # by their marks

    def __new__(cls, marked: str, names: Mapping[int, str] | None = None) -> Conversation:
        self = super().__new__(cls, marked.translate(names) if names else marked)
        self.marked, self.names = marked, dict(names or {})
        return self


def conversation(
    template: Any,
    messages: Sequence[Mapping[str, Any]],
    answer: bool,
    names: Mapping[str, str],
    cutter: Cutter,
    tools: Sequence[Mapping[str, Any]] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Conversation:
    """The text; errors of a template, and what the sandbox refuses, are errors in words."""
    if not isinstance(template, str):
        raise UnsupportedError(
            "chat: the file has no tokenizer.chat_template; it may be no model for conversations; " + WAY
        )
    _check_jinja()
    sandbox = import_module(".sandbox", __package__)
    for name, some, way in (
        ("messages", messages, 'pass [{"role": "user", "content": "Hello"}]'),
        ("tools", () if tools is None else tools, "pass the JSON schema of each"),
    ):
        if not (isinstance(some, Sequence) and all(isinstance(one, Mapping) for one in some)):
            raise UnsupportedError(f"chat: {name}={short(some)}; it is a list of mappings; {way}")
    more: dict[str, Any] = {"tools": [dict(tool) for tool in tools]} if tools else {}
    more |= options or {}
    values: dict[str, Any] = {"messages": None, "add_generation_prompt": answer, **names}
    if own := sorted(more.keys() & values.keys()):
        raise UnsupportedError(f"chat: {own[0]}= is a value that the library brings; leave it out")
    try:
        marks = Marks(cutter, template, [*messages, more])
        hidden, more = [marks.hide(dict(message)) for message in messages], marks.hide(more)
        work = Work(BASE + SHARE * Work(1 << 62).weight([*hidden, more]))
    except RecursionError as error:
        raise UnsupportedError(
            "chat: a message or a tool holds itself, or is nested too deep; pass it as a tree"
        ) from error
    values |= {"messages": hidden, **more}
    try:
        text = sandbox.rendered(template, values, work)
    except TooMuch as error:
        raise UnsupportedError(
            f"chat: the file's template is stopped: {printable(str(error))}; templates are programs of the "
            f"file and have limits; {WAY}"
        ) from error
    except Exception as error:  # a template is a program: it may fail in any way
        reason = str(error) or type(error).__name__
        raise UnsupportedError(
            f"chat: the file's template failed: {printable(reason)[:500]}; it may want other roles, or their "
            f"other order; {WAY}"
        ) from error
    return Conversation(text, {ord(mark): name for name, mark in marks.of.items()})


class Marks:
    """Marks in place of the names of control tokens: characters that no text of the conversation has."""

    def __init__(self, cutter: Cutter, *texts: Any) -> None:
        self.of: dict[str, str] = {}  # by name
        self._cutter, self._texts = cutter, texts
        self._free: Iterator[str] | None = None

    def hide(self, value: Any) -> Any:
        """A value with marks in its texts; keys stay as they are."""
        if isinstance(value, str):
            return self._cutter.hidden(value, self._mark)
        if isinstance(value, Mapping):
            return {key: self.hide(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.hide(one) for one in value)
        return value

    def _mark(self, name: str) -> str:
        if self._free is None:
            used = {*self._cutter.first, *(letter for text in _texts(self._texts) for letter in text)}
            self._free = (chr(code) for code in MARKS if chr(code) not in used)
        if name not in self.of:
            mark = next(self._free, None)
            if mark is None:
                raise UnsupportedError(
                    f"chat: the messages name more than {len(self.of):,} control tokens; shorten them"
                )
            self.of[name] = mark
        return self.of[name]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


@cache
def _check_jinja() -> None:
    """Raise an error where Jinja2 is not installed, or is older than the one whose sandbox holds."""
    from importlib import metadata  # here: with what it imports it takes longer than a tokenizer's own files

    wanted = next((name for name in missing.requirements("report") if name.lower().startswith("jinja2")), "")
    try:
        there = metadata.version("jinja2")
        import_module("jinja2")
    except ImportError as error:  # of which PackageNotFoundError is one
        raise MissingDependencyError(
            "chat: the file's template needs Jinja2, which is not installed; "
            f"{missing.install('report')}, or {WAY}"
        ) from error
    if _numbers(there) < _numbers(wanted.partition(">=")[2]):
        raise MissingDependencyError(
            f"chat: Jinja2 {there} is installed; its sandbox lets templates out, and {wanted} is needed; "
            f"{missing.install('report')}, or {WAY}"
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", version)[:3])
