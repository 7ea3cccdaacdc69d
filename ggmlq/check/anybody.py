"""The judge of anybody's kernel (``gq.check``): a Python function that decodes, multiplies or encodes blocks.

It is called on seeded blocks of each type. Each weight or element is judged by its own bound, and what is
wrong is named by the doctor's catalogue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..arrays.rows import rows
from ..errors import UnsupportedError
from ..faults import Diagnosis, diagnose
from ..faults.blocks.matrix import Matrix
from ..faults.blocks.rounding import OF_CODES, ROUNDINGS
from ..faults.numbers import LEAST_HALF
from ..faults.probe import VALUE
from ..formats import BLOCK_FORMATS, FORMATS, BlockFormat, Format
from .cover import Cover, covers
from .encoders import judged_encoder
from .results import Bfloat16, RefusedError, Results, WrongResultError, called_with_its_own

OPERATIONS = ("dequantize", "linear", "quantize")
# Rows of activations and of weights, and the kind of activations: ggml's kernels change at 9 and at 33 rows.
PRODUCTS = ((1, 7, "normal"), (4, 16, "normal"), (9, 24, "heavy_tails"), (33, 8, "ties"))
LARGEST = 1e3  # of a result: some functions give halves
# For encoders: rows of many values, whose errors tell encoders apart.
FLOATS = ("normal", "zeros", "outliers", "constant", "heavy_tails", "f16")
SHOWN = 3  # cases of one fault


class Fault(NamedTuple):
    """A mistake of a function with one type, and the cases in which it shows."""

    format: str
    fault: str  # an id of docs/faults.md, "raises" or "shape"
    text: str
    cases: tuple[str, ...]


class Report(NamedTuple):
    """The findings on one function. Prints as text; true where all is right."""

    function: str
    operation: str
    judged: tuple[str, ...]  # types
    faults: tuple[Fault, ...]
    refused: dict[str, str]  # types that the function does not take: its own reason
    notes: dict[str, str]

    @property
    def ok(self) -> bool:
        """True where something was judged, and nothing is wrong."""
        return bool(self.judged) and not self.faults

    def __str__(self) -> str:
        wrong = dict.fromkeys(f.format for f in self.faults)
        right = [name for name in self.judged if name not in wrong]
        head = f"{self.function}, {self.operation}: "
        head += f"{len(right)} of {len(self.judged)} types right" if self.judged else "nothing was judged"
        lines = [head + (f" ({', '.join(right)})" if right else "")]
        lines += [f"  {name}: {note}" for name, note in self.notes.items()]
        for fault in self.faults:
            shown = ", ".join(fault.cases[:SHOWN]) + (" …" if len(fault.cases) > SHOWN else "")
            lines.append(f"\n{fault.format}: {fault.fault} ({shown})")
            lines += [f"    {line}" for line in fault.text.splitlines()]
        lines += [f"not judged: {name}: {reason}" for name, reason in self.refused.items()]
        return "\n".join(lines)


def check(f: Callable[..., Any], op: str = "dequantize", *, formats: Any = None, seed: int = 0) -> Report:
    """Judge a function that works on ggml's blocks: is it right, and if not, which mistake does it make?

    Parameters
    ----------
    f : callable
        ``"dequantize"``: ``f(blocks, format, shape)`` → floats of ``shape`` [N, K].
        ``"linear"``: ``f(x, blocks, format, shape)`` → x @ weights.T, [M, N], with x float32 [M, K].
        ``"quantize"``: ``f(x, format)`` → the bytes of the blocks, [N, bytes a row].
        ``blocks`` is uint8 [N, bytes a row], ``format`` ggml's name ("q4_K"), ``shape`` (N, K). A function
        that takes fewer arguments gets the first ones. Results may be of NumPy, CuPy, torch or anything
        with ``__array__`` or ``__dlpack__``.
    op : str
        ``"dequantize"``, ``"linear"`` or ``"quantize"``.
    formats : name or sequence of names, optional
        Types that f must take. By default all; those in whose first case f raises are not judged.
    seed : int
        Of the random blocks.

    Returns
    -------
    Report
        ``.ok``, ``.faults`` (each with ``.format .fault .text .cases``), ``.refused``; prints as text.

    >>> import ggmlq as gq
    >>> def decoded(blocks, format, shape):         # forgets that codes of q4_0 begin at -8
    ...     fields = blocks.reshape(-1, 18)
    ...     d, qs = fields[:, :2].copy().view("f2").astype("f4"), fields[:, 2:]
    ...     return (np.concatenate([qs & 15, qs >> 4], axis=1) * d).reshape(shape)
    >>> import numpy as np
    >>> [fault.fault for fault in gq.check(decoded, formats="q4_0").faults]
    ['offset-missing']
    """
    if op not in OPERATIONS:
        raise UnsupportedError(
            f"check(f, {op!r}): there is no such operation; choose of {', '.join(OPERATIONS)}"
        )
    chosen = [
        FORMATS[name] for name in ([formats] if isinstance(formats, str | int | Format) else formats or ())
    ]
    call = called_with_its_own(f, formats is None, op)
    judged, faults, refused, notes = [], [], {}, {}
    for fmt in chosen or _all(op):
        if not isinstance(fmt, BlockFormat):
            raise UnsupportedError(
                f"check(f, {op!r}, formats={fmt.name!r}): it has no blocks; name a block type"
            )
        results = Results(call, fmt, must=bool(chosen))
        try:
            mistakes = list(_grouped(fmt.name, JUDGES[op](results, fmt, seed)))
        except RefusedError as error:
            refused[fmt.name] = str(error)
            continue
        judged.append(fmt.name)
        faults += mistakes
        if results.note:
            notes[fmt.name] = results.note
    name = getattr(f, "__qualname__", None) or type(f).__name__
    return Report(name, op, tuple(judged), tuple(faults), refused, notes)


def _all(op: str) -> list[BlockFormat]:
    """All types that model files hold; q8_1 and q8_K are for activations."""
    return [
        fmt
        for fmt in BLOCK_FORMATS
        if fmt.name not in ("q8_1", "q8_K") and (op != "quantize" or fmt.can_quantize)
    ]


def _grouped(name: str, wrong: Iterable[tuple[str, str, str]]) -> Iterator[Fault]:
    """One Fault for each kind of mistake, with its cases and the first text."""
    kinds: dict[str, list[tuple[str, str]]] = {}
    for case, fault, text in wrong:
        kinds.setdefault(fault, []).append((case, text))
    for fault, cases in kinds.items():
        yield Fault(name, fault, cases[0][1], tuple(case for case, _ in cases))


# --- judges ---------------------------------------------------------------------------------------


Cases = Iterator[tuple[str, str, str]]  # case, fault, text


def _dequantize(results: Results, fmt: BlockFormat, seed: int) -> Cases:
    for cover in covers(fmt, seed):
        yield from _tried(cover.name, partial(_decoded, results, fmt, cover))


def _decoded(results: Results, fmt: BlockFormat, cover: Cover) -> Diagnosis:
    q = QuantArray.from_bytes(cover.raw, fmt, cover.shape)
    used, kind = results.floats(cover.raw, shape=cover.shape, of=cover.shape)
    forbidden = np.zeros(q.blocks.shape, np.bool_) if fmt.forbidden is None else fmt.forbidden(q.blocks)
    excused = forbidden.repeat(fmt.block_size, axis=1) & np.isnan(
        used
    )  # NaN in the standard, a number in ggml
    if cover.name == "all codes" and kind in ("float32", "float64"):
        exact = np.array_equal(used.astype(np.float32), q.dequantize(), equal_nan=True)
        results.note = "" if exact else "not the bits of ggml's decoder"
    return Matrix(used, q, ROUNDINGS.get(kind, ROUNDINGS["float32"]), excused=excused).diagnosis()


def _linear(results: Results, fmt: BlockFormat, seed: int) -> Cases:
    block = max(fmt.block_size, 32)
    for i, (m, n, kind) in enumerate(PRODUCTS):
        k = block * (3 if block > 64 else 5 + 8 * i)
        x = rows(kind, m, k, seed + i)
        yield from _tried(f"{m}x{n}x{k}, {kind}", partial(_product, results, fmt, x, n, seed))
    units = VALUE * np.eye(2 * max(block, 128), dtype=np.float32)
    yield from _tried("unit vectors", partial(_product, results, fmt, units, 16, seed))


def _product(results: Results, fmt: BlockFormat, x: NDArray[np.float32], n: int, seed: int) -> Diagnosis:
    from ..arrays.blocks import random_blocks

    k = x.shape[1]
    raw = random_blocks(fmt, n, k // fmt.block_size, seed).view(np.uint8).reshape(n, -1)
    q = QuantArray.from_bytes(raw, fmt, (n, k))
    units = len(x) == k
    most = float(np.abs(x @ q.dequantize().T).max())
    small = np.float32(2.0 ** min(np.floor(np.log2(LARGEST / most)), 0))  # scales of codes stay exact
    x = x * small
    y, kind = results.floats(x, raw, shape=(n, k), of=(len(x), n))
    if units:
        one = float(VALUE * small)
        rounding = OF_CODES._replace(least=LEAST_HALF / one) if kind == "float16" else OF_CODES
        return Matrix(y.T / one, q, rounding).diagnosis()
    return diagnose(Bfloat16(y) if kind == "bfloat16" else y.astype(kind), x, q)


def _quantize(results: Results, fmt: BlockFormat, seed: int) -> Cases:
    block = max(fmt.block_size, 32)
    for i, kind in enumerate(FLOATS):
        x = rows(kind, 4, max(2 * block, 512), seed + i)
        yield from _tried(kind, partial(_encoded, results, fmt, x))


def _encoded(results: Results, fmt: BlockFormat, x: NDArray[np.float32]) -> Diagnosis:
    raw, _ = results(x)
    size = len(x) * fmt.row_bytes(x.shape[1])
    if raw.nbytes != size:
        raise WrongResultError("shape", f"The result has {raw.nbytes} bytes, {size} are expected.")
    diagnosis = judged_encoder(np.ascontiguousarray(raw).view(np.uint8).reshape(len(x), -1), fmt, x)
    if not diagnosis.figures["same bytes"]:
        results.worst = max(results.worst, diagnosis.figures["error over that of ggml"])
        results.note = f"not ggml's bytes; its squared error is up to {results.worst:.3g} times ggml's"
    return diagnosis


def _tried(case: str, judge: Callable[[], Diagnosis]) -> Cases:
    """The fault of one case, if it has one."""
    try:
        diagnosis = judge()
    except WrongResultError as error:
        yield case, *error.args
        return
    if not diagnosis.ok:
        yield case, diagnosis.fault, diagnosis.text


JUDGES = {"dequantize": _dequantize, "linear": _linear, "quantize": _quantize}
