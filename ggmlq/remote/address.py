"""Parses the address of a remote file: a URL, or ``hf://owner/name/file@revision``, which becomes one.

HF_TOKEN is sent with hf:// addresses only, to the hub's own host, and without https only to this machine,
where tests have their hub.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple
from urllib.parse import quote, urlsplit, urlunsplit

from ..base.text import short
from ..errors import RemoteError

HUB = "https://huggingface.co"
LOCAL = ("localhost", "127.0.0.1", "::1")
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
SAFE = "%/:=&?~+!$,;'@()*[]"  # of a path and a query; the rest is escaped
NAME = r"[\w][\w.-]*"
HF = re.compile(
    rf"hf://(?P<owner>{NAME})/(?P<name>{NAME})(?:@(?P<early>[^/@]+))?/(?P<file>[^@]+)(?:@(?P<late>.+))?"
)


class Address(NamedTuple):
    """The address of a remote file: its URL, its form in messages, and the token to send."""

    url: str
    shown: str  # without what may be secret: queries are signatures at times
    token: str | None = None

    def __repr__(self) -> str:
        """The address as messages show it, without secrets: tracebacks print objects whole."""
        return f"Address({self.shown!r})"

    @property
    def login(self) -> str:
        """Advice for an error message, if a server wants a login."""
        if not self.shown.startswith("hf://"):
            return "fetch the file with what logs you in, and open it here"
        if self.token is None and os.environ.get("HF_TOKEN", "").strip():
            hub = urlsplit(self.url)
            return (
                f"HF_TOKEN was not sent, for it goes over https alone, and HF_ENDPOINT names {hub.scheme}://"
                f"{hub.hostname}; set HF_ENDPOINT to an address with https, or unset it"
            )
        return "set HF_TOKEN to a token that may read it, and accept the model's terms on its page"

    @property
    def path(self) -> str:
        """The path of the URL, whose end is the name of the file."""
        return urlsplit(self.url).path

    def beside(self, name: str) -> Address:
        """Another file of the same folder."""
        url, shown = urlsplit(self.url), self.shown.partition("@")
        folder = url.path.rpartition("/")[0]
        tail = shown[1] + shown[2] if self.shown.startswith("hf://") and "/" not in shown[2] else ""
        head = shown[0] if tail else self.shown
        return Address(
            urlunsplit(url._replace(path=f"{folder}/{quote(name)}")),
            f"{head.rpartition('/')[0]}/{name}{tail}", self.token,
        )  # fmt: skip


def is_address(path: object) -> bool:
    """True for a path that is an address."""
    return isinstance(path, str) and SCHEME.match(path) is not None


def parse(text: str) -> Address:
    """The address that a text stands for; RemoteError if the text is no valid address."""
    if not text.isprintable() or " " in text:
        raise RemoteError(
            f"open({short(text)}): a URL has no blanks and no control characters; write them as %20 and "
            "the like"
        )
    if text.lower().startswith("hf://"):
        return _of_hub(text)
    try:
        parts = urlsplit(text)
        port_is_right = parts.port is None or parts.port >= 0
    except ValueError as error:
        raise RemoteError(f"open({short(text)}): it is no URL: {error}; check it") from None
    if parts.scheme.lower() in ("http", "https"):
        if not parts.hostname or not port_is_right:
            raise RemoteError(f"open({short(text)}): the URL names no host; write https://host/path")
        if parts.username is not None:
            raise RemoteError(
                f"open: a URL of {parts.hostname} has a name or password in it, which would show in "
                "messages; leave it out, or fetch the file first"
            )
        parts = parts._replace(
            path=quote(parts.path, safe=SAFE), query=quote(parts.query, safe=SAFE), fragment=""
        )
        return Address(urlunsplit(parts), urlunsplit(parts._replace(query="")))
    return Address(text, text.partition("?")[0])


def _of_hub(text: str) -> Address:
    match = HF.fullmatch(text)
    file = match["file"] if match else ""
    revision = (match["late"] or match["early"] or "main") if match else ""
    if match is None or (match["late"] and match["early"]) or ".." in f"{file}/{revision}".split("/"):
        raise RemoteError(
            f"open({short(text)}): an address of the hub is hf://owner/name/file, or with a branch, tag or "
            "commit hf://owner/name/file@revision"
        )
    hub = os.environ.get("HF_ENDPOINT", "").rstrip("/") or HUB
    url = f"{hub}/{match['owner']}/{match['name']}/resolve/{quote(revision, safe='')}/{quote(file)}"
    host = urlsplit(hub)
    safe = host.scheme == "https" or host.hostname in LOCAL
    return Address(url, text, _token() if safe else None)


def _token() -> str | None:
    token = os.environ.get("HF_TOKEN", "").strip()
    if not (token.isascii() and token.isprintable()):
        raise RemoteError("HF_TOKEN: it has characters that no token has; set it again, or unset it")
    return token or None
