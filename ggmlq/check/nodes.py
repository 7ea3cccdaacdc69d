"""The judgement of a captured node that is no product: its oracle on its own sources, element by element."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..base.indices import evenly_spaced
from ..base.writing import write_whole
from ..errors import GGMLQError, UnsupportedError
from ..faults import Diagnosis, diagnose_node
from ..formats import FORMATS
from ..llama.program import DTYPES, NAMES, Node, original, source_name
from ..reference.nodes import ATTENTIONS, NOT_COVERED, OPERATIONS, Result, freedoms, named_words, node
from .beyond import HALVES, OTHER, beyond_arithmetics, is_nearer
from .judge import Judgement, by_expert, candidates, pieces_of

SLAB = 1 << 20  # elements of a result that are judged at a time
ATTENTION = "FLASH_ATTN_EXT"
EARLIER = "earlier"  # of an operation in the meaning that it had
ONCE = {"GATED_DELTA_NET": {"turned": True}}  # what an operation meant in libraries of another year


@dataclass(frozen=True)
class NodeVerdict:
    """The judgement of all elements of a node."""

    how: str  # "bits", "f32" or "earlier"; of attention the name of an arithmetic, "other" or "f16 sums"
    judged: int
    out: int
    share: float  # of the limit that the worst element uses up
    distance: float  # the squared distance from the oracle, by the size of that
    worst: dict[str, Any] = field(default_factory=dict)
    parts: int = 1  # of an attention's positions, which a program added up apart


@dataclass(frozen=True)
class Operands:
    """A node as its oracle wants it."""

    op: str
    inputs: list[Any]
    params: dict[str, Any]
    y: NDArray[Any]  # of blocks the bytes


def operands(captured: Node, model: Mapping[str, QuantArray] | None = None) -> Operands:
    """The sources, parameters and result of a node; the rows of GET_ROWS may be the model's."""
    op, facts = captured.op, captured.tensors["y"]
    if op not in OPERATIONS:
        raise UnsupportedError(f"{op} {NOT_COVERED.get(op, 'is unknown to this version')}")
    names = [source_name(op, i) for i in range(OPERATIONS[op].sources)]
    inputs = [_source(captured, name, model) if name in captured.tensors else None for name in names]
    params = named_words(op, np.array(captured.words, np.int32))
    kind = facts["type"]
    params |= {"type": kind, "shape": tuple(facts["ne"][::-1])}
    if op == ATTENTION:
        params["kinds"] = tuple(captured.tensors[name]["type"] for name in "kv")
    if kind in DTYPES:
        y = captured.operand("y")
    else:
        y = np.asarray(captured.blocks("y").raw).reshape(*params["shape"][:-1], -1)
    if op == "SET_ROWS" and inputs[2] is None:  # June to September 2025: what lay there before is not read
        inputs[2] = captured.operand("y")  # so that rows of no id are judged by themselves
    return Operands(op, inputs, params, y)


def _source(captured: Node, name: str, model: Mapping[str, QuantArray] | None) -> Any:
    if name in captured.arrays or model is None:
        return captured.operand(name)
    facts = captured.tensors[name]
    weights = model.get(original(facts["name"]))
    if weights is None or weights.format.name != facts["type"]:
        return captured.operand(name)  # raises the error that tells why it is missing
    return weights


