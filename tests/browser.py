"""A headless Chromium for tests: opens a page and tells what it asked for, complained of, and shows.

Spoken to over two pipes, in the protocol of its developer tools, so that nothing is to be installed but
the browser itself.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = 200  # seconds for one answer: the machine may be busy
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-extensions",
    "--remote-debugging-pipe",
)  # fmt: skip


def found() -> str | None:
    """The browser of this machine: GGMLQ_CHROMIUM, or one on the path."""
    named = os.environ.get("GGMLQ_CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of one browser."""

    def __init__(self, profile: Path) -> None:
        program = found()
        assert program is not None
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # The protocol is spoken over the files 3 and 4; a shell puts the pipes there.
        line = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        command = ["/bin/bash", "-c", line, program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            command, pass_fds=(to_browser, from_browser), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._ids, self._rest, self._events = itertools.count(1), b"", []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End it and wait."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command and its answer."""
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE
        while True:
            answer = self._message(end)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self._events.append(answer)

    def _message(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser gave no answer"
            data = os.read(self._read, 1 << 20)
            assert data, "the browser ended"
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)

    # --- what tests ask -----------------------------------------------------------------

    def open(self, path: Path, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Show a file, at a size, in a colour scheme; what came before is forgotten."""
        self._events.clear()
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.resize(width, height)
        self.call("Page.navigate", url=path.resolve().as_uri())
        end = time.monotonic() + PATIENCE
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._events.append(self._message(end))

    def resize(self, width: int, height: int = 900) -> None:
        """Another window."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def run(self, script: str) -> Any:
        """The value of an expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Errors and warnings of the page so far."""
        self.run("0")  # what was said before is in
        return [json.dumps(event["params"]) for event in self._events if _complains(event)]

    def requests(self) -> list[str]:
        """What the page asked for, itself not counted."""
        self.run("0")
        asked = [
            e["params"]["request"]["url"] for e in self._events if e["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in asked[1:] if not url.startswith("data:")]

    def names(self, role: str) -> list[str]:
        """Accessible names of all elements of a role, as a screen reader hears them."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            node.get("name", {}).get("value", "")
            for node in nodes
            if not node.get("ignored") and node.get("role", {}).get("value") == role
        ]

    def pdf(self) -> bytes:
        """The page on paper."""
        data = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"]
        return base64.b64decode(data)

    def picture(self, path: Path) -> None:
        """The whole page as a PNG, to be looked at."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))


def _complains(event: dict[str, Any]) -> bool:
    method, params = event["method"], event.get("params", {})
    if method == "Log.entryAdded":
        return params["entry"]["level"] in ("error", "warning")
    if method == "Runtime.consoleAPICalled":
        return params["type"] in ("error", "warning", "assert")
    return method == "Runtime.exceptionThrown"
