"""HTTP connections for remote files, which end at a deadline however slowly a server sends.

A socket's own timeout counts from byte to byte, so a server that sends one now and then, or one
``100 Continue`` after another, holds its caller for as long as it likes. Here one clock limits all waits
together: connections, handshakes, redirects, headers, tries and the pauses between them. The clock starts
again with each 64 KiB of the file, so a slow line may take as long as it needs for a large file.
"""

from __future__ import annotations

import http.client
import io
import os
import socket
import urllib.request
from functools import partial
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from ..base.text import short
from ..errors import RemoteError

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
