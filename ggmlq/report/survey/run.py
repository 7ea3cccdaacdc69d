"""``gq.survey``: examines all tensors of models, and tries types on them, here or by workers of any executor.

There are two rounds. The first reads all values and notes the energy of each row; by these energies a sample
of rows is drawn (``convert/measure.py`` says why). The second encodes only the sample, in each type.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import tasks
from ...arrays.array import QuantArray
from ...arrays.scaled import ScaledArray
from ...base.progress import Progress
from ...base.text import short
from ...convert import plan
from ...convert.measure import ELEMENTS, Sample, choose, error_of
from ...convert.plan import Importance
from ...convert.rules import why_left
from ...convert.run import prepare_once
from ...errors import ConvertError, GGUFKeyError, SafetensorsError, UnsupportedError
from ...formats import FORMATS, Format
from ...gguf import read_imatrix
from ...gguf.header import piece
from ...gguf.opened import Filter, select
from ...gguf.source import release
from ...ops import dequantize
from ...safetensors import either as files
from ...tasks.rows import slices
from ..values import CANDIDATES, FLOATS, OTHERS, Values
from .facts import Survey, Surveyed

# --- a task: all values of a part of a tensor, for their facts and energies of rows ----------

SLAB = 1 << 20  # elements decoded at a time

Doubles = NDArray[np.float64]


class Walk(NamedTuple):
    """A task: a part of a tensor, in rows through all leading axes, or in elements if not ``by_row``."""

    model: int
    name: str
    rows: tasks.Rows
    part: tuple[int, int]
    number: int  # of the part in its tensor
    by_row: bool
    weights: NDArray[np.float64] | None  # importance of the columns of the matrices of these rows
    origin: int  # the matrix that the weights begin with

    @property
    def what(self) -> str:
        kind = "rows" if self.by_row else "elements"
        return f"tensor {self.name!r}, {kind} {self.part[0]} to {self.part[1] - 1}"


class Walked(NamedTuple):
    """The facts of a part, and the energy of each row, plain and by importance."""

    values: Values
    energies: Doubles | None
    weighted: Doubles | None


def walk(task: Walk) -> Walked:
    """The facts about the part of one task; a worker calls it."""
    x = task.rows.array()
    values = Values()
    if not task.by_row:
        for first in range(*task.part, SLAB):
            values.add(_elements(x, first, min(SLAB, task.part[1] - first)))
        return Walked(values, None, None)
    start, stop = task.part
    columns, energies = x.shape[-1], np.zeros(stop - start)
    weighted = None if task.weights is None else np.zeros(stop - start)
    unit = unit_of(x)
    few = max(1, SLAB // (columns * unit)) * unit
    for first in range(start, stop, few):
        last = min(first + few, stop)
        rows = rows_between(x, first, last)
        values.add(rows)
        here = slice(first - start, last - start)
        with np.errstate(invalid="ignore", over="ignore"):
            energies[here] = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
        if weighted is not None and task.weights is not None:
            squares = np.square(rows, dtype=np.float64)
            matrices = (np.arange(first, last) // x.shape[-2] - task.origin) % len(task.weights)
            for matrix in np.unique(matrices):
                of = matrices == matrix
                weighted[here][of] = np.einsum("ij,j->i", squares[of], task.weights[matrix])
    return Walked(values, energies, weighted)


def unit_of(x: QuantArray | ScaledArray) -> int:
    """The number of rows to read together: those of a scale tile, or 1."""
    return 1 if isinstance(x, QuantArray) or x.tile[0] is None else x.tile[0]


def rows_between(x: QuantArray | ScaledArray, first: int, last: int) -> NDArray[np.float32]:
    """Rows as floats, counted through all leading axes."""
    rows, columns = prod(x.shape[:-1]), x.shape[-1]
    if isinstance(x, ScaledArray):
        return np.asarray(x.reshape(rows, columns)[first:last].dequantize(np.float32))
    part = piece(x, first * columns, (last - first, columns))
    floats = dequantize(part, np.float32)
    release(part.blocks)
    return floats


def _elements(x: QuantArray | ScaledArray, first: int, count: int) -> NDArray[np.floating]:
    """Elements, counted through; float32 holds all of blocks and floats, integers need more."""
    if isinstance(x, ScaledArray):
        columns = x.shape[-1]
        flat = np.asarray(rows_between(x, first // columns, -(-(first + count) // columns))).reshape(-1)
        return flat[first % columns :][:count]
    part = piece(x, first, (count,))
    plain = x.format.block_size > 1 or x.format.name in FLOATS
    values: NDArray[np.floating] = dequantize(part, np.float32 if plain else np.float64)
    release(part.blocks)
    return values


# --- a task: sampled rows of a tensor encoded in each type, for its error --------------------


class Drawn(NamedTuple):
    """A sample of a tensor's rows, and the probability with which each was drawn."""

    ids: NDArray[np.int64]
    chance: NDArray[np.float64]
    energy: float  # of the whole tensor


