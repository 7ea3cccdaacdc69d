"""Ranges of a file over HTTP. Nothing is believed that an answer does not prove.

An answer counts if it is 206, of exactly the bytes that were asked for, of a file as long as before and, as
far as the server names its version (ETag, else Last-Modified), of the same version. A connection that
breaks is taken up where it broke; how often, is bounded.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import Message
from typing import Any, NoReturn
from urllib.parse import urlsplit

from ..errors import RemoteError, RemoteNotFoundError
from ..text import short
from .address import Address

TRIES = 6  # of one range: breaks, refusals for now, silence
PAUSE = 0.25  # seconds before the second try, twice as long before each that follows
LONGEST_PAUSE = 30.0
SILENCE = 30.0  # seconds without a byte
REDIRECTS = 5
PIECE = 1 << 20  # bytes read at a time
MOST = 1 << 44  # bytes of a file
FOR_NOW = (408, 425, 429, 500, 502, 503, 504)
CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")


class Ranges:
    """A file behind a URL; its length and version are known from the first answer on."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.size: int | None = None
        self.version: str | None = None  # ETag or Last-Modified
        self._opener = urllib.request.build_opener(_Redirects())

    def read(self, start: int, stop: int) -> Iterator[bytes]:
        """Bytes from one to another, which is at most the end; a few at a time."""
        failures: list[str] = []
        while True:
            try:
                with self._asked(start, stop) as answer:
                    stop = self._checked(answer, start, stop)
                    while start < stop:
                        piece = answer.read(min(PIECE, stop - start))
                        if not piece:
                            raise http.client.IncompleteRead(b"", stop - start)
                        start += len(piece)
                        yield piece
                return
            except urllib.error.HTTPError as error:
                with error:
                    if error.code not in FOR_NOW:
                        self._refused(error)
                    self._wait(failures, f"HTTP {error.code} {error.reason}", error.headers)
            except (OSError, http.client.HTTPException, ValueError) as error:
                if isinstance(error, RemoteError):
                    raise
                said = getattr(error, "reason", None) or error
                if isinstance(error, ValueError | http.client.InvalidURL) or _is_final(said):
                    self._fail(f"no connection: {said}; check the address")
                self._wait(failures, f"{type(error).__name__}: {said}")

    def _asked(self, start: int, stop: int) -> Any:
        headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity", "User-Agent": "ggmlq"}
        if self.version is not None and self.version.startswith('"'):  # a weak one does not do for ranges
            headers["If-Range"] = self.version
        request = urllib.request.Request(self.address.url, headers=headers)
        if self.address.token is not None:
            request.add_unredirected_header("Authorization", f"Bearer {self.address.token}")
            request.of_hub = _origin(self.address.url)  # type: ignore[attr-defined]
        return self._opener.open(request, timeout=SILENCE)

    def _checked(self, answer: Any, start: int, stop: int) -> int:
        """Where the range ends that is coming, after everything about it was compared."""
        headers, status = answer.headers, answer.status
        if status == 200:
            if self.version is not None and self._version(headers) != self.version:
                self._changed(f"its version was {self.version} and is {self._version(headers)}")
            self._fail(
                "the server sends all of the file (HTTP 200) where a part was asked for; it ignores "
                "ranges, or the file changed; fetch the file, and open it here"
            )
        if status != 206:
            self._fail(f"HTTP {status} where a part was asked for; check the address")
        if headers.get("Content-Encoding", "identity").lower() != "identity":
            self._fail(
                f"the server packs what it sends ({short(headers['Content-Encoding'])}), though it was "
                "asked not to; fetch the file, and open it here"
            )
        said = headers.get("Content-Range", "")
        found = CONTENT_RANGE.fullmatch(said.strip())
        first, last, size = map(int, found.groups()) if found else (-1, -1, -1)
        stop = min(stop, size)
        if first != start or last != stop - 1 or not 0 < size <= MOST:
            self._fail(
                f"bytes {start} to {stop - 1} were asked for, and the server says that it sends "
                f"{short(said)}; an answer has those bytes, and the length of the file; fetch the file, "
                "and open it here"
            )
        length = headers.get("Content-Length")
        if length is not None and length.strip() != str(stop - start):
            self._fail(
                f"{stop - start} bytes were asked for, and the server announces {short(length)}; fetch the "
                "file, and open it here"
            )
        self._same(size, self._version(headers))
        return stop

    def _same(self, size: int, version: str | None) -> None:
        if self.size is None:
            self.size, self.version = size, version
        elif size != self.size:
            self._changed(f"it had {self.size} bytes and has {size}")
        elif version != self.version:
            self._changed(f"its version was {self.version} and is {version}")

    @staticmethod
    def _version(headers: Message) -> str | None:
        found = headers.get("ETag") or headers.get("Last-Modified")
        return found.strip() if found else None

    def _changed(self, how: str) -> NoReturn:
        self._fail(f"the file changed on the server: {how}; parts of two files do not mix; open it again")

    def _fail(self, reason: str) -> NoReturn:
        raise RemoteError(f"{self.address.shown}: {reason}")

    def _refused(self, error: urllib.error.HTTPError) -> NoReturn:
        """What a status means to who asked."""
        code, hub = error.code, self.address.shown.startswith("hf://")
        if code == 404:
            raise RemoteNotFoundError(
                f"{self.address.shown}: the server has no such file (HTTP 404); check the address"
                + (", the revision, and that the repository is public or HF_TOKEN is set" if hub else "")
            )
        if code in (401, 403):
            way = "fetch the file with what logs you in, and open it here"
            if hub:
                way = "set HF_TOKEN to a token that may read it, and accept the model's terms on its page"
            self._fail(
                f"the server refuses (HTTP {code}): it wants a login, or yours does not suffice; {way}"
            )
        if code == 416:
            self._fail(
                "the server says that the file is shorter than what was asked for; it is empty, or changed"
            )
        self._fail(f"the server answers HTTP {code} {short(error.reason)}; check the address")

    def _wait(self, failures: list[str], said: str, headers: Message | None = None) -> None:
        failures.append(said)
        if len(failures) >= TRIES:
            self._fail(
                f"tried {TRIES} times, and the last time {said}; check the network, and open it again: "
                "what was fetched is kept"
            )
        pause = PAUSE * 2 ** (len(failures) - 1)
        asked = headers.get("Retry-After", "") if headers is not None else ""
        time.sleep(min(max(pause, float(asked) if asked.isdecimal() else 0.0), LONGEST_PAUSE))


def _is_final(error: object) -> bool:
    """Trying again would not help: no such host, or a certificate that is not believed."""
    unknown = isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME
    return unknown or isinstance(error, ssl.SSLCertVerificationError)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Followed a few times, never from https to an open connection; a token stays with its host."""

    max_redirections = max_repeats = REDIRECTS

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        scheme = urlsplit(newurl).scheme
        if scheme not in ("http", "https") or (req.type == "https" and scheme != "https"):
            raise RemoteError(
                f"{short(req.full_url.partition('?')[0])}: it leads to {short(newurl.partition('?')[0])}; "
                "only https is followed from https, and nothing leads out of the web; check the address"
            )
        found = super().redirect_request(req, fp, code, msg, headers, newurl)
        hub = getattr(req, "of_hub", None)
        if found is not None and hub is not None and _origin(newurl) == hub:
            found.add_unredirected_header("Authorization", req.get_header("Authorization"))
            found.of_hub = hub  # type: ignore[attr-defined]
        return found
