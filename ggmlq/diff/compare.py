"""``gq.diff.compare``: compares two GGUF models, tensor by tensor and key by key, for `ggmlq diff`."""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import Executor
from dataclasses import dataclass

from .. import gguf
from ..base.progress import Progress
from ..errors import ConvertError
from ..gguf import GGUFFile
from . import metadata, tasks, tensors
from .metadata import KeyDifference
from .tensors import ONLY_A, ONLY_B, SAME, TensorDifference


@dataclass(frozen=True)
class Difference:
    """The differences between two models."""

    tensors: list[TensorDifference]  # all of them, in the order of A and then of B
    metadata: list[KeyDifference]  # those that differ
    tolerance: float

    @property
    def differing(self) -> list[TensorDifference]:
        """Tensors that count as different."""
        return [tensor for tensor in self.tensors if not tensor.within(self.tolerance)]

    @property
    def identical(self) -> int:
        """The number of tensors with the same blocks, in either byte order."""
        return sum(tensor.status in SAME for tensor in self.tensors)

    @property
    def equal(self) -> bool:
        """True where nothing counts as different."""
        return not self.differing and not self.metadata


def compare(
    a: str | os.PathLike[str] | GGUFFile,
    b: str | os.PathLike[str] | GGUFFile,
    *,
    tolerance: float = 0.0,
    ignore_metadata: bool = False,
    executor: Executor | None = None,
) -> Difference:
    """Compare two GGUF models, of whatever types.

    Parameters
    ----------
    a, b : str, os.PathLike or GGUFFile
        Paths, or open files. NMSE is relative to the values of ``a``.
    tolerance : float
        Tensors with at most this NMSE count as equal, also of different types. With 0 only tensors
        of one type with the same bytes do.
    ignore_metadata : bool
        Look at tensors alone.
    executor : concurrent.futures.Executor, optional
        Who compares, with the same result: a pool of processes, dask's, mpi4py's. Its workers must see both
        files under the same paths.

    >>> import os, tempfile, numpy as np, ggmlq as gq
    >>> folder = tempfile.mkdtemp()
    >>> one, two = os.path.join(folder, "one.gguf"), os.path.join(folder, "two.gguf")
    >>> w = np.random.default_rng(0).standard_normal((8, 64), np.float32)
    >>> _ = gq.save(one, {"w": w, "v": w}), gq.save(two, {"w": gq.quantize(w, "q8_0"), "v": w})
    >>> difference = gq.diff.compare(one, two, tolerance=1e-4)
    >>> difference.equal, [(t.name, t.status) for t in difference.tensors]
    (True, [('w', 'other values'), ('v', 'same bytes')])
    """
    if not tolerance >= 0:
        raise ConvertError(
            f"compare(a, b, tolerance={tolerance!r}): an NMSE is 0 or more; 0 asks for equal bytes"
        )
    with contextlib.ExitStack() as stack:
        first, second = (
            file if isinstance(file, GGUFFile) else stack.enter_context(gguf.open(file)) for file in (a, b)
        )
        differences = [] if ignore_metadata else metadata.compare(first.metadata, second.metadata)
        return Difference(_tensors(first, second, executor), differences, tolerance)


def _tensors(a: GGUFFile, b: GGUFFile, executor: Executor | None) -> list[TensorDifference]:
    shared = [name for name in a if name in b]
    progress = Progress(sum(file.info(name).nbytes for name in shared for file in (a, b)), "comparing")
    try:
        if executor is None:
            differences = {name: tensors.compare(name, a[name], b[name], progress.advance) for name in shared}
        else:
            differences = tasks.compare(executor, a, b, shared, progress.advance)
    finally:
        progress.close()
    entries = [differences[name] if name in differences else _alone(a, name, ONLY_A) for name in a]
    return entries + [_alone(b, name, ONLY_B) for name in b if name not in a]


def _alone(file: GGUFFile, name: str, status: str) -> TensorDifference:
    kind, shape = file.info(name).format.name, file.info(name).shape
    if status == ONLY_A:
        return TensorDifference(name, status, (kind, None), (shape, None))
    return TensorDifference(name, status, (None, kind), (None, shape))
