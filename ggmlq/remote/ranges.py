"""Reads ranges of a remote file over HTTP, and checks each answer against its request.

An answer counts if it is 206, of exactly the bytes that were asked for, of a file as long as before and, as
far as the server names its version (ETag, else Last-Modified), of the same version. If a connection breaks,
another one continues at that byte. The number of tries is bounded, and so is the time for each 64 KiB, all
tries together (connections.py).
"""

from __future__ import annotations

import contextlib
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

from ..base.text import cut, printable, short
from ..errors import RemoteError, RemoteNotFoundError
from .address import Address
from .connections import PIECE, SILENCE, VARIABLE, Clock, opener, origin

TRIES = 6  # of one range: breaks, refusals for now, silence
PAUSE = 0.25  # seconds before the second try, twice as long before each that follows
MOST = 1 << 44  # bytes of a file
LONGEST = 200  # characters of a server's words in a message
FOR_NOW = (408, 425, 429, 500, 502, 503, 504)
CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")


class Ranges:
    """A file behind a URL; its length and version are known from the first answer on."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.size: int | None = None
        self.version: str | None = None  # ETag or Last-Modified
        self._clock = Clock()
        self._opener = opener(self._clock)

    def read(self, start: int, stop: int) -> Iterator[bytes]:
        """The bytes from ``start`` to ``stop``, or to the end of the file, in pieces of 64 KiB at most."""
        failures: list[str] = []
        self._clock.start()
        while True:
            try:
                with self._answer(start, stop) as answer:
                    stop = self._checked(answer, start, stop)
                    while start < stop:
                        count = min(PIECE, stop - start)
                        piece = answer.read(count)
                        if not piece:
                            raise http.client.IncompleteRead(b"", stop - start)
                        start += len(piece)
                        yield piece
                        if len(piece) == count:  # what the caller did meanwhile does not count
                            self._clock.start()
                return
            except urllib.error.HTTPError as error:
                with contextlib.closing(error):
                    if error.code not in FOR_NOW:
                        self._refused(error)
                    self._wait(failures, f"HTTP {error.code} {_line(error.reason)}", error.headers)
            except (OSError, http.client.HTTPException, ValueError) as error:
                if isinstance(error, RemoteError):
                    raise
                reason = getattr(error, "reason", None) or error
                if isinstance(error, ValueError | http.client.InvalidURL) or _is_final(reason):
                    self._fail(f"no connection: {_line(reason)}; check the address")
                self._wait(failures, f"{type(error).__name__}: {_line(reason)}")

    def _answer(self, start: int, stop: int) -> Any:
        headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity", "User-Agent": "ggmlq"}
        if self.version is not None and self.version.startswith('"'):  # a weak one does not do for ranges
            headers["If-Range"] = self.version
        request = urllib.request.Request(self.address.url, headers=headers)
        if self.address.token is not None:
            request.add_unredirected_header("Authorization", f"Bearer {self.address.token}")
            request.of_hub = origin(self.address.url)  # type: ignore[attr-defined]
        return self._opener.open(request, timeout=SILENCE)

    def _checked(self, answer: Any, start: int, stop: int) -> int:
        """The end of the range that the answer sends, once all its headers were compared."""
        headers, status, last_wanted = answer.headers, answer.status, stop - 1
        if status == 200:
            if self.version is not None and self._version(headers) != self.version:
                self._changed_version(self._version(headers))
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
        content = headers.get("Content-Range", "")
        match = CONTENT_RANGE.fullmatch(content.strip())
        first, last, size = map(int, match.groups()) if match else (-1, -1, -1)
        stop = min(stop, size)
        if first != start or last != stop - 1 or not 0 < size <= MOST:
            says = f"says that it sends {short(content)}" if content else "does not say what it sends"
            self._fail(
                f"bytes {start} to {last_wanted} were asked for, and the server {says}; an answer has those "
                "bytes, and the length of the file; fetch the file, and open it here"
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
            self._changed_version(version)

    @staticmethod
    def _version(headers: Message) -> str | None:
        version = headers.get("ETag") or headers.get("Last-Modified")
        return version.strip() if version else None

    def _changed_version(self, version: str | None) -> NoReturn:
        self._changed(f"its version was {short(self.version)} and is {short(version)}")

    def _changed(self, how: str) -> NoReturn:
        self._fail(f"the file changed on the server: {how}; parts of two files do not mix; open it again")

    def _fail(self, reason: str) -> NoReturn:
        raise RemoteError(f"{self.address.shown}: {printable(reason)}")

    def _refused(self, error: urllib.error.HTTPError) -> NoReturn:
        """The error of an HTTP status, in words."""
        code, hub = error.code, self.address.shown.startswith("hf://")
        if code == 404:
            raise RemoteNotFoundError(
                f"{self.address.shown}: the server has no such file (HTTP 404); check the address"
                + (", the revision, and that the repository is public or HF_TOKEN is set" if hub else "")
            )
        if code in (401, 403):
            self._fail(
                f"the server refuses (HTTP {code}): it wants a login, or yours does not suffice; "
                f"{self.address.login}"
            )
        if code == 416:
            self._fail(
                "the server says that the file is shorter than what was asked for; it is empty, or changed"
            )
        self._fail(f"the server answers HTTP {code} {short(error.reason)}; check the address")

    def _wait(self, failures: list[str], reason: str, headers: Message | None = None) -> None:
        failures.append(reason)
        if len(failures) >= TRIES:
            self._fail(
                f"tried {TRIES} times, and the last time {reason}; check the network, and open it again: "
                "what was fetched is kept"
            )
        later = headers.get("Retry-After", "") if headers is not None else ""
        pause = max(PAUSE * 2 ** (len(failures) - 1), float(later) if later.isdecimal() else 0.0)
        if pause >= self._clock.left:
            after = f", and asks to come back after {cut(later, 20)} s" if later.isdecimal() else ""
            self._fail(
                f"{reason}{after}; each {PIECE >> 10} KiB must come within {self._clock.seconds:g} s, all "
                f"tries together; check the network, or set {VARIABLE} to more seconds: what was fetched is "
                "kept"
            )
        time.sleep(pause)


def _line(reason: object) -> str:
    """Words of a server or of the system, as a message may show them."""
    return cut(printable(str(reason)).replace("\n", r"\n"), LONGEST)


def _is_final(error: object) -> bool:
    """True if another try would not help: no such host, or a certificate that fails the check."""
    unknown = isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME
    return unknown or isinstance(error, ssl.SSLCertVerificationError)
