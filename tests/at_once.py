"""The same work by several threads at one time."""

from __future__ import annotations

import threading
from collections.abc import Callable


def at_once(work: Callable[[int], object], count: int) -> None:
    """``work(0)`` … ``work(count - 1)``, each in a thread of its own; what the first that fails raised."""
    problems: list[BaseException] = []

    def run(i: int) -> None:
        try:
            work(i)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
