"""A server of files for tests: it counts what it sends, and misbehaves as it is told."""

from __future__ import annotations

import http.server
import re
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Served:
    """What it serves, how it misbehaves, what it saw."""

    files: dict[str, bytes]
    url: str = ""
    etag: str | None = '"one"'
    modified: str | None = None
    mischief: str = ""  # see answer()
    times: int = 10**9  # that it misbehaves
    sent: int = 0
    asked: list[tuple[str, str | None, str | None]] = field(default_factory=list)  # path, range, token
    redirects: dict[str, str] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)


class Handler(http.server.BaseHTTPRequestHandler):
    """One request."""

    state: Served

    def log_message(self, *args):
        """Nothing: tests look at ``asked``."""

    def do_GET(self):
        state, path = self.state, self.path.partition("?")[0]
        self.state.asked.append((self.path, self.headers.get("Range"), self.headers.get("Authorization")))
        if path in state.redirects:
            self.send_response(302)
            self.send_header("Location", state.redirects[path])
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif state.statuses.get(path):
            self.send_error(state.statuses[path])
        elif path not in state.files:
            self.send_error(404)
        else:
            mischief = state.mischief if state.times > 0 else ""
            state.times -= bool(mischief)
            self.answer(state.files[path], mischief)

    def answer(self, data: bytes, mischief: str) -> None:
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        changed = self.headers.get("If-Range") not in (None, self.state.etag)
        if found is None or changed or mischief == "ignores ranges":
            self.begin(200, data, {})
            return
        first, last = int(found[1]), min(int(found[2]), len(data) - 1)
        if first >= len(data):
            self.send_error(416)
            return
        body, size = data[first : last + 1], len(data)
        headers = {"Content-Range": f"bytes {first}-{last}/{size}"}
        if mischief == "other range":
            headers["Content-Range"] = f"bytes {first + 1}-{last + 1}/{size + 1}"
        elif mischief == "no range":
            del headers["Content-Range"]
        elif mischief == "negative":
            headers["Content-Range"] = f"bytes {first}-{last}/-5"
        elif mischief == "huge":
            headers["Content-Range"] = f"bytes {first}-{last}/{10**18}"
        elif mischief == "longer":
            headers["Content-Range"] = f"bytes {first}-{last}/{size + 100}"
        elif mischief == "less":
            headers["Content-Length"] = str(len(body) // 2)
        elif mischief == "packs":
            headers["Content-Encoding"] = "gzip"
        elif mischief == "busy":
            self.send_error(503)
            return
        elif mischief == "other version":
            headers["ETag"] = '"two"'
        self.begin(206, body, headers, mischief)

    def begin(self, status, body, headers, mischief=""):
        self.send_response(status)
        own = {
            "Content-Length": str(len(body)),
            "ETag": self.state.etag,
            "Last-Modified": self.state.modified,
        }
        for name, value in {**own, **headers}.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        if mischief == "sends nothing":
            body = b""
        elif mischief == "drops":
            body = body[: max(1, len(body) // 3)]
        self.state.sent += len(body)
        step = 1 << 16 if mischief == "slow" else max(len(body), 1)
        with suppress(OSError):  # who asked has heard enough
            for at in range(0, len(body), step):
                self.wfile.write(body[at : at + step])
                time.sleep(0.25 if mischief == "slow" else 0)
        self.close_connection = True


@contextmanager
def served(files: dict[str, bytes]) -> Iterator[Served]:
    """A server of these, by path."""
    state = Served(files)
    handler = type("Handler", (Handler,), {"state": state})
    with _running(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)) as state.url:
        yield state


@contextmanager
def talking(talk: Callable[[Callable[[bytes], None]], None]) -> Iterator[str]:
    """The URL of a server that hears a request and answers as ``talk(send)`` does, until nobody listens."""

    class Talking(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                while self.rfile.readline().strip():
                    pass
                talk(self.wfile.write)

    with _running(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Talking)) as url:
        yield url


@contextmanager
def _running(server: socketserver.ThreadingTCPServer) -> Iterator[str]:
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def check(f, tensors):
    """The tensors of an open file are these."""
    for name, x in tensors.items():
        assert np.array_equal(np.asarray(f[name]), np.asarray(x)), name
