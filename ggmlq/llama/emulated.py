"""A library of another machine, in an emulator: its process is a Python of that machine."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from ..errors import MissingDependencyError

HOW = "write EMULATOR:FOLDER, as in qemu-aarch64-static:root; tools/build-emulated.sh makes such a folder"
# The Python of the folder has its own NumPy; ggmlq is the one of this process.
CODE = "import sys; sys.path.append({path!r}); from ggmlq.llama.worker import main; main()"


def command(text: str) -> list[str]:
    """The words that start a Python of ``EMULATOR:FOLDER``: the folder is the root of a system with one.

    The emulator may have options: ``qemu-aarch64-static -cpu max,sve256=on:root``.
    """
    emulator, _, folder = text.rpartition(":")
    words, root = shlex.split(emulator), Path(folder).absolute()
    if not words or not folder:
        raise MissingDependencyError(f"--emulate {text}: it names no emulator and folder; {HOW}")
    if shutil.which(words[0]) is None:
        raise MissingDependencyError(
            f"--emulate {text}: there is no program {words[0]}; install it (Debian: qemu-user-static)"
        )
    pythons = sorted(root.glob("usr/bin/python3.[0-9]*[0-9]"), key=lambda path: int(path.suffix[1:]))
    if not pythons:
        raise MissingDependencyError(f"--emulate {text}: {root}/usr/bin has no python3; {HOW}")
    path = str(Path(__file__).resolve().parents[2])
    return [*words, "-L", str(root), str(pythons[-1]), "-c", CODE.format(path=path)]


def environment() -> dict[str, str]:
    """The environment without what a Python of another machine would take for its own."""
    own = ("PYTHON", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(own)}
