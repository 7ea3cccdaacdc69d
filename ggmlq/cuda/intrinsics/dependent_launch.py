"""Early starts: a kernel that begins while the one before it on the stream still runs.

A kernel that is ``early`` (machine/launch.py) is put on the multiprocessors as soon as all blocks of its
predecessor run and have let it; it can fetch weights, which nothing changes, while the last of those
blocks work. Whatever the predecessor may read or write it touches only after it has waited. Between
products of a few microseconds that is a third of the time.

From capability 9.0 on. For other GPUs machine/launch.py leaves these instructions out: nothing starts early.
"""

from __future__ import annotations

from typing import Any

from .assembly import instruction
from .atoms import inlined


@instruction("griddepcontrol.launch_dependents;", None, effect=True)
def let_successor_start() -> Any:
    """The next kernel may be put beside this one, as far as this block is concerned."""


@instruction("griddepcontrol.wait;", None, effect=True)
def wait_for_predecessor() -> Any:
    """Until the kernel before has ended and all it wrote is there."""


@inlined
def take_turn() -> None:
    """The start of a kernel that fetches nothing early: the next one may start, this one waits."""
    let_successor_start()
    wait_for_predecessor()
