"""``Judge``: turns each captured node of a trace into its record, with a diagnosis if it is wrong."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..base.indices import evenly_spaced
from ..check.beyond import beyond_arithmetics
from ..check.judge import Judgement, candidates, reason
from ..check.nodes import Habits, diagnosed, judge_node, node_line, operands, sentence, with_rows
from ..faults import Diagnosis, diagnose
from ..faults.blocks.sums import looks_half
from ..llama.program import Node
from ..reference.nodes.rows import slopes
from .fused import facts_of_group, record_group
from .fusion import Group
from .judging import Crop, Part, Verdict, finite, in_blocks, judge_parts, mix_up, parts, whole
from .lifetimes import Changed
from .product import Operands, Product
from .tracer import PRODUCTS

NEAR = 1e-2  # distance from an arithmetic: all other arithmetics are nearer than this
WHOLE = 1 << 28  # M·N·K up to which the diagnosis gets all of a wrong product
DIAGNOSED = 4  # wrong products of a kind that are diagnosed; where they agree the rest is like them
SAMPLE = (4, 32)  # rows and columns kept of a right product
ROWS, COLUMNS = 32, 256  # rows and columns kept of a wrong one that is too large
OVERWRITTEN = "overwritten"  # the fault of memory, not of a kernel
LOOK = "Look at the allocator (lifetimes, results in place) and at views that outlive their tensor."


class Judge:
    """Judges the nodes of one run; remembers which kinds of wrong products it has diagnosed.

    ``captures``: records of wrong nodes that are no products hold all that the node read, to be saved.
    """

    def __init__(self, model: Mapping[str, QuantArray], how: str, captures: bool = False) -> None:
        self._model, self._how, self._captures = model, how, captures
        self._diagnosed: dict[tuple[str, str, bool], list[Product]] = {}
        self._habits = Habits()

    def record(self, node: Node) -> Product:
        """The record of one node, with its judgement."""
        start = time.perf_counter()
        product = _facts_of(node)
        try:
            with np.errstate(all="ignore"):  # overflowing scales, and results that are wrong, are data
                if isinstance(node, Group):
                    record = record_group(node, self._model, self._how)
                elif node.op in PRODUCTS:
                    record = self._products(node, product)
                else:
                    record = record_node(node, product, self._model, self._how, self._habits)
        except Exception as error:  # also of ours: other nodes still count
            record = unjudged(node, error)
        line = node_line(node) if record.verdict == "wrong" and not record.group else None
        record = replace(record, seconds=time.perf_counter() - start, line=line)
        if self._captures and record.verdict == "wrong" and (record.group or record.op not in PRODUCTS):
            record = replace(record, captured=whole(node, self._model))
        return overwritten(record, node) if node.changed else record

    def _products(self, node: Node, product: Product) -> Product:
        all_parts = list(parts(node, self._model))
        if not all_parts or not all_parts[0].y.size:
            return replace(product, text="there is nothing to judge: it has no elements")
        all_parts = list(filter(None, map(finite, all_parts)))
        if not all_parts:
            text = "all rows of its activations hold NaN or infinity: look at the nodes before it"
            return replace(product, verdict="not judged", text=text)
        _, once, *more = map(int, node.tensors["x"]["ne"])
        rows, batches = (more[0], 1) if node.op == "MUL_MAT_ID" else (once, math.prod(more))
        # Where a result lies says who computed it; memory of a host that a device can reach is a CPU's too.
        on = product.computed_in
        backend = "CPU" if on.startswith("CPU") or on.endswith("_Host") or not on else on
        verdict = judge_parts(all_parts, backend, rows, self._how)
        product = replace(product, judgement=verdict.judgement, worst=verdict.worst, judged=verdict.judged,
                          parts=len(all_parts))  # fmt: skip
        if not verdict.judgement.ok and (name := _beyond(verdict, backend, rows, batches)):
            far = verdict.judgement.from_exact
            product = replace(product, judgement=Judgement(name, far, far, 0), worst={})
        if product.judgement is not None and product.judgement.ok:
            return replace(product, operands=_sample(verdict.crop.part))
        operands = _worst_operands(verdict.crop)
        product = replace(product, verdict="wrong", operands=operands)
        kind = (product.type, product.computed_in, product.m == 1)
        before = self._diagnosed.setdefault(kind, [])
        if len(before) >= DIAGNOSED and len({p.fault for p in before}) == 1 and node.op != "MUL_MAT_ID":
            text = (
                f"like {before[-1].node} and others of its kind; not diagnosed itself, p.diagnose() does it"
            )
            return replace(product, fault=before[-1].fault, text=f"{_worst(verdict)} {text}.")
        diagnosis = self._mixed_up(all_parts, verdict, node) or _diagnosed(operands, backend == "CPU")
        product = _with_diagnosis(product, diagnosis, verdict)
        if product.verdict == "wrong":
            before.append(product.without_arrays())
        return product

    def _mixed_up(self, all_parts: list[Part], verdict: Verdict, node: Node) -> Diagnosis | None:
        if node.op != "MUL_MAT_ID" or node.weights not in self._model:
            return None
        w = in_blocks(self._model, node.weights)
        return mix_up(all_parts, [verdict.crop.part], [w[i] for i in range(w.shape[0])])


def _diagnosed(operands: Operands, on_cpu: bool) -> Diagnosis:
    """The doctor's diagnosis of operands; "unknown" where it refuses them.

    A result of halves counts there as one that is stored so. On a GPU that is right; a CPU's is float32.
    """
    if on_cpu and looks_half(operands.y.astype(np.float64)):
        text = "every element of the result is exactly a half: its sum, or the result itself, was kept in one"
        return Diagnosis(False, "f16-accumulation", 0.9, f"f16-accumulation: {text}.")
    try:
        return diagnose(operands.y, operands.x, operands.q)
    except Exception as error:  # it is wrong all the same
        return Diagnosis(False, "unknown", 0.5, f"It was not diagnosed: {reason(error)}")


def _beyond(verdict: Verdict, backend: str, rows: int, batches: int) -> str:
    """What makes the most suspicious elements right that no arithmetic explains; empty where nothing does."""
    crop = verdict.crop
    piece = crop.elements.y, crop.part.x[crop.rows], crop.part.q[crop.columns]
    return beyond_arithmetics([piece], candidates(backend, rows), backend, rows, batches)


def _with_diagnosis(product: Product, diagnosis: Diagnosis, verdict: Verdict) -> Product:
    """The record with its diagnosis, which may find it right in an arithmetic that was not tried."""
    if diagnosis.ok and verdict.judgement.distance < NEAR and product.op != "MUL_MAT_ID":
        judgement = replace(
            verdict.judgement, arithmetic=diagnosis.arithmetic or verdict.judgement.arithmetic, out=0
        )
        return replace(product, verdict="ok", judgement=judgement, text=diagnosis.text, diagnosis=diagnosis)
    sentence = _worst(verdict)
    fault = "unknown" if diagnosis.ok else diagnosis.fault
    text = sentence if diagnosis.ok else f"{sentence}\n{diagnosis.text}"
    return replace(product, fault=fault, text=text, diagnosis=None if diagnosis.ok else diagnosis)


def _worst(verdict: Verdict) -> str:
    """The judgement in a sentence."""
    w = verdict.worst
    where = f"{w['part']}: " if w["part"] else ""
    return (
        f"{verdict.judgement.out} of {verdict.judged} elements that were judged are out of bound; the worst, "
        f"{where}row {w['row']}, column {w['column']}, is {w['got']:.6g}, not {w['wanted']:.6g} ± "
        f"{w['limit']:.1e}."
    )


def unjudged(node: Node, error: Exception) -> Product:
    """The record of a node that could not be judged."""
    return replace(_facts_of(node), verdict="not judged", text=reason(error))


def overwritten(record: Product, node: Node) -> Product:
    """The record of a node that read what was no longer as it was computed; its kernel may be right."""
    changes = [Changed(**one).sentence(node.name) for one in node.changed]
    if record.verdict == "wrong":
        changes.append(f"On what it read {node.name} is wrong, too: {record.text}")
    text = "\n".join([*changes, LOOK])
    return replace(record, verdict="wrong", fault=OVERWRITTEN, text=text)


def _facts_of(node: Node) -> Product:
    """The facts about a node before it is judged."""
    if isinstance(node, Group):
        return facts_of_group(node)
    return _facts(node) if node.op in PRODUCTS else facts_of(node)


def _facts(node: Node) -> Product:
    """The facts about a product before it is judged."""
    y, left = node.tensors["y"], node.tensors["w"]
    rows: Any = np.prod(y["ne"][1 : 3 if node.op == "MUL_MAT_ID" else 2])
    if node.op == "MUL_MAT" and left["ne"][2:] == [1, 1]:
        rows = np.prod(y["ne"][1:])
    return Product(
        node.name, node.op, node.step, node.weights, str(left["type"]), str(left["buffer"]), str(y["buffer"]),
        int(rows), int(left["ne"][1]), int(left["ne"][0]),
    )  # fmt: skip


def _sample(part: Part) -> Operands:
    """A few elements of a right product, for a later ``diagnose()``."""
    rows, columns = evenly_spaced(len(part.x), SAMPLE[0]), evenly_spaced(part.q.shape[0], SAMPLE[1])
    return _cut(part, rows, columns)


def _worst_operands(crop: Crop) -> Operands:
    """All of a wrong product, or where it is too large its worst rows and columns among others."""
    part = crop.part
    if part.y.size * part.q.shape[1] <= WHOLE:
        return Operands(np.ascontiguousarray(part.y), part.x.copy(), part.q)
    rows = np.union1d(crop.rows, evenly_spaced(len(part.x), ROWS))
    columns = np.union1d(crop.columns, evenly_spaced(part.q.shape[0], COLUMNS))
    return _cut(part, rows, columns)


def _cut(part: Part, rows: Any, columns: Any) -> Operands:
    y = np.ascontiguousarray(part.y[np.ix_(rows, columns)])
    return Operands(y, part.x[rows].copy(), part.q[columns], rows, columns)


# --- a node that is no product, by its oracle -----------------------------------------------------


def record_node(
    node: Node, product: Product, model: Mapping[str, QuantArray], how: str = "all",
    habits: Habits | None = None,
) -> Product:  # fmt: skip
    """The record of a node with its verdict: every element against its oracle's bound."""
    these = operands(node, model)
    rows = suspects(node) if node.op == "FLASH_ATTN_EXT" and how == "all" else None
    if rows is not None:
        these = with_rows(these, rows)
    if not these.y.size:
        return replace(product, text="there is nothing to judge: it has no elements")
    on = product.computed_in
    on_cpu = on.startswith("CPU") or on.endswith("_Host") or not on
    verdict = judge_node(these, quick=not on_cpu, habits=habits)
    judgement = Judgement(verdict.how, verdict.distance, verdict.distance, verdict.out)
    product = replace(product, judgement=judgement, worst=verdict.worst, judged=verdict.judged)
    if not verdict.out:
        return product
    try:
        diagnosis = diagnosed(these, quick=not on_cpu, verdict=verdict)
    except Exception as error:  # it is wrong all the same
        diagnosis = Diagnosis(False, "unknown", 0.5, f"It was not diagnosed: {reason(error)}")
    text = f"{sentence(verdict)}\n{diagnosis.text}"
    return replace(product, verdict="wrong", fault=diagnosis.fault, text=text, diagnosis=diagnosis)


