"""A user's libggml from Python, safely: it runs in a process of its own.

>>> from ggmlq.llama import Bridge
>>> bridge = Bridge("/no/such/build")
Traceback (most recent call last):
    ...
ggmlq.errors.MissingDependencyError: libggml: /no/such/build is neither a file nor a folder; ...
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..base.devices import to_host
from ..base.forks import in_child
from ..dispatch.checks import as_floats
from ..errors import DeviceError, LibraryFailedError, ShapeError, UnsupportedError
from ..formats import FORMATS, Format
from ..formats.format import Floats
from ..ops.operands import check_linear, experts
from .devices import Device
from .files import locate, named_for_child
from .graph import Recorded
from .guards import GUARD, UNWRITTEN, Stray
from .library import is_weight_type
from .process import Child, reports_of
from .program import Program, Ran
from .protocol import Arrays


@dataclass(frozen=True)
class Measurement:
    """The result of a product, and observations about its runs."""

    y: Floats  # [..., N]
    repeats: tuple[Floats, ...]  # the same product again, from fresh buffers of NaN
    seconds: tuple[float, ...]  # of each timed run
    buffer: str  # ggml's name of the memory that held the weights
    strays: tuple[Stray, ...] = ()  # memory beside the result that was overwritten
    forced: bool = False  # supports_op refuses such activations; llama.cpp multiplies them all the same

    @property
    def fastest(self) -> float:
        """Seconds of the fastest timed run, NaN without one."""
        return min(self.seconds, default=math.nan)

    @property
    def median(self) -> float:
        """Median seconds of the timed runs, NaN without one."""
        return float(np.median(self.seconds)) if self.seconds else math.nan

    @property
    def unwritten(self) -> NDArray[np.bool_]:
        """Elements of y that the kernel never wrote."""
        mask: NDArray[np.bool_] = self.y.view(np.uint32) == UNWRITTEN
        return mask

    @property
    def leaked(self) -> NDArray[np.bool_]:
        """A mask of the elements of y that hold the guards' NaN: the kernel read outside of its operands."""
        mask: NDArray[np.bool_] = self.y.view(np.uint32) & np.uint32(0x7FFFFFFF) == GUARD
        return mask

    @property
    def same(self) -> bool:
        """True where all repeats have the bits of the first."""
        return all(np.array_equal(self.y.view(np.uint32), r.view(np.uint32)) for r in self.repeats)


TIMEOUT = 120.0
PATIENCE = 10.0  # seconds until a server of RPC that a case has ended is back


