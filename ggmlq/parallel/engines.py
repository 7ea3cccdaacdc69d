"""Engines that connect processes, as a ``Group`` asks them: torch.distributed, cupyx.distributed or MPI.

Each brings its own rendezvous and sends in its own way. The caller has begun it and ends it; none is imported
here, for whoever passes one has it.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np

from ..base.devices import cuda_device, namespace
from ..base.text import printable, short
from ..errors import GroupError

FAILURES = (RuntimeError, TypeError, ValueError, LookupError, OSError)  # what engines raise


class Engine(Protocol):
    """Several processes of which this is one."""

    rank: int
    size: int
    device: str  # where arrays of this process lie
    words: str  # what the engine is called

    def sum(self, x: Any) -> Any:
        """The sum of the contiguous arrays of all processes, in a new array."""

    def gather(self, x: Any) -> Any:
        """The bytes of all processes, equally many, in one row for each."""


class Torch:
    """A process group of torch.distributed: gloo or MPI on the host, NCCL on GPUs."""

    def __init__(self, group: Any) -> None:
        self._torch, self._group = sys.modules["torch"], group
        self._calls = self._torch.distributed
        self.rank, self.size = group.rank(), group.size()
        on_gpus = "nccl" in str(self._calls.get_backend_config(group)) and self._torch.cuda.is_available()
        self.device = f"cuda:{self._torch.cuda.current_device()}" if on_gpus else "cpu"
        self.words = f"torch.distributed with {'nccl' if on_gpus else self._calls.get_backend(group)}"

    def sum(self, x: Any) -> Any:
        total = x.copy()
        with self._stream():
            self._calls.all_reduce(self._tensor(total), group=self._group)
        return total

    def gather(self, x: Any) -> Any:
        every = namespace(x).empty((self.size, len(x)), np.uint8)
        with self._stream():
            self._calls.all_gather(list(self._tensor(every).unbind()), self._tensor(x), group=self._group)
        return every

    def _tensor(self, x: Any) -> Any:
        """A tensor over the memory of an array."""
        if self.device == "cpu":
            return self._torch.from_numpy(x)
        return self._torch.as_tensor(x, device=self.device)

    def _stream(self) -> AbstractContextManager[Any]:
        """A context in which torch works on CuPy's current stream, that of the arrays."""
        if self.device == "cpu":
            return nullcontext()
        cuda = self._torch.cuda
        address = cuda_device().cupy().cuda.get_current_stream().ptr
        # torch takes the address 0, the default stream's, for none and would make a stream of its own.
        external = cuda.ExternalStream(address, device=self.device) if address else None
        context: AbstractContextManager[Any] = cuda.stream(external or cuda.default_stream(self.device))
        return context


class Cupyx:
    """A backend of cupyx.distributed, which is NCCL, for the GPU that is current."""

    words = "cupyx.distributed"

    def __init__(self, backend: Any) -> None:
        cp = cuda_device().cupy()
        self._backend = backend
        self.device = f"cuda:{cp.cuda.runtime.getDevice()}"
        self.rank = int(backend.rank)
        self.size = int(self.sum(cp.ones(1, np.int32))[0])  # no attribute of its own says it

    def sum(self, x: Any) -> Any:
        total = namespace(x).empty_like(x)
        self._backend.all_reduce(x, total)
        return total

    def gather(self, x: Any) -> Any:
        every = namespace(x).empty((self.size, len(x)), np.uint8)
        self._backend.all_gather(x, every, len(x))
        return every


class MPI:
    """A communicator of mpi4py, for arrays on the host."""

    device, words = "cpu", "MPI"

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator
        self.rank, self.size = int(communicator.Get_rank()), int(communicator.Get_size())

    def sum(self, x: Any) -> Any:
        if x.dtype == np.float16:  # not every MPI has such numbers
            with np.errstate(over="ignore"):
                return self.sum(x.astype(np.float32)).astype(np.float16)
        total = np.empty_like(x)
        self._communicator.Allreduce(x, total)
        return total

    def gather(self, x: Any) -> Any:
        every = np.empty((self.size, len(x)), np.uint8)
        self._communicator.Allgather(x, every)
        return every


ENGINES = (("torch", "allreduce", Torch), ("cupyx", "all_reduce", Cupyx), ("mpi4py", "Allreduce", MPI))


def engine_of(engine: Any) -> Engine:
    """The engine that a caller passed, by its class's package; an error for anything else."""
    packages = {base.__module__.partition(".")[0] for base in type(engine).__mro__}
    for package, method, kind in ENGINES:
        if package in packages and hasattr(engine, method):
            try:
                one: Engine = kind(engine)
            except FAILURES as error:
                raise GroupError(
                    f"group({short(engine)}): {type(error).__name__}, {printable(str(error))}; an engine "
                    "runs when it is passed; begin it, or look at what the others printed"
                ) from error
            return one
    raise GroupError(
        f"group({short(engine)}): a {type(engine).__name__} connects no processes; groups are those of "
        "engines that run: pass torch.distributed.group.WORLD, what cupyx.distributed.init_process_group "
        "returned, or mpi4py.MPI.COMM_WORLD"
    )
