"""Object code of the CPU's kernels for each instruction set, made in processes of any machine with Linux."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from unittest import mock

from _cross import aim
from _packs import Wanted

from ggmlq.cpu.machine.levels import LEVELS, Level
from ggmlq.cpu.machine.loading import sealed
from ggmlq.store.store import SWITCH

SETTINGS = {"GGMLQ_CACHE_DIR": "off", SWITCH: "off"}


def compiled(missing: list[Wanted], jobs: int) -> Iterator[tuple[Wanted, bytes | str]]:
    """The code of kernels, as it is ready, one instruction set after the other."""
    kernels: dict[Level, list[Wanted]] = {}
    for kernel in missing:
        kernels.setdefault(_level(kernel), []).append(kernel)
    before = dict(os.environ)
    context = multiprocessing.get_context("spawn")
    for level, listed in kernels.items():
        os.environ.update(SETTINGS | {"NUMBA_CPU_NAME": level.cpu, "NUMBA_CPU_FEATURES": level.text})
        try:
            with (
                without_script(),
                context.Pool(min(jobs, len(listed)), aim, (level,), maxtasksperchild=60) as pool,
            ):
                yield from pool.imap_unordered(_code_of, listed)
        finally:
            os.environ.clear()
            os.environ.update(before)


@contextmanager
def without_script() -> Iterator[None]:
    """Processes that begin meanwhile do not import this script, which sets Numba up for this machine."""
    script = sys.modules["__main__"]
    with mock.patch.multiple(script, create=True, __spec__=None, __file__=None):
        yield


def _level(kernel: Wanted) -> Level:
    level = next(level for level in LEVELS if level.folder == kernel.machine)
    return level.of(kernel.origin.family)


def _code_of(kernel: Wanted) -> tuple[Wanted, bytes | str]:
    """The code of a kernel, or the error; in a process of its instruction set."""
    from _objects import object_of
    from numba import types

    origin = kernel.origin
    file, _, name = origin.family.rpartition(".")
    try:
        function = getattr(import_module(file), name)(*origin.case)
        return kernel, sealed(str(origin), object_of(function, (types.int64,) * 3, _level(kernel)))
    except Exception as error:  # printed with the others at the end
        return kernel, f"{kernel}: {type(error).__name__}: {error}"