class Bridge:
    """The functions of one ggml build. A context manager; without ``with``, call :meth:`close`.

    Any thread may call it: calls wait for each other, since the library gets one at a time. A call
    that is interrupted ends the library's process, and the next one starts another, as after a
    crash or a fork. All that the library started ends with the process, and the process with this one.

    Parameters
    ----------
    lib : str or Path, optional
        A library, or a build folder. Without it ``GGMLQ_LIBGGML`` is followed, then an installed
        llama-cpp-python.
    timeout : float
        Seconds that one call may take before the library counts as hung; waiting for other
        threads' calls is not counted.
    sleeps : bool
        Threads of the library sleep where they wait for each other: good for many small graphs, slow for one.
    server : str
        ``HOST:PORT`` of a server of ggml's RPC, whose devices come first. If a call ends it, the next one
        waits until somebody has started it again.
    emulator : str
        ``EMULATOR:FOLDER``, for a build of another machine: ``qemu-aarch64-static:root``, a folder with a
        Python of that machine.
    """

    def __init__(
        self, lib: str | Path | None = None, *, timeout: float = TIMEOUT, sleeps: bool = False,
        server: str = "", emulator: str = "",
    ) -> None:  # fmt: skip
        self.build = locate(lib)
        self.server, self.emulator = server, emulator
        self._patience = PATIENCE  # seconds to wait for a server
        self.timeout = timeout
        self._lib = named_for_child(lib)
        self._environment = {"OMP_WAIT_POLICY": "passive"} if sleeps else {}
        self._lock = threading.RLock()
        self._busy = False  # a call is under way, in the thread that holds the lock
        self._child: Child | None = None
        _OPEN.add(self)
        facts = self._start()
        self.path = Path(facts["path"])
        self.version: str = facts["version"]
        self.types = frozenset(facts["types"])
        self.libraries = [Path(path) for path in facts["libraries"]]  # those really loaded; known on Linux

    # --- what it offers -------------------------------------------------------------------

    def devices(self) -> list[Device]:
        """Every device of every backend of the build."""
        answer, _ = self._call("devices()", {"do": "devices"})
        self.libraries = [Path(path) for path in answer["libraries"]]
        return [Device(**{**facts, "layouts": tuple(facts["layouts"])}) for facts in answer["devices"]]

    def quantize(self, x: Any, format: str | int | Format, *, imatrix: Any = None) -> QuantArray:
        """Rows of floats as the library's own encoder writes them.

        Parameters
        ----------
        x : array of floats
            The last axis is cut into blocks.
        format : str, int or Format
            Name in any case, ggml id, or Format.
        imatrix : array, optional
            Importance of each column, 1-D of length K.
        """
        fmt = FORMATS[format]
        request = f"quantize(x, {fmt.name!r})"
        x = np.asarray(as_floats(request, to_host(x)), np.float32)
        if x.ndim == 0 or x.shape[-1] % fmt.block_size or not x.size:
            raise ShapeError(
                f"{request}: x has shape {x.shape}, {fmt.name} blocks hold {fmt.block_size}; "
                "pad the last axis to whole blocks"
            )
        arrays = [x.reshape(-1, x.shape[-1])]
        if imatrix is not None:
            arrays.append(self._imatrix(request, imatrix, x.shape[-1]))
        elif fmt.needs_imatrix:
            raise UnsupportedError(f"{request}: ggml encodes {fmt.name} with an imatrix only; pass one")
        _, (raw,) = self._call(request, {"do": "quantize", "format": fmt.name}, arrays)
        return QuantArray.from_bytes(raw, fmt, x.shape)

    def dequantize(self, q: QuantArray) -> Floats:
        """The values of blocks as the library's own decoder reads them."""
        q = q.to("cpu")
        rows = q.raw.reshape(-1, q.raw.shape[-1])
        _, (values,) = self._call(f"dequantize({q!r})", {"do": "dequantize", "format": q.format.name}, [rows])
        return np.asarray(values.reshape(q.shape))

    def mul_mat(
        self, x: Any, q: QuantArray, device: str = "CPU", *, threads: int = 1, repack: bool | str = False
    ) -> Floats:
        """``x [..., K] @ q [N, K].T`` by the library's kernels on one of its devices.

        Parameters
        ----------
        x : array of floats
            Activations; ggml takes them as float32.
        q : QuantArray
            Weights; F32, F16 and BF16 too.
        device : str
            A name of :meth:`devices`.
        threads : int
            For devices that have threads.
        repack : bool or str
            Lay the weights out in the device's extra buffers, as llama.cpp does on CPUs: in the first
            that takes them, or in the one of that name (``"AMX"``, ``"CPU_REPACK"``).
        """
        return self.measure(x, q, device, threads=threads, repack=repack).y

    def measure(
        self, x: Any, q: QuantArray, device: str = "CPU", *, threads: int = 1, repack: bool | str = False,
        repeats: int = 1, time_runs: int = 0, ids: Any = None, batched: bool = False,
    ) -> Measurement:  # fmt: skip
        """:meth:`mul_mat` run ``repeats`` times for its bits, then ``time_runs`` times for its speed.

        With ids [T, U] of experts it is ``mul_mat_id``, as :func:`ggmlq.expert_linear` has it: x [T, K] or
        [T, U, K], q [E, N, K]. With ``batched`` the library gets x [.., M, K] as a tensor of so many axes, up
        to four, not as rows of one matrix; q is [.., N, K] then, each of its matrices for as many of x's.
        """
        request = f"mul_mat{'' if ids is None else '_id'}(x, {q!r}, {device!r})"
        arrays, shape = batches(request, x, q) if batched else operands(request, x, q, ids)
        if not arrays[0].size or not math.prod(shape):
            raise ShapeError(
                f"{request}: x has shape {arrays[0].shape}; a product needs at least one row of each"
            )
        if not is_weight_type(q.format):
            raise UnsupportedError(
                f"{request}: ggml has no weights of type {q.format.name}; it multiplies blocks and "
                "F32, F16, BF16 with float activations"
            )
        if threads < 1 or repeats < 1 or time_runs < 0:
            raise ShapeError(
                f"{request}: threads={threads}, repeats={repeats}, time_runs={time_runs}; "
                "threads and repeats are at least 1, time_runs at least 0"
            )
        message = {
            "do": "mul_mat", "device": device, "format": q.format.name, "rows": q.shape[-2],
            "columns": q.shape[-1], "lead": q.shape[:-2], "threads": threads, "repack": repack,
            "repeats": repeats, "time_runs": time_runs,
        }  # fmt: skip
        answer, (y,) = self._call(request, message, arrays)
        results = [one.reshape(shape) for one in y]
        strays = tuple(Stray(**stray) for stray in answer["strays"])
        return Measurement(results[0], tuple(results[1:]), tuple(answer["seconds"]), answer["buffer"],
                           strays, answer["forced"])  # fmt: skip

    def takes(
        self,
        format: str | int | Format,
        shapes: Sequence[tuple[Sequence[int], Sequence[int], Sequence[int] | None]],
        device: str = "CPU",
        *,
        repack: bool | str = False,
    ) -> list[bool]:
        """One bool for each shape: True where the device multiplies it in that layout. Nothing is multiplied.

        ``shapes`` are those of x, weights and ids (or None), as :meth:`measure` takes them.
        """
        fmt = FORMATS[format]
        message = {"do": "takes", "device": device, "format": fmt.name, "repack": repack,
                   "shapes": [[list(x), list(q), ids and list(ids)] for x, q, ids in shapes]}  # fmt: skip
        answer, _ = self._call(f"takes({fmt.name!r}, shapes, {device!r})", message)
        return [bool(one) for one in answer["takes"]]

    def mul_mat_id(
        self, x: Any, q: QuantArray, ids: Any, device: str = "CPU", *, threads: int = 1, repack: bool = False
    ) -> Floats:
        """``y[t, u] = x[t] @ q[ids[t, u]].T``, as :func:`ggmlq.expert_linear`, by the library's kernels."""
        return self.measure(x, q, device, threads=threads, repack=repack, ids=ids).y

    # --- the process ----------------------------------------------------------------------

    def close(self) -> None:
        """End the library's process; a call that waits for it in another thread is an error there.

        Closing again does nothing. A later call starts a process again.
        """
        child = self._child
        if child is None:
            return
        child.kill()  # without waiting for whoever waits for its answer
        with self._lock:
            child.close()
            if self._child is child:
                self._child = None

    def node(
        self, program: Program | Recorded, arrays: Sequence[NDArray[Any]], device: str = "CPU", *,
        threads: int = 1, repeats: int = 1, pool: Sequence[int] = (),
    ) -> Ran:  # fmt: skip
        """Compute the last node of a small graph, or of recorded nodes, whose leaves hold these arrays.

        ``pool``: numbers of threads that run after run takes of one pool, where the device is a CPU.
        """
        leaves = [np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in arrays]
        how = {"device": device, "threads": threads, "repeats": repeats, "pool": list(pool)}
        return Ran.of(*self._node(program, leaves, **how))

    def takes_node(self, program: Program | Recorded, device: str = "CPU") -> bool:
        """True where the device says that it computes all nodes of a graph. Nothing is computed."""
        return bool(self._node(program, [], device=device, threads=1, repeats=0, pool=[])[0]["taken"])

    def op_of(self, program: Program | Recorded, device: str = "CPU") -> str:
        """The library's name of the last node's operation."""
        return str(self._node(program, [], device=device, threads=1, repeats=0, pool=[])[0]["op"])

    def _node(self, program: Program | Recorded, leaves: Arrays, **how: Any) -> Any:
        last = program.nodes[-1]["op"] if isinstance(program, Recorded) else program.steps[-1].function
        return self._call(f"node {last}", {"do": "node", **program.message(), **how}, leaves)

    @property
    def reports(self) -> str:
        """What a sanitizer of the build reported during the last call; empty where it reported nothing."""
        return reports_of(self._child.tail()) if self._child is not None else ""

    def __enter__(self) -> Bridge:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Bridge to ggml {self.version}, {self.path}>"

    def _start(self) -> dict[str, Any]:
        """Start a fresh process that loads the build; the facts that it reports."""
        child = self._child = Child.started(more=self._environment, emulator=self.emulator)
        try:
            message = {"do": "load", "lib": self._lib, "server": self.server, "patience": self._patience}
            what = f"loading {self.build.folder}"
            facts, _ = child.call(what, message, [], self.timeout + self._patience)
        except BaseException as error:
            self._child = None
            self._patience = 0.0  # who did not come back once is not waited for again
            child.close()
            if self.server and isinstance(error, LibraryFailedError):
                raise DeviceError(f"--rpc {self.server}: the server does not serve: {error}") from error
            raise
        return dict(facts)

    def _call(self, request: str, message: dict[str, Any], arrays: Arrays | None = None) -> Any:
        with self._lock:
            if self._busy:
                raise UnsupportedError(
                    f"{request}: called while the same thread waits for another answer of {self!r}; the "
                    "library gets one call at a time; give handlers of signals a Bridge of their own"
                )
            self._busy = True
            try:
                if self._child is None or not self._child.usable:
                    self.close()
                    self._start()
                assert self._child is not None
                return self._child.call(request, message, arrays or [], self.timeout)
            finally:
                self._busy = False

    def _forked(self) -> None:
        """Let go of all in a forked child: the parent owns the process, and may hold the lock."""
        self._lock = threading.RLock()
        self._busy = False
        self.close()

    @staticmethod
    def _imatrix(request: str, imatrix: Any, columns: int) -> NDArray[np.float32]:
        weights = np.asarray(as_floats(request, to_host(imatrix)), np.float32)
        if weights.shape != (columns,):
            raise ShapeError(
                f"{request}: imatrix has shape {weights.shape}, rows have {columns} elements; "
                "an imatrix is 1-D with one weight a column"
            )
        return weights


