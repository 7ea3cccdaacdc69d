"""Runs a conversion by its plan: streams the new file, whole or not at all, and reports all errors."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import gguf, tasks
from ..arrays.array import QuantArray
from ..base.progress import Progress
from ..errors import ConvertError
from ..formats import FORMATS, Format
from ..gguf import Streamed
from ..gguf.companions import NEEDS, SCALE, names_of
from ..gguf.header import piece
from ..gguf.plan import Described, slabs
from ..gguf.source import checked_path
from ..gguf.writer import Place, prepared
from ..ops.quantize import prepare
from ..tasks import rows
from ..tasks.rows import slices
from . import rules
from .model import parts_of
from .plan import plan_dequantize, plan_quantize
from .step import Done, Plan, Report, Step
from .stream import Tally, converted, scales_of
from .typefile import Keep

# --- tasks: a worker encodes some rows of a tensor and writes them into the new file ---------
# If workers did not write themselves, all bytes of a model would pass through the process that distributes
# tasks, and on a cluster twice through its network port. Ranges are disjoint and every worker makes the
# same bytes, so a task may be repeated, even while a worker that was thought dead still writes.


class Fill(NamedTuple):
    """A task: rows of a tensor, and their place in the new file."""

    source: tasks.Rows
    step: Step  # with the weights of these rows
    part: tuple[int, int]  # rows, or elements of a tensor that stays as it is
    number: int  # of the part in its tensor
    origin: int  # the matrix that the weights begin with
    place: Place
    byteorder: str
    encoded: int  # elements of the whole file that become this type: whether compiling is worth it

    @property
    def what(self) -> str:
        kind = "rows" if self.step.changes else "elements"
        return f"tensor {self.step.name!r}, {kind} {self.part[0]} to {self.part[1] - 1}"


class Filled(NamedTuple):
    """The result of a worker: sums of each row, and the encoder's warnings."""

    sums: list[NDArray[np.float64]]
    warnings: list[str]


def fill(task: Fill) -> Filled:
    """Encode the rows of a task and write them into the new file; runs in a worker."""
    q = task.source.array()
    assert isinstance(q, QuantArray)
    tally = Tally(keep=True)
    if task.step.changes:
        prepare_once(task.step.after, task.step.weights is not None, task.encoded)
        at = task.part[0] * task.step.after.row_bytes(q.shape[-1] if q.shape else 1)
        parts: Any = converted(q, task.step, tally, task.part, task.origin)
    else:
        fmt, (first, last) = task.step.after, task.part
        at = first // fmt.block_size * fmt.dtype.itemsize
        parts = [piece(q, first, (last - first,))]
    task.place.write(at, (slab for part in parts for slab in _bytes(part, task.byteorder)))
    return Filled(tally.rows or [], list(tally.warnings))


def _bytes(part: QuantArray, byteorder: str) -> Iterator[Any]:
    return slabs(part, Described("", part.format, part.shape), byteorder)


_prepared: set[tuple[str, bool]] = set()


def prepare_once(fmt: Format, weighted: bool, elements: int) -> None:
    """Load the compiled encoder, once in a worker, if the elements of all tasks repay it."""
    if (fmt.name, weighted) not in _prepared:
        _prepared.add((fmt.name, weighted))
        prepare(fmt, elements, weighted)


def carry_out(
    executor: Executor, plan: Plan, places: dict[str, Place], sums: dict[tuple[Format, bool], int]
) -> dict[str, Tally]:
    """Let the workers write all tensors; gives the tallies that a conversion without workers would give."""
    gathered = _Gathered(plan)
    with gathered.progress:
        tasks.run(executor, _tasks(plan, places, sums), fill, gathered.take)
    return gathered.tallies


