"""``gq.report.examine``: examines every tensor of a GGUF model, and collects the facts of `ggmlq report`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from .. import gguf
from ..arrays.array import QuantArray
from ..base.progress import Progress
from ..diff import TensorDifference, compare
from ..errors import GGUFError
from ..gguf import GGUFFile
from ..gguf.check import structure
from ..pages import write
from ..pages.blocks import place_of
from . import blocks, facts, values
from .facts import Model, Tensor
from .page import page
from .values import Spread


class Report(Model):
    """The facts about an examined model: ``write`` makes a page of them, ``facts`` plain data."""

    def write(self, path: str | os.PathLike[str]) -> str:
        """Write the report as one HTML file, which loads nothing; needs the extra ``report``."""
        return write(page(self), path)


def examine(
    model: str | os.PathLike[str] | GGUFFile, against: str | os.PathLike[str] | GGUFFile | None = None
) -> Report:
    """Examine every tensor of a model and return the facts.

    Parameters
    ----------
    model : str, os.PathLike or GGUFFile
        A path, or an open file.
    against : the same, optional
        The original, usually the same model in f16: errors are then measured. Without it they are
        estimated from the scales in the file.

    >>> import os, tempfile, numpy as np, ggmlq as gq
    >>> path = os.path.join(tempfile.mkdtemp(), "tiny.gguf")
    >>> w = np.random.default_rng(0).standard_normal((64, 256), np.float32)
    >>> w[3] = 0
    >>> _ = gq.save(path, {"blk.0.ffn_up.weight": gq.quantize(w, "q4_0")})
    >>> found = gq.report.examine(path)
    >>> found.tensors[0].values.dead_rows, found.ok
    (1, True)
    """
    with contextlib.ExitStack() as stack:
        file = _opened(stack, model)
        original = None if against is None else _opened(stack, against)
        differences = {}
        if original is not None:
            compared = compare(original, file, ignore_metadata=True)
            differences = {tensor.name: tensor for tensor in compared.tensors}
        tensors = list(_tensors(file, original, differences))
        findings_of_file = structure(file) + facts.of(tensors, list(differences.values()))
        return Report(
            file.paths,
            sum(part.source.size for part in file.parts),
            file.version,
            file.byteorder,
            {key: _value(file, key) for key in file.metadata},
            tensors,
            findings_of_file,
            None if original is None else original.path,
        )


def _opened(stack: contextlib.ExitStack, file: str | os.PathLike[str] | GGUFFile) -> GGUFFile:
    return file if isinstance(file, GGUFFile) else stack.enter_context(gguf.open(file))


def _value(file: GGUFFile, key: str) -> Any:
    try:
        return file.metadata[key]
    except GGUFError:
        return file.metadata.raw(key)


def _tensors(
    file: GGUFFile, original: GGUFFile | None, differences: dict[str, TensorDifference]
) -> Iterator[Tensor]:
    with Progress(2 * sum(file.info(name).nbytes for name in file), "looking at tensors") as progress:
        for name in file:
            q = file[name]
            tensor_values = values.examine(q, progress.advance)
            source = original.get(name) if original is not None else q
            yield _tensor(name, q, tensor_values, source, differences.get(name))
            progress.advance(q.nbytes)


def _tensor(
    name: str,
    q: QuantArray,
    tensor_values: Spread,
    source: QuantArray | None,
    difference: TensorDifference | None,
) -> Tensor:
    parts = blocks.examine(q)
    estimate = None if difference is not None else values.estimated(q.format, tensor_values, parts)
    others = {} if source is None else values.measured(source)
    return Tensor(
        name, q.format, q.shape, q.nbytes, place_of(name), tensor_values, parts, difference, estimate, others
    )