_OPEN: weakref.WeakSet[Bridge] = weakref.WeakSet()


def _forked() -> None:
    for bridge in list(_OPEN):
        bridge._forked()


in_child(_forked)


# --- operands of a product, checked before they are sent ------------------------------------------


def operands(request: str, x: Any, q: QuantArray, ids: Any) -> tuple[Arrays, tuple[int, ...]]:
    """The arrays to send for a plain product, or with ids one of experts, and the shape of the result."""
    if ids is None:
        x = np.asarray(check_linear(request, x, q), np.float32)
        return [x.reshape(-1, x.shape[-1]), q.raw], (*x.shape[:-1], q.shape[0])
    call = experts(request, x, q, ids, look=True)
    if not isinstance(q, QuantArray):
        raise UnsupportedError(f"{request}: ggml has no weights with scales beside them; pass a QuantArray")
    t = call.ids.shape[0]
    rows = np.asarray(call.x, np.float32).reshape(t, len(call.x) // max(t, 1), q.shape[2])
    return [rows, q.raw, call.ids.astype(np.int32)], call.shape


def batches(request: str, x: Any, q: QuantArray) -> tuple[Arrays, tuple[int, ...]]:
    """The arrays to send for x [.., M, K] and weights [.., N, K], and the shape of the result [.., M, N]."""
    x = np.asarray(as_floats(request, to_host(x)), np.float32)
    x_lead, q_lead = x.shape[:-2], q.shape[:-2]
    fits = len(q_lead) <= len(x_lead) <= 2 <= q.ndim and x.shape[-1] == q.shape[-1]
    if not fits or any(length % times for length, times in zip(x_lead[::-1], q_lead[::-1], strict=False)):
        raise ShapeError(
            f"{request}: x has shape {x.shape}, q {q.shape}; in batches they are [.., M, K] and [.., N, K] "
            "of up to 4 axes, and each axis of x is a multiple of that of q; pass x of such a shape"
        )
    return [x, q.raw], (*x.shape[:-1], q.shape[-2])