def slabs(these: Operands) -> Iterator[tuple[int, Operands]]:
    """The node in parts along its outermost axis, where its oracle allows that, and the start of each."""
    y = these.y
    axis = next((i for i, n in enumerate(y.shape[:-1]) if n > 1), 0)
    n = y.shape[axis]
    step = max(1, SLAB * n // max(y.size, 1))
    if not OPERATIONS[these.op].rowwise or step >= n or y.ndim < 2:
        yield 0, these
        return
    for start in range(0, n, step):
        rows = np.arange(start, min(start + step, n))
        inputs = [_rows(source, axis, rows, n) for source in these.inputs]
        shape = (*y.shape[:axis], len(rows), *y.shape[axis + 1 :])
        yield start, Operands(these.op, inputs, {**these.params, "shape": shape}, y.take(rows, axis))


def _rows(source: Any, axis: int, rows: NDArray[np.intp], n: int) -> Any:
    if source is None or isinstance(source, QuantArray):
        return source
    length = source.shape[axis]
    return source if length == 1 else source.take(rows if length == n else rows % length, axis)


def with_rows(these: Operands, rows: NDArray[np.intp]) -> Operands:
    """An attention of some rows of its queries alone."""
    q, k, v, mask, sinks = these.inputs
    inputs = [q[:, :, rows], k, v, None if mask is None else mask[:, :, rows], sinks]
    y = these.y[:, rows]
    return Operands(these.op, inputs, {**these.params, "shape": y.shape}, y)


def judge_node(
    these: Operands, *, quick: bool = False, threads: int | None = None, habits: Habits | None = None,
    arithmetic: str = "",
) -> NodeVerdict:  # fmt: skip
    """The verdict on a node, ``quick`` of a GPU. Attention is judged in the first known arithmetic that fits.

    Where none fits, kernels that are not known are granted what right ones may round, sums in halves too,
    but not if ``habits`` hold the library to a known one, unless the result is nearer to float64 than that.
    ``arithmetic``: the one that attention claims. ``threads``: their number, where it is known.
    """
    if these.op == ATTENTION:
        return _judge_attention(these, quick, threads, Habits() if habits is None else habits, arithmetic)
    with freedoms(quick=quick):
        verdict = _judged(these)
        if verdict.out and these.op in ONCE:
            earlier = _judged(with_params(these, ONCE[these.op]))
            return replace(earlier, how=EARLIER) if earlier.out < verdict.out else verdict
        return verdict


def _judge_attention(
    these: Operands, quick: bool, threads: int | None, habits: Habits, arithmetic: str
) -> NodeVerdict:
    best: NodeVerdict | None = None
    kinds = these.params["kinds"]
    names = habits.names(these.inputs, kinds)
    every, complete = ways(these.inputs, kinds, not quick, habits, threads, arithmetic)
    for way in every:
        some = these if way.rows is None else with_rows(these, way.rows)
        try:
            with freedoms(quick=quick):
                verdict = replace(_judged(with_params(some, way.params)), how=way.name, parts=way.parts)
        except UnsupportedError:  # no program multiplies this type so
            if arithmetic:
                raise
            continue
        if not verdict.out:
            habits.learn(these.inputs, way, not quick)
            if way.rows is None:
                return verdict
            whole = _of_any_kernel(these, quick)
            return whole if whole.out else replace(whole, how=way.name, parts=way.parts, share=verdict.share)
        if (not names or verdict.how in names) and (
            best is None or 2 * verdict.out < best.out
        ):  # the likelier ones come first
            best = verdict
    is_held = best is not None and (arithmetic or (complete and names))
    if best is not None and is_held and (arithmetic or not _is_nearer(these, best)):
        return best
    return _of_any_kernel(these, quick)


def _is_nearer(these: Operands, verdict: NodeVerdict) -> bool:
    """True for an attention that is nearer to float64 than the arithmetic in which it is wrong."""
    rows = followed(these.inputs)
    some = these if rows is None else with_rows(these, rows)
    known, exact = (
        node(some.op, some.inputs, {**some.params, "arithmetic": name, "parts": verdict.parts}).value
        for name in (verdict.how, "f32")
    )
    return is_nearer(some.y.astype(np.float64), known, exact, exact**2, -1)


def _of_any_kernel(these: Operands, quick: bool) -> NodeVerdict:
    """The verdict on attention by what any right kernel may do."""
    with freedoms(quick=quick):
        verdict = replace(_judged(these), how=OTHER)
    if verdict.out:
        with freedoms(quick=quick, half_sums=True):
            loose = _judged(these)
        if not loose.out:
            return replace(loose, how=HALVES)
    return verdict


def as_judged(these: Operands, verdict: NodeVerdict) -> Operands:
    """A node as its oracle judged it: an attention with its arithmetic, or an operation as it once was."""
    if verdict.how == EARLIER:
        return with_params(these, ONCE[these.op])
    if verdict.how not in ATTENTIONS:
        return these
    return with_params(these, {"arithmetic": verdict.how, "parts": verdict.parts})


def with_params(these: Operands, more: Mapping[str, Any]) -> Operands:
    """A node with further parameters for its oracle."""
    return Operands(these.op, these.inputs, {**these.params, **more}, these.y)


def judge_product(captured: Node, backend: str) -> NodeVerdict:
    """The verdict on a product in the first arithmetic that fits; matrices are judged as experts of rows."""
    facts = captured.tensors["w"]
    matrices = captured.matrices("w")
    n, k = matrices[0].shape
    raw = np.stack([np.asarray(matrix.raw) for matrix in matrices])
    q = QuantArray.from_bytes(raw, FORMATS[facts["type"]], (len(matrices), n, k))
    x, y = captured.floats("x"), captured.strided("y")
    tokens, batches = y.shape[-2], math.prod(y.shape[:-2])
    if captured.op == "MUL_MAT_ID":
        tokens, batches = y.shape[1], 1
        ids = np.asarray(captured.strided("i")).reshape(tokens, -1)
        x = x.reshape(len(ids), -1, k)
        rows, x = y.reshape(*ids.shape, n), x[:, 0] if x.shape[1] == 1 else x
    else:
        ids = np.arange(len(matrices)).reshape(facts["ne"][:1:-1])
        for axis in (0, 1):
            ids = ids.repeat(y.shape[axis] // ids.shape[axis], axis)
        ids = ids.reshape(-1, 1).repeat(y.shape[2], 0)
        rows, x = y.reshape(-1, 1, n), x.reshape(-1, k)
    claims = candidates(backend, tokens)
    with np.errstate(all="ignore"):
        verdict = by_expert(rows, x, q, ids, claims)
        pieces = pieces_of(rows, x, q, ids) if verdict.out else []
        if pieces and (name := beyond_arithmetics(pieces, claims, backend, tokens, batches)):
            verdict = Judgement(name, verdict.from_exact, verdict.from_exact, 0)
    at = {"part": "", "row": 0, "column": 0, "got": np.nan, "wanted": np.nan}
    return NodeVerdict(verdict.arithmetic, y.size, verdict.out, float(verdict.out > 0), verdict.distance, at)


def compared(result: Result, y: NDArray[Any]) -> NodeVerdict:
    """The verdict on all of a result at once, whatever computed it."""
    excess = result.excess(y)
    error, size = _distance(result, y)
    worst = _worst(Operands("", [], {}, y), result, excess, 0) if excess.size else {}
    return NodeVerdict(
        "bits" if result.discrete else "f32", excess.size, int(np.count_nonzero(excess > 1)),
        float(excess.max(initial=0.0)), error / size if size else 0.0, worst,
    )  # fmt: skip


def _judged(these: Operands) -> NodeVerdict:
    judged, out, share, worst, error, size, how = 0, 0, -1.0, dict[str, Any](), 0.0, 0.0, "f32"
    for start, part in slabs(these):
        result = node(part.op, part.inputs, part.params)
        excess = result.excess(part.y)
        floats = [a for a in part.inputs if isinstance(a, np.ndarray) and a.dtype.kind == "f"]
        has_nan = any(bool(np.isnan(source).any()) for source in floats)
        if has_nan and not result.exact and excess.shape == result.value.shape:
            # What is computed of NaN is nobody's promise; an element that is moved stays NaN.
            excess = np.where(np.isnan(result.value), 0.0, excess)
        if not excess.size:
            continue
        how = "bits" if result.discrete else "f32"
        judged += excess.size
        out += int(np.count_nonzero(excess > 1))
        largest = float(excess.max())
        if largest > share:
            share, worst = largest, _worst(part, result, excess, start)
        a, b = _distance(result, part.y)
        error, size = error + a, size + b
    return NodeVerdict(how, judged, out, max(share, 0.0), error / size if size else 0.0, worst)


def _distance(result: Result, y: NDArray[Any]) -> tuple[float, float]:
    if result.value.dtype.kind in "iu" or result.value.shape != y.shape:
        return 0.0, 0.0
    with np.errstate(all="ignore"):
        finite = np.isfinite(result.value) & np.isfinite(y)
        off = np.where(finite, y - result.value, 0.0)
        return float((off**2).sum()), float((np.where(finite, result.value, 0.0) ** 2).sum())


def _worst(part: Operands, result: Result, excess: NDArray[np.float64], start: int) -> dict[str, Any]:
    """The element furthest out of its bound, or nearest to it."""
    index = [int(i) for i in np.unravel_index(int(excess.argmax()), excess.shape)]
    axis = next((i for i, n in enumerate(part.y.shape[:-1]) if n > 1), 0)
    place = tuple(i + start if j == axis else i for j, i in enumerate(index))
    plain = excess.shape == result.value.shape == part.y.shape
    got, wanted = (float(a[tuple(index)]) if plain else np.nan for a in (part.y, result.value))
    limit = float(np.broadcast_to(result.bound, result.value.shape)[tuple(index)]) if plain else 0.0
    return {
        "part": "" if len(place) < 3 or not any(place[:-2]) else f"[{', '.join(map(str, place[:-2]))}]",
        "row": place[-2] if len(place) > 1 else 0, "column": place[-1], "got": got, "wanted": wanted,
        "error": abs(got - wanted) if plain else 0.0 if excess.max() <= 1 else np.inf, "limit": limit,
        "share": float(excess.max()),
    }  # fmt: skip


def sentence(verdict: NodeVerdict) -> str:
    """The judgement of a wrong node in a sentence."""
    w = verdict.worst
    where = f"{w['part']}, " if w["part"] else ""
    value = (
        ""
        if np.isnan(w["got"]) and np.isnan(w["wanted"])
        else (f" is {w['got']:.6g}, not {w['wanted']:.6g}" + (f" ± {w['limit']:.1e}" if w["limit"] else ""))
    )
    return (
        f"{verdict.out} of {verdict.judged} elements are out of bound; the worst, {where}row {w['row']}, "
        f"column {w['column']},{value or ' is another one'}."
    )


def diagnosed(these: Operands, *, quick: bool = False, verdict: NodeVerdict | None = None) -> Diagnosis:
    """The doctor's diagnosis of a wrong node; of a large one some of its rows are enough.

    Attention is diagnosed in the arithmetic of its verdict first, whose bounds tell small mistakes apart.
    """
    if verdict is not None and verdict.how == EARLIER:
        these = as_judged(these, verdict)
    if verdict is not None and these.op == ATTENTION:
        rows = followed(these.inputs)
        some = these if rows is None else with_rows(these, rows)
        named = _diagnosed(as_judged(some, verdict), quick)
        if not named.ok and (named.fault != "unknown" or not _is_wrong(these)):
            return named
    return _diagnosed(these, quick)


def _diagnosed(these: Operands, quick: bool) -> Diagnosis:
    part = next((part for _, part in slabs(these) if _is_wrong(part)), these)
    with freedoms(quick=quick):
        return diagnose_node(part.op, part.inputs, part.params, part.y)


def _is_wrong(part: Operands) -> bool:
    return bool(node(part.op, part.inputs, part.params).wrong(part.y).any())


# --- arithmetics in which a library may have computed an attention, the likely ones first ---------

ON_CPU = ("ggml-cpu-attention", "f32")
IN_LANES = "ggml-cpu-attention-fp16"  # another one where rows fill the lanes of halves of AVX512-FP16
LANES = 128
ON_CUDA = ("ggml-cuda-vec", "ggml-cuda-mma")
TILED = 64  # rows from which llama.cpp's code for CPUs computes in tiles, in float32
SPLIT = 512  # positions from which its threads share those of one row
TELLING = 48  # positions that tell arithmetics from each other
LENGTHY = 1 << 21  # elements of a result times positions, for which sums of halves are followed in one node
MOST = 1 << 24  # the same of one row, beyond which none is
USUAL = (2, 4, 8, 16)  # numbers of threads
MANY = 8  # threads up to which fewer may have come than were wanted
FEW = 2  # rows up to which CUDA takes the vec kernel, for keys in blocks
Kinds = tuple[str, str]  # types of keys and values
Key = tuple[str, str, bool]  # these, and True where rows fill those lanes


@dataclass(frozen=True)
class Way:
    """One arithmetic to try on an attention."""

    name: str
    kinds: Kinds
    parts: int = 1  # of the positions, which a program added up apart
    rows: NDArray[np.intp] | None = None  # of the queries, that are judged; None: all

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the oracle."""
        return {"arithmetic": self.name, "kinds": self.kinds, "parts": self.parts}


class Habits:
    """Kinds of keys and values whose attention a library has computed in a known arithmetic.

    It is held to that: another result is wrong, even within the bound of kernels that are not known.
    """

    def __init__(self) -> None:
        self._names: dict[Key, set[str]] = {}
        self._parts = 1

    def names(self, inputs: list[Any], kinds: Kinds) -> set[str]:
        """The arithmetics in which such attention was computed before."""
        return self._names.get((*kinds, _is_wide(inputs)), set())

    def learn(self, inputs: list[Any], way: Way, on_cpu: bool) -> None:
        """Note an attention that fits a known arithmetic; on a GPU kernels differ by shape too much."""
        if on_cpu and inputs[1].shape[-2] >= TELLING:
            self._names.setdefault((*way.kinds, _is_wide(inputs)), set()).add(way.name)
        if way.parts > 1:
            self._parts = way.parts

    def parts(self, threads: int | None) -> list[int]:
        """Numbers of parts to try, into which threads may have divided positions; None: it is not known."""
        every = {1, self._parts, *(range(2, min(threads, MANY) + 1) if threads else USUAL), threads or 1}
        return sorted(every, key=lambda n: (n != self._parts, -n))


def _is_wide(inputs: list[Any]) -> bool:
    return bool(max(inputs[0].shape[-1], inputs[2].shape[-1]) >= LANES)


def followed(inputs: list[Any]) -> NDArray[np.intp] | None:
    """The rows of queries whose sums of halves are followed; None: all."""
    rows, work = inputs[0].shape[-2], max(_work(inputs), 1)
    return None if work * rows <= LENGTHY else evenly_spaced(rows, max(1, LENGTHY // work))


def _work(inputs: list[Any]) -> int:
    """Weighted values of one row."""
    return int(math.prod(inputs[0].shape[:-2]) * inputs[2].shape[-1] * inputs[1].shape[-2])


def ways(
    inputs: list[Any], kinds: Kinds, on_cpu: bool, habits: Habits, threads: int | None, named: str = ""
) -> tuple[list[Way], bool]:
    """Parameters of the oracle for each arithmetic to try, and True where these are all that are known.

    They are not where one would cost too much, or depends on a number of threads that is not known.
    ``named``: of this arithmetic alone.
    """
    rows, positions = inputs[0].shape[-2], inputs[1].shape[-2]
    order: tuple[str, ...] = ON_CPU if on_cpu else ON_CUDA if rows <= FEW else ON_CUDA[::-1]
    if on_cpu and rows >= TILED and kinds[0] == kinds[1] and not isinstance(inputs[1], QuantArray):
        order = ON_CPU[::-1]
    if on_cpu and "f16" in kinds and _is_wide(inputs):
        order = (*order, IN_LANES)
    halves = kinds[1] == "f16"
    costly = halves and not named and _work(inputs) > MOST
    some = None if named else followed(inputs)
    shared = halves and rows == 1 and positions >= SPLIT
    every: list[Way] = []
    for name in (named,) if named else order:
        if name.startswith("ggml-cpu") and halves:
            parts = habits.parts(threads) if shared else [1]
            every += [] if costly else [Way(name, kinds, n, some) for n in parts]
        else:
            every.append(Way(name, kinds))
    return every, not costly and not (shared and threads is None)


# --- lines for test-backend-ops --test-file, llama.cpp's own test, which replays nodes ------------
#
# A line has the numbers of the operation and its type, lengths, parameters, sources with their lengths and
# strides, and a name. The number of an operation is that of the library which computed the node.

MOST_SOURCES = 10


def node_line(node: Node, name: str = "") -> str | None:
    """The line of a node; None where the format cannot say it.

    These are nodes with a source left out in the middle, and SET_ROWS, to whose result the test gives fresh
    memory with anything in its other rows.
    """
    if node.op == "SET_ROWS":
        return None
    named = NAMES.get(node.op)
    count = len(named) if named else MOST_SOURCES
    sources = [node.tensors.get(source_name(node.op, i)) for i in range(count)]
    while sources and sources[-1] is None:
        sources.pop()
    y = node.tensors["y"]
    if "number" not in y or any(source is None for source in sources):
        return None
    numbers = [y["number"], FORMATS[y["type"]].id, *y["ne"], len(node.words), *node.words, len(sources)]
    for source in sources:
        assert source is not None
        numbers += [FORMATS[source["type"]].id, *source["ne"], *source["nb"]]
    label = "".join(c if c.isalnum() or c in "_-." else "_" for c in name or node.name)
    return " ".join(map(str, [*numbers, label or "-"]))


def write_lines(path: Path, lines: Iterable[str | None]) -> int:
    """Write each line once, and return how many there are."""
    unique = list(dict.fromkeys(line for line in lines if line))
    try:
        write_whole(path, "".join(f"{line}\n" for line in unique))
    except OSError as error:
        raise GGMLQError(f"--test-file {path}: {error.strerror}; name another file") from error
    return len(unique)
