"""Processes as Linux has them in /proc, and what bridges ask of a library that means harm."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import ggmlq as gq
from ggmlq.arrays.rows import rows

X = rows("normal", 9, 96, 1)
W = gq.quantize(rows("normal", 7, 96, 2), "q4_0")
Y = gq.reference.linear(X, W)

ASK = {
    "devices": lambda bridge: bridge.devices(),
    "quantize": lambda bridge: bridge.quantize(X, "q4_0"),
    "dequantize": lambda bridge: bridge.dequantize(W),
    "mul_mat": lambda bridge: bridge.mul_mat(X, W, "FAKE0"),
}
PLACES = ["load", *ASK]

CHECK = ["check", "--types", "q4_0", "--shapes", "9x7x96", "--device", "FAKE0", "--lib"]


def state(pid):
    """One letter and the parent of a process, as Linux has it."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "X", 0
    return words[0], int(words[1])


def soon(holds):
    """Whether it holds now or in a moment."""
    for _ in range(600):
        if holds():
            return True
        time.sleep(0.05)
    return False


def ends(pids):
    """Whether all of these end; nobody may have waited for orphans."""
    return soon(lambda: all(state(pid)[0] in "XZ" for pid in pids))


def zombies():
    """Ended children of this process for which nobody has waited."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if state(pid) == ("Z", os.getpid())]


def workers(of=None):
    """Living workers of a process, of this one unless another is named."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            pid = int(path.parent.name)
            if b"ggmlq.llama.worker" in path.read_bytes() and state(pid)[1] == (of or os.getpid()):
                found.append(pid)
    return [pid for pid in found if state(pid)[0] not in "XZ"]
