"""Compiles GPU kernels in another process (compile_worker.py), so that Numba is loaded there and not here.

The process is the same Python with the same path. The first kernel that needs it starts it; it waits for
others, and ends when its input is closed, even if its parent was killed. Requests and answers are pickled,
each after its length; its standard output goes to stderr.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import subprocess
import sys
import threading
from typing import Any, BinaryIO

from ...base import missing
from ...errors import DeviceError, MissingDependencyError

COMPILES = f"{__package__}.compile_worker"  # the module that it runs
LENGTH = struct.Struct("<Q")
WAY_OUT = "with GGMLQ_COMPILE_HERE=1 in the environment kernels are compiled in the process itself"

_lock = threading.Lock()
_running: dict[
    int, subprocess.Popen[bytes]
] = {}  # by the process that started it: forked children start their own


def code(origin: Any, capability: tuple[int, int]) -> bytes:
    """The code of a family's kernel for a capability, compiled by the other process."""
    task = f"{origin}: compiling it in another process"
    if origin is None:
        raise DeviceError(f"a kernel that no family makes: only Numba itself can compile it; {WAY_OUT}")
    if not missing.has("numba_cuda"):
        raise MissingDependencyError(
            f"{origin}: this kernel does not come with the package for compute capability "
            f"{'.'.join(map(str, capability))}, and numba-cuda, which compiles it, is not installed; "
            f'{missing.install_compiler()}, or leave the choice to kernel="auto"'
        )
    with _lock:
        try:
            process = _process()
            assert process.stdin is not None
            assert process.stdout is not None
            send(process.stdin, (origin.family, origin.case, capability))
            answer = received(process.stdout)
        except (OSError, EOFError, pickle.PicklingError, AttributeError, TypeError) as error:
            _end()
            raise DeviceError(
                f"{task} failed: {type(error).__name__}: {error or 'it ended'}; {WAY_OUT}"
            ) from error
        except BaseException:  # interrupted: the pending answer would be read as the next one
            _end()
            raise
    kind, content = answer
    if kind == "code":
        return bytes(content)
    raise (MissingDependencyError if kind == "missing" else DeviceError)(f"{task}: {content}")


def _process() -> subprocess.Popen[bytes]:
    process = _running.get(os.getpid())
    if process is None or process.poll() is not None:
        _running.clear()
        path = os.pathsep.join(dict.fromkeys(place or os.getcwd() for place in sys.path))
        process = subprocess.Popen(
            [sys.executable, "-m", COMPILES],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "GGMLQ_COMPILE_HERE": "1", "PYTHONPATH": path},
        )
        _running[os.getpid()] = process
    return process


def _end() -> None:
    process = _running.pop(os.getpid(), None)
    if process is not None:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]


def send(stream: BinaryIO | Any, message: Any) -> None:
    """Send a message to the other process."""
    content = pickle.dumps(message)
    stream.write(LENGTH.pack(len(content)) + content)
    stream.flush()


def received(stream: BinaryIO | Any) -> Any:
    """The next message of the other process; EOFError if it has ended."""
    head = stream.read(LENGTH.size)
    content = stream.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else b""
    if not content:
        raise EOFError("it has ended")
    return pickle.loads(content)
