"""Packs that are older than the sources: what they lack is compiled at first use, so tests of them skip."""

from __future__ import annotations

from functools import cache

import pytest
from scripts import load

_packs = load("tools", "_packs")
REASON = "stale, compiled at first use; tools/prebuild.py --check names them"


@cache
def is_stale(prebuilt):
    """True where some kernel of the packs in a folder is of other sources than today's."""
    return any(kernel.is_stale for kernel in _packs.held(prebuilt))


def skip_if_stale(store):
    """Skip a test of all that a store's packs have."""
    if is_stale(store.prebuilt):
        pytest.skip(REASON)


def demand(there, store, message):
    """An error where a kernel should be in the packs; where these are stale the test skips."""
    if not there:
        skip_if_stale(store)
        raise AssertionError(message)
