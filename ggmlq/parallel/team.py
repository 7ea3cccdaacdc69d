"""``Team``: devices that multiply sharded weights together, with copies between them and sums over them.

A *run* is one piece of work of a team: it begins after the earlier work of the caller's stream and ends
before its later work. Products whose results stay in parts may share a run, see :func:`together`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Protocol

import numpy as np

from ..base.devices import cuda_device, cuda_module, device_of
from ..base.text import short
from ..errors import DeviceError

WAY = 'pass a list such as ["cuda:0", "cuda:1"], [0, 1] or ["cpu", "cpu"]'


def canonical(request: str, devices: Any) -> tuple[str, ...]:
    """The names of devices, each checked to be there; one device may stand alone or be named twice."""
    alone = isinstance(devices, str | int | np.integer) or hasattr(devices, "id")
    several = isinstance(devices, Iterable) and getattr(devices, "ndim", True)  # an array of no axis is none
    listed = [devices] if alone else list(devices) if several else None
    if not listed:
        raise DeviceError(
            f"{request}: devices={short(devices)} names no device; an array lies on one at least; {WAY}"
        )
    names = tuple(_name(request, device) for device in listed)
    if len({name == "cpu" for name in names}) > 1:
        raise DeviceError(
            f"{request}: devices={short(devices)} mixes the host with GPUs; parts of one array lie on "
            f"devices of one kind, which can add their results; {WAY}"
        )
    return names


def _name(request: str, device: Any) -> str:
    if isinstance(device, str):
        name = device
    elif isinstance(device, int | np.integer) and not isinstance(device, bool) and device >= 0:
        name = f"cuda:{int(device)}"
    elif type(device).__module__.partition(".")[0] == "cupy" and hasattr(device, "id"):
        name = f"cuda:{device.id}"
    else:
        raise DeviceError(
            f"{request}: {short(device)} is no device; devices are names, numbers of GPUs and "
            f"cupy.cuda.Device; {WAY}"
        )
    if name == "cpu":
        return name
    try:
        return f"cuda:{cuda_device().named(name).id}"
    except DeviceError as error:
        raise type(error)(f"{request}: {error}") from None


class Run(Protocol):
    """Work of a team on behalf of one device, the caller's; positions number the parts."""

    home: str

    def fork(self) -> None:
        """Let the other devices begin: from here on they may write to the memory that ``room`` made."""

    def on(self, position: int) -> AbstractContextManager[Any]:
        """A context in which the device of a part and its stream are current."""

    def at_home(self) -> AbstractContextManager[Any]:
        """A context in which the device of the caller is current."""

    def room(self, position: int, shape: tuple[int, ...], dtype: Any) -> Any:
        """Memory at home for a part that is elsewhere; None where it need not travel. Before ``fork``."""

    def give(self, arrays: Sequence[Any]) -> list[Any]:
        """Copies of arrays at home, one for each part, on the device of that part."""

    def take(self, position: int, part: Any, room: Any) -> Any:
        """A part as an array at home: a copy in ``room``, or the part itself if it is there."""

    def sum(self, parts: Sequence[Any]) -> list[Any]:
        """The sum of arrays of one shape, one copy on the device of each; the arrays may be overwritten."""


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
    """The team of some devices; it is made once, since it keeps its streams and connections."""
    if devices[0] == "cpu":
        return HostTeam(devices)
    team: Team = cuda_module("driver.parallel.team").CudaTeam(devices, sums)
    return team


@contextmanager
def together(*sharded: Any, x: Any = None) -> Iterator[None]:
    """One run for several products on the same devices, so that they wait for each other once, at the end.

    Within it, results that stay in parts are ready on their devices' streams; the caller's stream is that
    of x, or of the first device. It sees results of other devices only through ``gather``.

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
    """A run on the host, where all parts lie in one memory and nothing is copied."""

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
    """A team whose parts all lie on the host, so that a program for several GPUs runs without one."""

    sums = "NumPy, in the order of the devices"

    def __init__(self, devices: tuple[str, ...]) -> None:
        self.devices = devices
        self._run = HostRun()

    @contextmanager
    def run(self, home: str, keep: list[Any]) -> Iterator[HostRun]:
        yield self._run
