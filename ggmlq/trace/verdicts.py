"""From a captured node to its record: judge, and where it is wrong find out what."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..arrays.array import QuantArray
from ..base.indices import evenly_spaced
from ..errors import GGMLQError
from ..faults import Diagnosis, diagnose
from ..faults.blocks.products import looks_half
from .attention import judge_attention
from .experts import of_experts
from .judging import Crop, Verdict, judge_parts
from .operands import Node, Part, parts
from .product import Operands, Product
from .tracer import ATTENTION

NEAR = 1e-2  # from an arithmetic: further than any other arithmetic is
WHOLE = 1 << 28  # M·N·K up to which the diagnosis gets all of a wrong product
DIAGNOSED = 4  # wrong products of a kind that are diagnosed; where they agree the rest is like them
KEPT = (4, 32)  # rows and columns kept of a right product
ROWS, COLUMNS = 32, 256  # kept of a wrong one that is too large


class Judge:
    """Judges the nodes of one run, and remembers which kinds of wrong ones it has diagnosed."""

    def __init__(self, model: Mapping[str, QuantArray], how: str) -> None:
        self._model, self._how = model, how
        self._diagnosed: dict[tuple[str, str, bool], list[Product]] = {}

    def record(self, node: Node) -> Product:
        """One node with its judgement."""
        start = time.perf_counter()
        made = _facts(node)
        try:
            with np.errstate(all="ignore"):  # overflowing scales, and results that are wrong, are data
                found = (
                    self._of_attention(node, made) if node.op == ATTENTION else self._of_products(node, made)
                )
        except GGMLQError as error:
            found = replace(made, verdict="not judged", text=str(error))
        return replace(found, seconds=time.perf_counter() - start)

    def _of_attention(self, node: Node, made: Product) -> Product:
        judgement, worst, rows = judge_attention(node)
        said = f"judged by a loose limit, an NMSE of {judgement.distance:.1e} in the worst row of a head"
        verdict, fault = ("ok", "") if judgement.ok else ("wrong", "unknown")
        return replace(made, judgement=judgement, worst=worst, judged=rows * made.n, verdict=verdict,  # type: ignore[arg-type]
                       fault=fault, text=said)  # fmt: skip

    def _of_products(self, node: Node, made: Product) -> Product:
        all_parts = list(parts(node, self._model))
        if not all_parts or not all_parts[0].y.size:
            return replace(made, text="there is nothing to judge: it has no elements")
        rows = int(node.tensors["x"]["ne"][2 if node.op == "MUL_MAT_ID" else 1])
        # Where a result lies says who computed it; memory of a host that a device can reach is a CPU's too.
        on = made.computed_in
        backend = "CPU" if on.startswith("CPU") or on.endswith("_Host") or not on else on
        found = judge_parts(all_parts, backend, rows, self._how)
        made = replace(
            made, judgement=found.judgement, worst=found.worst, judged=found.judged, parts=len(all_parts)
        )
        if found.judgement.ok:
            return replace(made, operands=_some(found.crop.part))
        kept = _kept(found.crop)
        made = replace(made, verdict="wrong", operands=kept)
        kind = (made.type, made.computed_in, made.m == 1)
        before = self._diagnosed.setdefault(kind, [])
        if len(before) >= DIAGNOSED and len({p.fault for p in before}) == 1 and node.op != "MUL_MAT_ID":
            text = (
                f"like {before[-1].node} and others of its kind; not diagnosed itself, p.diagnose() does it"
            )
            return replace(made, fault=before[-1].fault, text=f"{_worst(found)} {text}.")
        told = self._mixed_up(all_parts, found, node) or _diagnosed(kept, backend == "CPU")
        made = _told(made, told, found)
        if made.verdict == "wrong":
            before.append(made.without_arrays())
        return made

    def _mixed_up(self, all_parts: list[Part], found: Verdict, node: Node) -> Diagnosis | None:
        if node.op != "MUL_MAT_ID" or node.weights not in self._model:
            return None
        w = self._model[node.weights]
        return of_experts(all_parts, [found.crop.part], [w[i] for i in range(w.shape[0])])


def _diagnosed(kept: Operands, on_cpu: bool) -> Diagnosis:
    """The verdict with the doctor's diagnosis; operands that it refuses leave it as it is.

    He takes a result of halves for one that is stored so, which is right on a GPU; a CPU's is float32.
    """
    if on_cpu and looks_half(kept.y.astype(np.float64)):
        text = "every element of the result is exactly a half: its sum, or the result itself, was kept in one"
        return Diagnosis(False, "f16-accumulation", 0.9, f"f16-accumulation: {text}.")
    try:
        return diagnose(kept.y, kept.x, kept.q)
    except GGMLQError as error:
        return Diagnosis(False, "unknown", 0.5, f"It was not diagnosed: {error}")


def _told(made: Product, told: Diagnosis, found: Verdict) -> Product:
    """A diagnosis may know an arithmetic that the judge did not try: then a product that is near is right."""
    if told.ok and found.judgement.distance < NEAR and made.op != "MUL_MAT_ID":
        judgement = replace(found.judgement, arithmetic=told.arithmetic or found.judgement.arithmetic, out=0)
        return replace(made, verdict="ok", judgement=judgement, text=told.text, diagnosis=told)
    said = _worst(found)
    fault = "unknown" if told.ok else told.fault
    text = said if told.ok else f"{said}\n{told.text}"
    return replace(made, fault=fault, text=text, diagnosis=None if told.ok else told)


def _worst(found: Verdict) -> str:
    """The judgement in a sentence."""
    w = found.worst
    where = f"{w['part']}: " if w["part"] else ""
    return (
        f"{found.judgement.out} of {found.judged} elements that were judged are out of bound; the worst, "
        f"{where}row {w['row']}, column {w['column']}, is {w['got']:.6g}, not {w['wanted']:.6g} ± "
        f"{w['limit']:.1e}."
    )


def _facts(node: Node) -> Product:
    """The facts about a node before it is judged."""
    y = node.tensors["y"]
    left = node.tensors["w" if "w" in node.tensors else "k"]
    rows: Any = np.prod(y["ne"][1 : 3 if node.op == "MUL_MAT_ID" else 2])
    if node.op == "MUL_MAT" and left["ne"][2:] == [1, 1]:
        rows = np.prod(y["ne"][1:])
    if node.op == ATTENTION:
        rows = y["ne"][2]
    n = left["ne"][0] if node.op == ATTENTION else left["ne"][1]
    return Product(
        node.name, node.op, node.step, node.weights, str(left["type"]), str(left["buffer"]), str(y["buffer"]),
        int(rows), int(n), int(left["ne"][0]), parts=int(y["ne"][1]) if node.op == ATTENTION else 1,
    )  # fmt: skip


def _some(part: Part) -> Operands:
    """A few elements of a right product, for whoever asks it for a diagnosis."""
    rows, columns = evenly_spaced(len(part.x), KEPT[0]), evenly_spaced(part.q.shape[0], KEPT[1])
    return _cut(part, rows, columns)


def _kept(crop: Crop) -> Operands:
    """All of a wrong product, or where it is too large its worst rows and columns among others."""
    part = crop.part
    if part.y.size * part.q.shape[1] <= WHOLE:
        return Operands(np.ascontiguousarray(part.y), part.x.copy(), part.q)
    rows = np.union1d(crop.rows, evenly_spaced(len(part.x), ROWS))
    columns = np.union1d(crop.columns, evenly_spaced(part.q.shape[0], COLUMNS))
    return _cut(part, rows, columns)


def _cut(part: Part, rows: Any, columns: Any) -> Operands:
    return Operands(
        np.ascontiguousarray(part.y[np.ix_(rows, columns)]),
        part.x[rows].copy(),
        part.q[columns],
        rows,
        columns,
    )
