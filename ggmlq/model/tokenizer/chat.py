"""Chat templates: the text of a conversation by a file's template, in a sandbox of Jinja2."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from ...base.text import printable
from ...errors import MissingDependencyError, UnsupportedError

HINT = "pip install jinja2"


def rendered(
    template: Any, messages: Sequence[Mapping[str, Any]], answer: bool, names: Mapping[str, str]
) -> str:
    """The text; errors of a template, and calls that the sandbox refuses, are errors in words."""
    if not isinstance(template, str):
        raise UnsupportedError(
            "chat: the file has no tokenizer.chat_template; it may be no model for conversations; pass a "
            "text as it is, without --chat"
        )
    try:
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise MissingDependencyError(
            f"chat: the file's template needs Jinja2, which is not installed; {HINT}, or pass a text as it is"
        ) from error

    def refuse(text: str) -> NoReturn:
        raise jinja2.TemplateError(text)

    def to_json(value: Any, indent: int | None = None, **_: Any) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = to_json
    environment.globals |= {
        "raise_exception": refuse,
        "strftime_now": lambda pattern: datetime.now().strftime(pattern),
    }
    try:
        text: str = environment.from_string(template).render(
            messages=[dict(message) for message in messages], add_generation_prompt=answer, **names
        )
    except Exception as error:  # a template is a program: it may fail in any way
        raise UnsupportedError(
            f"chat: the file's template failed: {printable(str(error))}; it may want other roles, or their "
            "other order; pass a text as it is, without --chat"
        ) from error
    return text
