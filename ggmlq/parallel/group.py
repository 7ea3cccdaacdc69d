"""``Group``: processes with a GPU each, their parts of the weights, and sums over all of them."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import numpy as np

from ..base.devices import cuda_device, cuda_module, device_of, is_host
from ..errors import DeviceError, GGMLQError, ShapeError
from .ranks import Rank, rank_of, shard_of
from .wire import Wire

DEVICES = 'device=None takes the GPU of this process, or the host where there is none; "cpu" the host'


class Group:
    """Processes that were started together, as torchrun and mpirun do.

    Every process calls the same operations in the same order. On GPUs NCCL makes them, on the caller's
    stream and without waiting; on the host sockets do, which is meant for tests and for small machines.

    >>> import numpy as np, ggmlq as gq
    >>> one = gq.parallel.Rank(rank=0, world=1, local=0)      # alone; Group.from_environment() finds out
    >>> with gq.parallel.Group(one, "cpu") as group:
    ...     group, group.all_reduce(np.ones(2))
    (<Group rank 0 of 1, cpu, sums over sockets>, array([1., 1.]))
    """

    def __init__(self, me: Rank, device: str | None = None, timeout: float = 60.0) -> None:
        self.me = me
        self.device = _device(me, device)
        self._wire = Wire(me, timeout)
        self._nccl: Any = None
        try:
            if self.device != "cpu":
                self._nccl = cuda_module("machine.parallel.nccl").Ranked(
                    me.rank, me.world, self.device, self._wire
                )
        except BaseException:
            self._wire.close()
            raise

    @classmethod
    def from_environment(cls, device: str | None = None, timeout: float = 60.0) -> Self:
        """The group of the processes that torchrun, mpirun or srun started with this one.

        Parameters
        ----------
        device : str, optional
            Where arrays of this process lie: by default the GPU of its number on this machine, or the host
            where there is no GPU.
        timeout : float
            Seconds that the others have to arrive, and for each operation to be over. Where arrays go over
            sockets, a second more for each MiB that rank 0 receives or sends.
        """
        return cls(rank_of(), device, timeout)

    @property
    def rank(self) -> int:
        """The number of this process."""
        return self.me.rank

    @property
    def world(self) -> int:
        """The number of processes."""
        return self.me.world

    @property
    def sums(self) -> str:
        """The way in which sums are made, in words."""
        return "sums over sockets" if self._nccl is None else f"sums by NCCL {self._nccl.version}"

    # --- what they do together ------------------------------------------------------------

    def shard_of(self, q: Any, axis: Any = 0, *, cuts: Any = None) -> Any:
        """The part of weights of this process, on its device; see :func:`ggmlq.parallel.shard_of`."""
        return shard_of(q, self.rank, self.world, axis, cuts=cuts).to(self.device)

    def all_reduce(self, x: Any, out: Any = None) -> Any:
        """The sum of the arrays of all processes; ``out=x`` adds in place."""
        x = self._here("all_reduce", x)
        if out is not None and (out.shape != x.shape or out.dtype != x.dtype):
            raise ShapeError(
                f"all_reduce(x, out): out is {out.dtype} {out.shape}, x {x.dtype} {x.shape}; both are alike; "
                "pass out=x, or leave it out"
            )
        if self._nccl is not None:
            return self._nccl.sum(x, out)
        total = self._wire.sum(x)
        if out is None:
            return total
        out[...] = total
        return out

    def all_gather(self, x: Any, axis: int = -1, sizes: Any = None) -> Any:
        """The arrays of all processes, joined in the order of the ranks.

        ``sizes``: the lengths of the arrays along the axis; without it they are sent over sockets, so pass it
        while a CUDA graph is recorded.
        """
        x = self._here("all_gather", x)
        if not x.ndim or not -x.ndim <= axis < x.ndim:
            raise ShapeError(f"all_gather(x, axis={axis}): x has shape {x.shape}; name one of its axes")
        xp = np if is_host(x) else cuda_device().cupy()
        first = xp.ascontiguousarray(xp.moveaxis(x, axis, 0))
        lengths = [int(n) for n in sizes] if sizes is not None else self._wire.sizes(len(first))
        if len(lengths) != self.world or lengths[self.rank] != len(first) or min(lengths) < 0:
            raise ShapeError(
                f"all_gather(x, sizes={lengths}): {self.world} processes have one length each, this one's is "
                f"{len(first)}; leave sizes out to have it found"
            )
        if self._nccl is not None:
            return xp.moveaxis(self._nccl.join(first, lengths), 0, axis)
        return np.moveaxis(np.concatenate(self._wire.join(first, lengths)), 0, axis)

    def broadcast(self, x: Any, root: int = 0) -> Any:
        """The array of one process, written into that of every other, and given back."""
        x = self._here("broadcast", x)
        if not 0 <= root < self.world:
            raise ShapeError(f"broadcast(x, root={root}): ranks are 0 to {self.world - 1}; name one")
        if is_host(x) and not x.flags.writeable:
            raise ShapeError(
                f"broadcast(x) of {self!r}: x is read-only; others' values go into it; pass x.copy()"
            )
        return self._nccl.hand(x, root) if self._nccl is not None else self._wire.hand(x, root)

    def barrier(self) -> None:
        """Wait until all processes have come here; the host waits, work on GPUs may go on."""
        self._wire.sizes(0)

    def _here(self, what: str, x: Any) -> Any:
        if is_host(x):
            x = np.asarray(x)
        if device_of(x) != self.device:
            raise DeviceError(
                f"{what}(x) of {self!r}: x is on {device_of(x)}; arrays of this process are on "
                f"{self.device}; move it with cupy.asarray(x) or x.get()"
            )
        if x.dtype.kind not in "fiu":
            raise ShapeError(
                f"{what}(x) of {self!r}: x is {x.dtype}; it holds floats or integers; convert it"
            )
        return x

    # --- its end --------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the group of processes."""
        if self._nccl is not None:
            self._nccl.close()
        self._wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Group rank {self.rank} of {self.world}, {self.device}, {self.sums}>"


def _device(me: Rank, device: str | None) -> str:
    if device == "cpu":
        return "cpu"
    if device is None:
        try:
            cuda_device().cupy()
        except GGMLQError:
            return "cpu"
        device = f"cuda:{me.local}"
    try:
        return f"cuda:{cuda_device().named(device).id}"
    except DeviceError as error:
        raise DeviceError(f"Group of {me.world} processes, rank {me.rank}: {error}; {DEVICES}") from None
