"""Runs a conversion by its plan: streams the new file, whole or not at all, and reports all errors."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from math import prod
from typing import Any

from .. import gguf
from ..arrays.array import QuantArray
from ..errors import ConvertError
from ..formats import Format
from ..gguf import Streamed
from ..gguf.prepared import prepared
from ..gguf.source import checked_path
from ..ops.quantize import prepare
from . import mixing, rules, tasks
from .keep import Keep
from .model import parts_of
from .plan import plan_dequantize, plan_quantize
from .report import Done, Report
from .step import Plan
from .stream import Tally, converted


def quantize(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    type: str | int | Format,
    *,
    imatrix: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    keep: Keep = (),
    mixed: bool = False,
    any_name: bool = False,
    allow_requantize: bool = False,
    allow_fallback: bool = True,
    executor: Executor | None = None,
) -> Report:
    """Quantize a GGUF model, with the bytes that llama.cpp's quantizer writes.

    Parameters
    ----------
    source, target : str or os.PathLike
        The model, any part of a split one; and the new file, which may not be the model itself.
    type : str, int or Format
        Of every tensor that llama.cpp would quantize, as with ``--pure``; or the name of one of its
        mixes, such as ``"q4_K_M"``.
    imatrix : path or mapping, optional
        An importance matrix, or names of tensors and values, one a column for each expert.
    keep : mapping or pairs of pattern and type
        Tensors in whose name the regular expression is found get that type, or stay as they are
        for ``"same"``. The first pattern that is found counts.
    mixed : bool
        ``type`` means the mix of that name, also where a type has it: ``"q4_0"``.
    any_name : bool
        Take every tensor of two axes or more, whatever llama.cpp makes of its name.
    allow_requantize : bool
        Tensors of blocks may be decoded and quantized again.
    allow_fallback : bool
        Rows that are not whole blocks may get another type, as in llama.cpp.
    executor : concurrent.futures.Executor, optional
        Who does the work, with the same bytes: a pool of processes, dask's, mpi4py's. Its workers must see
        both files under the same paths.

    >>> import os, tempfile, numpy as np, ggmlq as gq
    >>> folder = tempfile.mkdtemp()
    >>> big, small = os.path.join(folder, "big.gguf"), os.path.join(folder, "small.gguf")
    >>> w = np.random.default_rng(0).standard_normal((8, 64), np.float32)
    >>> _ = gq.save(big, {"ffn_up.weight": w, "ffn_norm.weight": w[0]})
    >>> report = gq.convert.quantize(big, small, "q8_0")
    >>> [(done.step.name, done.step.after.name) for done in report.tensors]
    [('ffn_up.weight', 'q8_0'), ('ffn_norm.weight', 'f32')]
    """
    with gguf.open(source) as file:
        plan = plan_quantize(
            file, type, imatrix=imatrix, keep=keep, mixed=mixed, any_name=any_name,
            allow_requantize=allow_requantize, allow_fallback=allow_fallback,
        )  # fmt: skip
        return run(plan, target, executor=executor)


def dequantize(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    type: str | int | Format = "f32",
    *,
    keep: Keep = (),
    executor: Executor | None = None,
) -> Report:
    """Decode the tensors of a GGUF model to floats: f32, f16 or bf16.

    f32 loses nothing; f16 and bf16 round once more. ``keep`` and ``executor`` as in :func:`quantize`.
    """
    with gguf.open(source) as file:
        return run(plan_dequantize(file, type, keep=keep), target, executor=executor)


def run(
    plan: Plan,
    target: str | os.PathLike[str],
    *,
    keep_split: bool = False,
    executor: Executor | None = None,
) -> Report:
    """Write the file of a plan; it is there in full or not at all.

    ``keep_split``: in the parts that the source has, where it is split. ``executor`` as in :func:`quantize`.
    """
    final = checked_path("run(plan, target)", target, "pass a str or an os.PathLike")
    _check_apart(plan, final)
    sums = _encoded(plan)
    for (fmt, weighted), count in sums.items():  # compiled here, it is in the cache for all workers
        prepare(fmt, count, weighted)
    tensors, settings = _Tensors(plan, keep_split), _settings(plan, keep_split)
    if executor is None:
        paths = gguf.save(final, tensors, plan.new_metadata, **settings)
    else:
        with prepared(final, tensors, plan.new_metadata, **settings) as (paths, places):
            tensors.tally = tasks.carry_out(executor, plan, places, sums)
    done = [Done(step, tensors.tally[step.name].nmse) for step in plan.steps]
    warned = [f"tensor {name!r}: {text}" for name, tally in tensors.tally.items() for text in tally.warnings]
    return Report(paths, done, plan.notes + warned)


def layout(plan: Plan, target: str | os.PathLike[str], *, keep_split: bool = False) -> list[tuple[str, int]]:
    """The files that :func:`run` would write, with their sizes."""
    final = checked_path("layout(plan, target)", target, "pass a str or an os.PathLike")
    _check_apart(plan, final)
    return gguf.layout(final, _Tensors(plan, keep_split), plan.new_metadata, **_settings(plan, keep_split))


def _settings(plan: Plan, keep_split: bool) -> dict[str, Any]:
    parts = parts_of(plan.file) if keep_split else []
    return {"byteorder": plan.file.byteorder, "split_max_tensors": parts if len(parts) > 1 else None}


def _check_apart(plan: Plan, final: str) -> None:
    for path in plan.file.paths:
        if os.path.exists(final) and os.path.exists(path) and os.path.samefile(final, path):
            raise ConvertError(
                f"convert {path!r} to {final!r}: they are one file, and the values that it has now would be "
                "lost; name another"
            )


def _encoded(plan: Plan) -> dict[tuple[Format, bool], int]:
    """The number of elements that become each type, which decides whether its encoder is worth loading."""
    elements: Counter[tuple[Format, bool]] = Counter()
    for step in plan.steps:
        if step.changes:
            elements[step.after, step.weights is not None] += prod(step.shape)
    return elements


class _Tensors(Mapping[str, Any]):
    """A mapping of tensors for ``save``: each as it is, or converted while it is written.

    In llama.cpp's order, by layer and name; but those that keep their parts in the order that they have.
    """

    def __init__(self, plan: Plan, keep_split: bool) -> None:
        self._file = plan.file
        steps = {step.name: step for step in plan.steps}
        self._steps = steps if keep_split else {name: steps[name] for name in mixing.in_order(steps)}
        self.tally = {step.name: Tally() for step in plan.steps}

    def __getitem__(self, name: str) -> QuantArray | Streamed:
        step = self._steps[name]
        shape = step.shape[-rules.axes(step.shape) :]  # ggml drops outer axes of length 1
        if not step.changes:
            q = self._file[name]
            while q.ndim > len(shape):
                q = q[0]
            return q
        return Streamed(step.after, shape, lambda: converted(self._file[name], step, self.tally[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._steps)
