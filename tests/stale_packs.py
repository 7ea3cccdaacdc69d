"""Skips of tests that look at code in packs, where packs are older than the sources."""

from __future__ import annotations

from functools import cache

import pytest
from scripts import load

from ggmlq.cpu.machine import served as cpu
from ggmlq.cuda.machine import served as cuda

STORES = {"cpu": cpu.STORE, "cuda": cuda.STORE}
REBUILD = "run python tools/prebuild.py"


@cache
def stale(side: str = "cuda") -> str | None:
    """A kernel of a side's packs that was compiled from other sources than today's, or None."""
    held = load("tools", "_packs").held(STORES[side].prebuilt)
    return next((str(kernel) for kernel in held if kernel.is_stale), None)


def need_fresh(side: str = "cuda") -> None:
    """Skip a test where any kernel of a side's packs is stale: it is compiled when first used."""
    if (kernel := stale(side)) is not None:
        pytest.skip(f"packs are stale, such as {kernel}; {REBUILD}")


def assert_in_packs(lacking) -> None:
    """Fail if any kernel is lacking in packs; skip where packs are stale."""
    if listed := [str(getattr(kernel, "origin", kernel)) for kernel in lacking]:
        need_fresh()
        raise AssertionError(f"not in packs: {', '.join(listed)}; {REBUILD}")
