"""Compiling in another process: Numba is loaded there, and this one stays as light as it is.

The process is the same Python with the same path. It is started by the first kernel that needs it, waits
for others, and ends with its input, whatever becomes of who started it. What it is sent and what it answers
are pickled, a length before each; what it prints goes to stderr.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import struct
import subprocess
import sys
import threading
from typing import Any, BinaryIO

from ...errors import DeviceError, GGMLQError, MissingDependencyError
from ...progress import quiet

LENGTH = struct.Struct("<Q")
WAY_OUT = "with GGMLQ_COMPILE_HERE=1 in the environment kernels are compiled in the process itself"

_lock = threading.Lock()
_running: dict[int, subprocess.Popen[bytes]] = {}  # by the process that started it: not for forked children


def code(origin: Any, capability: tuple[int, int]) -> bytes:
    """The code of a kernel of a family, compiled."""
    asked = f"{origin}: compiling it in another process"
    if origin is None:
        raise DeviceError(f"a kernel that no family makes: only Numba itself can compile it; {WAY_OUT}")
    with _lock:
        try:
            process = _process()
            assert process.stdin is not None
            assert process.stdout is not None
            _send(process.stdin, (origin.family, origin.case, capability))
            answer = _received(process.stdout)
        except (OSError, EOFError, pickle.PicklingError, AttributeError, TypeError) as error:
            _end()
            raise DeviceError(
                f"{asked} failed: {type(error).__name__}: {error or 'it ended'}; {WAY_OUT}"
            ) from error
        except BaseException:  # interrupted: its answer would be taken for the next one's
            _end()
            raise
    kind, content = answer
    if kind == "code":
        return bytes(content)
    raise (MissingDependencyError if kind == "missing" else DeviceError)(f"{asked}: {content}")


def _process() -> subprocess.Popen[bytes]:
    process = _running.get(os.getpid())
    if process is None or process.poll() is not None:
        _running.clear()
        path = os.pathsep.join(dict.fromkeys(place or os.getcwd() for place in sys.path))
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
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


def _send(stream: BinaryIO | Any, message: Any) -> None:
    content = pickle.dumps(message)
    stream.write(LENGTH.pack(len(content)) + content)
    stream.flush()


def _received(stream: BinaryIO | Any) -> Any:
    head = stream.read(LENGTH.size)
    content = stream.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else b""
    if not content:
        raise EOFError("it has ended")
    return pickle.loads(content)


def compiled(family: str, case: tuple[Any, ...], capability: tuple[int, int]) -> tuple[str, Any]:
    """In the other process: the code, or what went wrong."""
    try:
        importlib.import_module(family.rpartition(".")[0])
        families = importlib.import_module("ggmlq.cuda.machine.launch").FAMILIES
        with quiet():  # who waits for it says so
            return "code", families[family].make(*case).cubin(capability)
    except MissingDependencyError as error:
        return "missing", str(error)
    except GGMLQError as error:
        return "error", str(error)
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}"


def main() -> None:
    """Compile what is asked for, until nobody asks any more."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with contextlib.suppress(EOFError, KeyboardInterrupt, BrokenPipeError):
        while True:
            _send(answers, compiled(*_received(sys.stdin.buffer)))


if __name__ == "__main__":
    main()
