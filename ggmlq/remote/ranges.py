"""Reads ranges of a remote file over HTTP, and checks each answer against its request.

An answer counts if it is 206, of exactly the bytes that were asked for, of a file as long as before and, as
far as the server names its version (ETag, else Last-Modified), of the same version. If a connection breaks,
another one continues at that byte. The number of tries is bounded, and so is the time for each 64 KiB, all
tries together.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import os
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import Message
from functools import partial
from time import monotonic
from typing import Any, NoReturn
from urllib.parse import urlsplit

from ..base.text import cut, printable, short
from ..errors import RemoteError, RemoteNotFoundError
from .address import Address

# --- connections that end at a deadline, however slowly a server sends -----------------------
# A socket's own timeout counts from byte to byte, so a server that sends one now and then, or one ``100
# Continue`` after another, holds its caller for as long as it likes. Here one clock limits all waits
# together: connections, handshakes, redirects, headers, tries and the pauses between them. The clock starts
# again with each 64 KiB of the file, so a slow line may take as long as it needs for a large file.

VARIABLE, SECONDS = "GGMLQ_REMOTE_TIMEOUT", 60.0  # for PIECE bytes, unless the variable says otherwise
MOST_SECONDS = 1e6
PIECE = 1 << 16  # bytes that must come before the clock ends; it starts again then
SILENCE = 30.0  # seconds without a byte, after which another try is better
REDIRECTS = 5


class Clock:
    """Counts down the seconds that are left for the next piece of a file."""

    def __init__(self) -> None:
        self.seconds = seconds()
        self.start()

    def start(self) -> None:
        """Start again with all seconds."""
        self._end = monotonic() + self.seconds

    @property
    def left(self) -> float:
        """The seconds that are left; 0 or negative when time is over."""
        return self._end - monotonic()

    def wait(self) -> float:
        """The seconds that one wait may take; TimeoutError if none are left."""
        left = self.left
        if left <= 0:
            raise TimeoutError("timed out")
        return min(left, SILENCE)


def seconds() -> float:
    """Seconds for each piece, as the environment says."""
    text = os.environ.get(VARIABLE, "")
    try:
        number = float(text or SECONDS)
    except ValueError:
        number = 0.0
    if not 0 < number <= MOST_SECONDS:
        raise RemoteError(
            f"{VARIABLE}={short(text)}: it is the seconds in which each {PIECE >> 10} KiB of a file "
            f"elsewhere must come, more than 0 and up to {MOST_SECONDS:.0f}; set it to such a number, or "
            f"unset it for {SECONDS:g}"
        )
    return number


def opener(clock: Clock) -> urllib.request.OpenerDirector:
    """An opener of URLs (of urllib) whose connections end when the clock does."""
    return urllib.request.build_opener(_Plain(clock), _Secure(clock), _Redirects())


def origin(url: str) -> tuple[str, str | None, int | None]:
    """The server that answers for a URL: scheme, host and port."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


class _Reader(io.RawIOBase):
    """The bytes of a socket, waited for as long as the clock allows."""

    def __init__(self, sock: socket.socket, clock: Clock) -> None:
        self._socket, self._clock = sock, clock
        self._raw = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._socket.settimeout(self._clock.wait())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """An answer that is read until the clock ends."""

    def __init__(self, sock: socket.socket, *args: Any, clock: Clock, **words: Any) -> None:
        super().__init__(sock, *args, **words)
        self.fp.close()
        self.fp = io.BufferedReader(_Reader(sock, clock))


def _connection(
    kind: type[http.client.HTTPConnection], clock: Clock, host: str, timeout: Any, **words: Any
) -> http.client.HTTPConnection:
    connection = kind(host, timeout=clock.wait(), **words)
    connection.response_class = partial(_Response, clock=clock)  # type: ignore[assignment]
    return connection


class _Plain(urllib.request.HTTPHandler):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._kind: Any = partial(_connection, http.client.HTTPConnection, clock)

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._kind, req)


class _Secure(urllib.request.HTTPSHandler):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._kind: Any = partial(_connection, http.client.HTTPSConnection, clock)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._kind, req)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a few redirects, never from https to http; a token goes to its own host only."""

    max_redirections = max_repeats = REDIRECTS

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        scheme = urlsplit(newurl).scheme
        if scheme not in ("http", "https") or (req.type == "https" and scheme != "https"):
            raise RemoteError(
                f"{short(req.full_url.partition('?')[0])}: it leads to {short(newurl.partition('?')[0])}; "
                "only https is followed from https, and nothing leads out of the web; check the address"
            )
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        fp.close()  # the caller would read all of a text that nobody sees, however long it is
        hub = getattr(req, "of_hub", None)
        if request is not None and hub is not None and origin(newurl) == hub:
            request.add_unredirected_header("Authorization", req.get_header("Authorization"))
            request.of_hub = hub  # type: ignore[attr-defined]
        return request


# --- ranges ----------------------------------------------------------------------------------

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
