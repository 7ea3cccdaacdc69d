"""``Group``: several processes, their parts of the weights, and sums over all of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import numpy as np

from ..base.devices import cuda_device, device_of, is_host, namespace, on_device_of
from ..base.text import printable, short
from ..errors import DeviceError, GroupError, ShapeError
from . import parts as cutting
from .sharded import checked_axis

# --- engines, as a Group asks them --------------------------------------------------------------
# Each brings its own rendezvous and sends in its own way. The caller has begun it and ends it; none is
# imported here, for whoever passes one has it.

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


# --- the group ----------------------------------------------------------------------------------


def group(engine: Any) -> Group:
    """The group of the processes that an engine connects; every process of it makes this call.

    Parameters
    ----------
    engine : torch.distributed.ProcessGroup, cupyx.distributed.NCCLBackend or mpi4py.MPI.Comm
        It runs already, and stays the caller's to end: ``torch.distributed.group.WORLD`` after
        ``init_process_group``, the result of ``cupyx.distributed.init_process_group``, ``MPI.COMM_WORLD``.
        With NCCL make the GPU of this process current before.
    """
    return Group(engine_of(engine))


class Group:
    """Processes that one engine connects; :func:`group` makes it.

    Every process calls the same operations in the same order, with arrays on ``device``. On GPUs they are on
    the caller's stream, and the host does not wait.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def rank(self) -> int:
        """The number of this process."""
        return self._engine.rank

    @property
    def size(self) -> int:
        """The number of processes."""
        return self._engine.size

    @property
    def device(self) -> str:
        """The device of this process's arrays: ``"cpu"``, or its GPU if the engine is NCCL."""
        return self._engine.device

    def shard_of(self, q: Any, axis: Any = 0, *, cuts: Any = None) -> Any:
        """The part of weights of this process, on its device; see :func:`ggmlq.parallel.shard_of`."""
        return shard_of(q, self.rank, self.size, axis, cuts=cuts).to(self.device)

    def sum(self, x: Any) -> Any:
        """The sum of the arrays of all processes, of one shape and dtype."""
        x = self._here("sum", x)
        if not x.size:
            return x.copy()
        with self._named_errors("sum", x):
            return self._engine.sum(x)

    def gather(self, x: Any, axis: int = -1, sizes: Any = None) -> Any:
        """The arrays of all processes, joined in the order of the ranks.

        ``sizes``: the lengths of the arrays along the axis; without it they are gathered first, so pass it
        while a CUDA graph is recorded.
        """
        x = self._here("gather", x)
        if not x.ndim or not -x.ndim <= axis < x.ndim:
            raise ShapeError(f"gather(x, axis={axis}): x has shape {x.shape}; name one of its axes")
        with self._named_errors("gather", x):
            xp = namespace(x)
            first = xp.ascontiguousarray(xp.moveaxis(x, axis, 0))
            lengths = self._lengths(first, sizes)
            return xp.moveaxis(self._joined(first, lengths), 0, axis)

    def _lengths(self, x: Any, sizes: Any) -> list[int]:
        xp = namespace(x)
        if sizes is None:
            every = self._engine.gather(xp.array([len(x)], np.int64).view(np.uint8))
            return [int(n) for n in every.view(np.int64)[:, 0]]
        lengths = [int(n) for n in sizes]
        if len(lengths) != self.size or lengths[self.rank] != len(x) or min(lengths) < 0:
            raise ShapeError(
                f"gather(x, sizes={lengths}): {self.size} processes have one length each, this one's is "
                f"{len(x)}; leave sizes out to have it found"
            )
        return lengths

    def _joined(self, x: Any, lengths: Sequence[int]) -> Any:
        """Arrays of these lengths one after another; engines take as many bytes of each, the most."""
        xp, row = namespace(x), int(np.prod(x.shape[1:], dtype=np.int64)) * x.dtype.itemsize
        most = max(lengths) * row
        if not most:
            return xp.empty((sum(lengths), *x.shape[1:]), x.dtype)
        room = xp.zeros(most, np.uint8)
        room[: x.nbytes] = x.reshape(-1).view(np.uint8)
        every = self._engine.gather(room)
        flat = xp.concatenate([part[: n * row] for part, n in zip(every, lengths, strict=True)])
        return flat.view(x.dtype).reshape(sum(lengths), *x.shape[1:])

    def _here(self, what: str, x: Any) -> Any:
        """The array, contiguous, if it lies where those of this process do and holds numbers."""
        if is_host(x):
            x = np.asarray(x)
        if device_of(x) != self.device:
            raise DeviceError(
                f"{what}(x) of {self!r}: x is on {device_of(x)}; arrays of this process are on "
                f"{self.device}; move it with cupy.asarray(x) or x.get()"
            )
        if x.dtype.kind not in "fiu" or not x.dtype.isnative:
            raise ShapeError(
                f"{what}(x) of {self!r}: x is {x.dtype}; it holds floats or integers, in this machine's "
                "order of bytes; convert it"
            )
        return x if x.flags.c_contiguous else x.copy(order="C")

    @contextmanager
    def _named_errors(self, what: str, x: Any) -> Iterator[None]:
        try:
            with on_device_of(f"{what}(x) of {self!r}", x):
                yield
        except (DeviceError, ShapeError):
            raise
        except FAILURES as error:
            raise GroupError(
                f"{what}(x) of {self!r}, x {x.dtype} {x.shape}: {type(error).__name__}, "
                f"{printable(str(error))}; all processes call the same operations in the same order, with "
                "arrays of a dtype that the engine knows; look at what the others printed; start all again"
            ) from error

    def __repr__(self) -> str:
        return f"<Group rank {self.rank} of {self.size}, {self.device}, {self._engine.words}>"


def shard_of(q: Any, rank: int, world: int, axis: Any = 0, *, cuts: Any = None) -> Any:
    """The part of weights that one process of several has, cut as :func:`ggmlq.parallel.shard` cuts them.

    A view where slices are views: of an open file only this part is ever read.

    >>> import numpy as np, ggmlq as gq
    >>> q = gq.quantize(np.eye(96, 64, dtype=np.float32), "q8_0")
    >>> gq.parallel.shard_of(q, rank=2, world=3)
    <QuantArray q8_0 (32, 64), ne [64, 32], 2.1 KiB, cpu>
    """
    request = f"shard_of(q, rank={rank}, world={world}, axis={axis!r})"
    way = checked_axis(request, axis, q.ndim)
    if not 0 <= rank < world:
        raise GroupError(f"{request}: ranks are numbered from 0 to one less than world; pass rank < world")
    if way is None:
        return q
    return cutting.piece(q, way, *cutting.spans(request, q, world, way, cuts)[rank])
