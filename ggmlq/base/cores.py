"""The number of cores that this process may use: affinity, quotas of containers, environment variables."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")  # where Linux says how much processor time a container has
LIMITS = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS")


def available(groups: Path = GROUPS, group_file: Path = Path("/proc/self/cgroup")) -> int:
    """The number of cores of this process's affinity, or fewer by a quota or environment variables."""
    return max(1, min([_cores(), *_quotas(groups, group_file), *_limits()]))


def _cores() -> int:
    usable = getattr(os, "process_cpu_count", None)  # from Python 3.13; it also knows -X cpu_count
    affinity = getattr(os, "sched_getaffinity", None)
    cores = usable() if usable else len(affinity(0)) if affinity else os.cpu_count()
    return cores or 1


def _limits() -> Iterator[int]:
    """Limits set by environment variables; the first number of OpenMP's list is for the outer level."""
    for name in LIMITS:
        first = os.environ.get(name, "").split(",")[0].strip()
        if first.isdecimal() and int(first):
            yield int(first)


def _quotas(groups: Path, group_file: Path) -> Iterator[int]:
    """The quotas in cores, rounded up, of this process's group and of all groups above it."""
    try:
        lines = group_file.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            yield from _up(groups, path, _quota)
        elif "cpu" in controllers.split(","):
            for name in dict.fromkeys((controllers, "cpu")):
                yield from _up(groups / name, path, _old_quota)


def _up(top: Path, path: str, quota: object) -> Iterator[int]:
    """Quotas from a group up to the top; a container may see only the top, and not its own path."""
    assert callable(quota)
    here = top / path.lstrip("/")
    for folder in (here, *here.parents):
        try:
            allowed, period = quota(folder)
            if allowed > 0 < period:
                yield math.ceil(allowed / period)
        except (OSError, ValueError):  # no such group, or "max"
            pass
        if folder == top:
            return


def _quota(folder: Path) -> tuple[int, int]:
    allowed, period = (folder / "cpu.max").read_text().split()
    return int(allowed), int(period)


def _old_quota(folder: Path) -> tuple[int, int]:
    allowed, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
    return int(allowed), int(period)