def _tasks(plan: Plan, places: dict[str, Place], sums: dict[tuple[Format, bool], int]) -> Iterator[Fill]:
    for step in plan.steps:
        if not prod(step.shape):
            continue
        source = tasks.rows_of(plan.file[step.name])
        encoded = sums.get((step.after, step.weights is not None), 0)
        for number, (part, small, origin) in enumerate(_parts(step)):
            yield Fill(source, small, part, number, origin, places[step.name], plan.file.byteorder, encoded)


def _parts(step: Step) -> Iterator[tuple[tuple[int, int], Step, int]]:
    """The parts of a tensor, each with only the importance that it needs."""
    if not step.changes:
        plain = replace(step, weights=None)
        yield from ((part, plain, 0) for part in slices((prod(step.shape), 1)))
        return
    if step.weights is None or len(step.weights) == 1:
        yield from ((part, step, 0) for part in slices(step.shape))
        return
    count = step.shape[-2]
    if prod(step.shape[-2:]) > rows.ELEMENTS:  # a matrix is a tensor of its own to whoever cuts it
        for matrix in range(prod(step.shape[:-2])):
            matrix_step = replace(step, weights=step.weights[[matrix % len(step.weights)]])
            for first, last in slices(step.shape[-2:]):
                yield (matrix * count + first, matrix * count + last), matrix_step, matrix
        return
    for first, last in slices(step.shape, count):
        matrices = np.arange(first // count, last // count)
        yield (
            (first, last),
            replace(step, weights=step.weights[matrices % len(step.weights)]),
            int(matrices[0]),
        )


class _Gathered:
    """Collects results of workers, and adds them to tallies in the order of the file."""

    def __init__(self, plan: Plan) -> None:
        self.tallies = {step.name: Tally() for step in plan.steps}
        self.progress = Progress(sum(step.bytes_after for step in plan.steps), "writing GGUF")
        self._waiting: dict[tuple[str, int], Filled] = {}
        self._next = dict.fromkeys(self.tallies, 0)

    def take(self, task: Fill, result: Filled) -> None:
        name = task.step.name
        self._waiting[name, task.number] = result
        while (ready := self._waiting.pop((name, self._next[name]), None)) is not None:
            self._next[name] += 1
            for sums in ready.sums:
                self.tallies[name].take(sums)
            self.tallies[name].warnings.update(dict.fromkeys(ready.warnings))
        self.progress.advance(_nbytes(task))


def _nbytes(task: Fill) -> int:
    fmt, count = FORMATS[task.step.after.name], task.part[1] - task.part[0]
    columns = task.step.shape[-1] if task.step.changes and task.step.shape else 1
    return count * columns // fmt.block_size * fmt.dtype.itemsize


# --- the run ---------------------------------------------------------------------------------


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
    plan = _scaled(plan)
    tensors = _Tensors(plan, keep_split)
    settings = _settings(plan, keep_split, len(tensors.scales))
    if executor is not None and plan.moments is not None:
        raise ConvertError(
            "error feedback runs the model here, and workers have no moments; drop the workers"
        )
    if executor is None:
        paths = gguf.save(final, tensors, plan.new_metadata, **settings)
    else:
        with prepared(final, tensors, plan.new_metadata, **settings) as (paths, places):
            tensors.tally = carry_out(executor, plan, places, sums)
            order = "<f4" if plan.file.byteorder == "little" else ">f4"
            for name, scale in tensors.scales.items():
                places[name].write(0, iter([scale.astype(order).tobytes()]))
    done = [Done(step, tensors.tally[step.name].nmse) for step in plan.steps]
    warned = [f"tensor {name!r}: {text}" for name, tally in tensors.tally.items() for text in tally.warnings]
    return Report(paths, done, [*plan.notes, *_fed_back(plan, tensors.tally), *warned])


LARGEST_INPUT = np.float32(6 * 448)  # of activations in nvfp4: the largest code times the largest scale


def _companion(plan: Plan, step: Step) -> str | None:
    """The name of the tensor that holds the scale of an nvfp4 tensor; None for one that has none of ours."""
    names = names_of(step.name)
    fits = (
        step.changes
        and step.after.name == NEEDS
        and rules.axes(step.shape) > 1
        and not {*names} & {*plan.file}
    )
    return names[0] if fits else None


def _scaled(plan: Plan) -> Plan:
    """The plan with the scales of nvfp4 tensors, for which their values are read once more."""

    def scaled(step: Step) -> Step:
        own = _companion(plan, step)
        return replace(step, scale=scales_of(plan.file[step.name], _scales(step))) if own else step

    return replace(plan, steps=[scaled(step) for step in plan.steps])


def _scales(step: Step) -> int:
    """The number of scales of a tensor: llama.cpp reads one for each expert."""
    return step.shape[0] if len(step.shape) == 3 and "_exps." in step.name else 1


def _fed_back(plan: Plan, tallies: Mapping[str, Tally]) -> Iterator[str]:
    """A note of the rows that error feedback served, and of tensors without it."""
    if plan.moments is None or not plan.fed_back:
        return
    served, alone = (sum(getattr(one, key) for one in tallies.values()) for key in ("fed_back", "alone"))
    blocks = [s.name for s in plan.steps if s.changes and s.after.block_size > 1]
    without = [name for name in blocks if not tallies[name].fed_back + tallies[name].alone]
    looked_up = [name for name in without if name in rules.EMBEDDINGS]
    others = [name for name in without if name not in looked_up]
    yield (
        f"error feedback: {served} of {served + alone} rows have nearer outputs with it on inputs held back, "
        "the others are encoded without"
        + "".join(f"; so is {name}, whose rows are looked up one by one" for name in looked_up)
        + (f"; so are {len(others)} tensors whose inputs are not known, as {others[0]}" if others else "")
    )


def layout(plan: Plan, target: str | os.PathLike[str], *, keep_split: bool = False) -> list[tuple[str, int]]:
    """The files that :func:`run` would write, with their sizes."""
    final = checked_path("layout(plan, target)", target, "pass a str or an os.PathLike")
    _check_apart(plan, final)
    tensors = _Tensors(plan, keep_split)
    settings = _settings(plan, keep_split, len(tensors.scales))
    return gguf.layout(final, tensors, plan.new_metadata, **settings)


def _settings(plan: Plan, keep_split: bool, more: int) -> dict[str, Any]:
    """Settings of the writer; ``more``: tensors that the source has not, which go into the last part."""
    parts = parts_of(plan.file) if keep_split else []
    if parts:
        parts[-1] += more
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
        self._file, self._moments, self._fed_back = plan.file, plan.moments, plan.fed_back
        steps = {step.name: step for step in plan.steps}
        self.scales: dict[str, NDArray[np.float32]] = {}
        for step in plan.steps:
            if (name := _companion(plan, step)) is not None:
                count = _scales(step)
                self.scales[name] = np.ones(count, np.float32) if step.scale is None else step.scale
                of_inputs = f"{name.removesuffix(SCALE)}.input_scale"
                largest = plan.moments.largest.get(step.name) if plan.moments else None
                if largest is not None and len(largest) == count and of_inputs not in steps:
                    self.scales[of_inputs] = np.where(largest > 0, largest / LARGEST_INPUT, np.float32(1))
        names = [*steps, *self.scales]
        self._steps, self._names = steps, names if keep_split else rules.in_order(names)
        self.tally = {step.name: Tally() for step in plan.steps}

    def __getitem__(self, name: str) -> Any:
        if name in self.scales:
            return self.scales[name]
        step = self._steps[name]
        shape = step.shape[-rules.axes(step.shape) :]  # ggml drops outer axes of length 1
        if not step.changes:
            q = self._file[name]
            while q.ndim > len(shape):
                q = q[0]
            return q

        def rows() -> Iterator[QuantArray]:
            able = self._moments is not None and self._fed_back and step.after.block_size > 1
            moments = self._moments.get(name) if self._moments and able else None
            return converted(self._file[name], step, self.tally[name], moments=moments)

        return Streamed(step.after, shape, rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
