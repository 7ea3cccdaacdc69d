"""Dependent launches: a kernel that starts while its predecessor on the stream still runs.

A kernel that is ``early`` (driver/launch.py) starts as soon as all blocks of its predecessor run and have
allowed it. It can fetch weights, which nothing changes, while the last of those blocks work. Memory that
the predecessor may read or write it touches only after it has waited. Between products of a few
microseconds this saves a third of the time.

From capability 9.0 on. For other GPUs driver/launch.py removes these instructions, and each kernel waits.
"""

from __future__ import annotations

from typing import Any

from .assembly import instruction
from .atoms import inlined


@instruction("griddepcontrol.launch_dependents;", None, effect=True)
def let_successor_start() -> Any:
    """Allow the next kernel to start beside this one, as far as this block is concerned."""


@instruction("griddepcontrol.wait;", None, effect=True)
def wait_for_predecessor() -> Any:
    """Wait until the kernel before has ended and all its writes are visible."""


@inlined
def take_turn() -> None:
    """The start of a kernel that fetches nothing early: the next one may start, this one waits."""
    let_successor_start()
    wait_for_predecessor()