class Trial(NamedTuple):
    """A task: types to try on sampled rows, plainly and, where there is importance, by it."""

    model: int
    name: str
    rows: tasks.Rows
    types: Sequence[tuple[str, int]]  # and how many elements of all tensors are tried in it
    plain: Drawn
    weighted: Drawn | None
    weights: NDArray[np.float32] | None  # importance [matrices, K]

    @property
    def what(self) -> str:
        return f"tensor {self.name!r} in {', '.join(kind for kind, _ in self.types)}"


class Tried(NamedTuple):
    """The error of each type relative to the tensor's energy, without types that cannot hold the values."""

    errors: dict[str, float]
    sensitivity: dict[str, float] | None


def drawn(name: str, energies: NDArray[np.float64], columns: int, elements: int) -> Drawn:
    """A sample of a tensor's rows, drawn by their energies."""
    return Drawn(*choose(name, energies, columns, elements), float(energies.sum()))


def trial(task: Trial) -> Tried:
    """The errors of all types on the sample of one task; a worker calls it."""
    plain = _errors(task, task.plain, None)
    return Tried(plain, None if task.weighted is None else _errors(task, task.weighted, task.weights))


def _errors(task: Trial, some: Drawn, weights: NDArray[np.float32] | None) -> dict[str, float]:
    x = task.rows.array()
    values = np.concatenate([rows_between(x, i, i + 1) for i in some.ids.tolist()])
    sample = Sample(values, some.ids // x.shape[-2], some.chance, some.energy, 0.0)
    losses = {}
    for kind, count in task.types:
        fmt = FORMATS[kind]
        if fmt.needs_imatrix and weights is None:
            continue
        prepare_once(fmt, weights is not None, count)
        error = error_of(sample, fmt, weights).value
        if np.isfinite(error):
            losses[kind] = error / some.energy if some.energy else 0.0
    return losses


# --- the survey ------------------------------------------------------------------------------

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Key = tuple[int, str]


def survey(
    paths: Paths,
    *,
    types: Sequence[str | int | Format] | None = None,
    imatrix: Importance = None,
    elements: int = ELEMENTS,
    filter: Filter = None,
    executor: Executor | None = None,
    progress: bool | None = None,
) -> Survey:
    """Examine all tensors of models: the spread of their values, and the error of each type.

    Parameters
    ----------
    paths : path, or sequence of them
        GGUF files, safetensors, folders of checkpoints.
    types : sequence, optional
        Types to try on tensors that llama.cpp would quantize. Not given: q8_0 to q2_K, or those that fit rows
        which are no multiple of 256; an empty one tries none.
    imatrix : path or mapping, optional
        Importance of columns: types are tried by it as well, which gives ``sensitivity``.
    elements : int
        How much of a large tensor is encoded in each type.
    filter : str or callable, optional
        Which tensors, as in ``GGUFFile.to``: a pattern for whole names, or a function of a name.
    executor : concurrent.futures.Executor, optional
        Who does it, with the same result: a pool of processes, dask's, mpi4py's. Its workers must see the
        files under the same paths.
    progress : bool, optional
        True for a bar, False for none; else one on a terminal if it takes long.

    >>> import os, tempfile, numpy as np, ggmlq as gq
    >>> path = os.path.join(tempfile.mkdtemp(), "m.gguf")
    >>> w = np.random.default_rng(0).standard_normal((64, 256), np.float32)
    >>> _ = gq.save(path, {"blk.0.ffn_up.weight": w})
    >>> (found,) = gq.survey(path, types=["q8_0", "q4_K"]).tensors
    >>> round(found.values.rms, 2), found.errors["q8_0"] < 1e-4 < found.errors["q4_K"]
    (1.0, True)
    """
    listed = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not listed:
        raise ConvertError("survey([]): there is no model; name one file or more")
    if isinstance(elements, bool) or not hasattr(elements, "__index__") or elements < 1:
        raise ConvertError(f"survey(elements={short(elements)}): it is a number of weights, 1 or more")
    chosen = None if types is None else [FORMATS[kind] for kind in types]
    for fmt in chosen or ():
        if not fmt.can_quantize:
            raise ConvertError(f"survey(types=…): {fmt.name} has no encoder; leave it out")
    matrix = read_imatrix(imatrix) if isinstance(imatrix, str | os.PathLike) else imatrix
    with contextlib.ExitStack() as stack:
        models = [stack.enter_context(files.open(path)) for path in listed]
        run = _Survey(models, chosen, matrix, int(elements), filter, progress)
        return run.through(executor)


class _Survey:
    def __init__(
        self, models: Sequence[Any], types: Sequence[Format] | None, imatrix: Mapping[str, Any] | None,
        elements: int, filter: Filter, progress: bool | None,
    ) -> None:  # fmt: skip
        self._models, self._types, self._elements = models, types, elements
        self._imatrix = imatrix
        self._surveyed: dict[Key, Surveyed] = {}
        self._waiting: dict[Key, dict[int, Walked]] = {}
        self._parts: dict[Key, int] = {}
        self._trials: list[Trial] = []
        for number, model in enumerate(models):
            lacks = set(model.missing)
            for name in _chosen(model, filter):
                self._surveyed[number, name] = _listed(model, name, name in lacks)
        if not self._surveyed and filter is not None:
            select(f"survey of {models[0]!r}", models[0], filter)  # says that it takes none
        total = sum(one.nbytes for one in self._surveyed.values())
        self._bar = Progress(total, "looking at values", show=progress)
        self._show = progress

    def through(self, executor: Executor | None) -> Survey:
        with self._bar:
            tasks.run(executor, self._walks(), walk, self._walked)
        self._bar = Progress(len(self._trials), "trying types", "tensors", self._show)
        with self._bar:
            tasks.run(executor, self._counted(), trial, self._tried)
        tried = [kind for one in self._surveyed.values() for kind in one.shown_errors]
        order = self._types if self._types is not None else [FORMATS[n] for n in (*CANDIDATES, *OTHERS)]
        types = [fmt.name for fmt in dict.fromkeys(order) if fmt.name in set(tried)]
        paths = [path for model in self._models for path in model.paths]
        return Survey(paths, list(self._surveyed.values()), types)

    # --- the first round --------------------------------------------------------------------

    def _walks(self) -> Iterator[Walk]:
        for (number, name), one in self._surveyed.items():
            if one.note or not prod(one.shape):
                one.values = one.values or (None if one.note else Values())
                continue
            try:
                x = self._models[number][name]
            except (SafetensorsError, UnsupportedError) as error:  # others of the file may be well
                one.note = f"not read: {error}"
                continue
            if not isinstance(x, QuantArray | ScaledArray):
                one.note = "only listed: a type that ggml does not have"
                continue
            if isinstance(x, ScaledArray):
                one.type = x.code.name
            rows, by_row = tasks.rows_of(x), bool(self._formats(one))
            matrix = self._weights(one) if by_row else None
            parts = list(slices(x.shape, unit_of(x)) if by_row else slices((prod(x.shape), 1)))
            self._parts[number, name] = len(parts)
            if "://" not in one.file:  # elsewhere: the name that it has there
                one.file = rows.stretch.path
            for i, part in enumerate(parts):
                some, origin = (None, 0) if matrix is None else _slice_of_rows(matrix, part, x.shape[-2])
                yield Walk(number, name, rows, part, i, by_row, some, origin)

    def _walked(self, task: Walk, result: Walked) -> None:
        """Take the result of one part; after the last part of a tensor, draw its rows."""
        key = task.model, task.name
        one, parts = self._surveyed[key], self._waiting.setdefault(key, {})
        parts[task.number] = result
        share = (task.part[1] - task.part[0]) / (prod(one.shape[:-1]) if task.by_row else prod(one.shape))
        self._bar.advance(round(share * one.nbytes))
        if len(parts) < self._parts[key]:
            return
        del self._waiting[key]
        one.values = Values()
        ordered = [parts[i] for i in range(len(parts))]
        for part in ordered:
            one.values.take(part.values)
        if task.by_row and one.values.nan + one.values.infinite:
            one.note = "not tried: it has values that are no numbers"
        elif task.by_row:
            self._draw(one, task, ordered)

    def _draw(self, one: Surveyed, task: Walk, parts: Sequence[Walked]) -> None:
        columns = one.shape[-1]
        joined = np.concatenate([part.energies for part in parts if part.energies is not None])
        plain, weighted = drawn(one.name, joined, columns, self._elements), None
        by = [part.weighted for part in parts if part.weighted is not None]
        if by:
            weighted = drawn(one.name, np.concatenate(by), columns, self._elements)
        one.energy = (weighted or plain).energy
        types = [(fmt.name, 0) for fmt in self._formats(one)]
        matrix = self._weights(one) if by else None
        self._trials.append(Trial(task.model, one.name, task.rows, types, plain, weighted, matrix))

    # --- the second -------------------------------------------------------------------------

    def _counted(self) -> list[Trial]:
        """The trials; each type has its number of elements in all, which decides about compilation."""
        count: dict[str, int] = {}
        for task in self._trials:
            for kind, _ in task.types:
                count[kind] = count.get(kind, 0) + len(task.plain.ids) * task.rows.shape[-1]
        return [task._replace(types=[(kind, count[kind]) for kind, _ in task.types]) for task in self._trials]

    def _tried(self, task: Trial, result: Tried) -> None:
        one = self._surveyed[task.model, task.name]
        one.errors, one.sensitivity = result
        self._bar.advance(1)

    def _formats(self, one: Surveyed) -> list[Format]:
        """The types to try on a tensor."""
        fmt = FORMATS[one.type] if one.type in FORMATS else FORMATS["f32"]
        if len(one.shape) < 2 or one.note or why_left(one.name, fmt, one.shape) is not None:
            return []
        columns = one.shape[-1]
        if self._types is not None:
            return [fmt for fmt in self._types if columns % fmt.block_size == 0]
        names = CANDIDATES if columns % FORMATS["q6_K"].block_size == 0 else OTHERS
        return [FORMATS[name] for name in names if columns % FORMATS[name].block_size == 0]

    def _weights(self, one: Surveyed) -> Any:
        if self._imatrix is None:
            return None
        return plan.tensor_weights(self._imatrix, one.name, one.shape)


def _chosen(model: Any, filter: Filter) -> list[str]:
    """The tensors of a model that the filter takes; none is no error, as another model may have some."""
    try:
        return select(f"survey of {model!r}", model, filter)
    except GGUFKeyError:
        return []


def _listed(model: Any, name: str, lacks: bool) -> Surveyed:
    if lacks:
        return Surveyed(model.path, name, "", (), 0, note="not there: the download was cut off")
    info = model.info(name)
    kind = info.dtype if hasattr(info, "dtype") else info.format.name
    note = ""
    if hasattr(info, "dtype") and info.type.format is None and info.type.code is None:
        note = "only listed: a type that ggml does not have"
    elif hasattr(info, "dtype"):
        kind = (info.type.format or info.type.code).name
    return Surveyed(model.path, name, kind, tuple(info.shape), info.nbytes, note=note)


def _slice_of_rows(matrix: Any, part: tuple[int, int], count: int) -> tuple[Any, int]:
    """The importance of the matrices that rows are of, and the first of these."""
    matrices = np.arange(part[0] // count, -(-part[1] // count))
    return matrix[matrices % len(matrix)].astype(np.float64), int(matrices[0])
