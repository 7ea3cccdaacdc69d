"""Devices that work together: what goes from one to another, and how sums over them are made.

A *run* is one piece of work: it begins where the caller's stream is and ends before what the caller does
next. Products that nobody wants gathered in between may share one, :func:`together`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Protocol

import numpy as np

from ..base.devices import cuda_module, device_of
from ..errors import DeviceError


class Run(Protocol):
    """Work of a team on behalf of one device, the caller's; positions number the parts."""

    home: str

    def fork(self) -> None:
        """From here on other devices may write to the room that was made for them."""

    def on(self, position: int) -> AbstractContextManager[Any]:
        """The device of a part, and its stream."""

    def at_home(self) -> AbstractContextManager[Any]:
        """The device of the caller."""

    def room(self, position: int, shape: tuple[int, ...], dtype: Any) -> Any:
        """Memory at home for a part that is elsewhere; None where it need not travel. Before ``fork``."""

    def give(self, arrays: Sequence[Any]) -> list[Any]:
        """Arrays at home, one a part, each to its device."""

    def take(self, position: int, part: Any, room: Any) -> Any:
        """A part at home."""

    def sum(self, parts: Sequence[Any]) -> list[Any]:
        """The sum of arrays of one shape, on the device of each; they may be written to."""


class Team(Protocol):
    """Some devices, in order."""

    devices: tuple[str, ...]

    @property
    def sums(self) -> str:
        """The way in which sums are made, in words."""

    def run(self, home: str, keep: list[Any]) -> AbstractContextManager[Any]:
        """A run, or the one that is under way in this thread."""


@cache
def team_of(devices: tuple[str, ...], sums: str | None) -> Team:
    """The team of some devices: one each, since it keeps what it needs to talk."""
    if devices[0] == "cpu":
        return HostTeam(devices)
    team: Team = cuda_module("parallel.team").CudaTeam(devices, sums)
    return team


@contextmanager
def together(*sharded: Any, x: Any = None) -> Iterator[None]:
    """One run for several products on the same devices, so that they wait for each other once, at the end.

    Within it, results that stay in parts are ready on their devices' streams; the caller's stream is that
    of x, or of the first device. What it is to see of other devices, ``gather`` brings.

    >>> import numpy as np, ggmlq as gq
    >>> s = gq.parallel.shard(gq.quantize(np.eye(64, dtype=np.float32), "q8_0"), ["cpu", "cpu"])
    >>> with gq.parallel.together(s):
    ...     y = gq.parallel.linear(np.ones(64, np.float32), s).gather()
    """
    if len({one.devices for one in sharded}) != 1:
        raise DeviceError(
            f"together({', '.join(map(repr, sharded))}): one run is of arrays on the same devices, in "
            "the same order; pass one array or more that are"
        )
    first = sharded[0]
    home = first.devices[0] if x is None else device_of(x)
    with first.team.run(home, []) as run:
        run.fork()
        yield


class HostRun:
    """On the host nothing travels."""

    home = "cpu"

    def fork(self) -> None:
        pass

    def on(self, position: int) -> AbstractContextManager[Any]:
        return nullcontext()

    def at_home(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def room(self, position: int, shape: tuple[int, ...], dtype: Any) -> Any:
        return None

    def give(self, arrays: Sequence[Any]) -> list[Any]:
        return list(arrays)

    def take(self, position: int, part: Any, room: Any) -> Any:
        return part

    def sum(self, parts: Sequence[Any]) -> list[Any]:
        total = parts[0]
        with np.errstate(over="ignore", invalid="ignore"):  # infinities are results, as on a GPU
            for part in parts[1:]:
                total = total + part
        return [total] * len(parts)


class HostTeam:
    """Parts on the host: the same program without a GPU."""

    sums = "NumPy, in the order of the devices"

    def __init__(self, devices: tuple[str, ...]) -> None:
        self.devices = devices
        self._run = HostRun()

    @contextmanager
    def run(self, home: str, keep: list[Any]) -> Iterator[HostRun]:
        yield self._run