def facts_of(node: Node) -> Product:
    """The facts about a node that is no product before it is judged."""
    y = node.tensors["y"]
    first = node.tensors.get("k") or node.tensors.get("s0") or y
    heads = int(y["ne"][1]) if node.op == "FLASH_ATTN_EXT" else 1
    rows = int(y["ne"][2]) if node.op == "FLASH_ATTN_EXT" else int(np.prod(y["ne"][1:]))
    return Product(
        node.name, node.op, node.step, node.weights, str(first["type"]), str(first["buffer"]),
        str(y["buffer"]), rows, int(y["ne"][0]), int(first["ne"][0]), parts=heads,
    )  # fmt: skip


# --- large attention: a quick oracle picks rows that the oracle with a bound judges ---------------
#
# The quick one is compiled, and knows no bound: what kernels round on the way differs by type and device.

Wide = NDArray[np.float64]

SUSPECT_ROWS = 8  # the most suspicious, and as many others, which are judged one by one
LARGE = 1 << 24  # products of q and k from which on some rows are judged


def attend(node: Node) -> Wide:
    """The right result of the node, [streams, M, heads, D] as ggml stores it."""
    q, k, v = (node.floats(part).astype(np.float64) for part in "qkv")
    scale, most, cap = (float(x) for x in np.array(node.words[:3], np.int32).view(np.float32))
    streams, heads, rows, _ = q.shape
    slope, sinks = slopes(heads, most), np.full(heads, -np.inf)
    if "s" in node.tensors:  # a score of its own for each head, which attends to nothing
        sinks = node.floats("s").reshape(-1)[:heads].astype(np.float64)
    mask = node.floats("m")[:, :, :rows].astype(np.float64) if "m" in node.tensors else None
    one_stream = import_module("ggmlq.cpu.attention.oracle").attend
    results = [
        one_stream(
            q[i], k[i * len(k) // streams], v[i * len(v) // streams],
            None if mask is None else mask[i * len(mask) // streams], slope, sinks, scale / (cap or 1), cap,
        )
        for i in range(streams)
    ]  # fmt: skip
    return np.stack(results).swapaxes(1, 2)


def suspects(node: Node) -> NDArray[np.intp] | None:
    """Rows of a large attention that are furthest from a quick oracle, and some others; None: judge all.

    Only the oracle with a bound decides (``ggmlq/reference/nodes/attention.py``), on these rows.
    """
    ne = node.tensors["q"]["ne"]
    if ne[0] * ne[1] * ne[2] * ne[3] * node.tensors["k"]["ne"][1] < LARGE or ne[1] <= 2 * SUSPECT_ROWS:
        return None
    expected = attend(node)
    y = node.strided("y").astype(np.float64).reshape(expected.shape)
    with np.errstate(invalid="ignore", divide="ignore"):
        error = ((y - expected) ** 2).sum(axis=-1) / ((expected**2).sum(axis=-1) + 1e-300)
    error = np.where(np.isnan(expected).any(axis=-1), 0.0, np.where(np.isnan(error), np.inf, error))
    worst = np.argsort(-error.max(axis=(0, 2)), kind="stable")[:SUSPECT_ROWS]
    return np.union1d(worst, evenly_spaced(ne[1], SUSPECT_ROWS))
