"""``Product``: the record of one judged node of a trace, which is printed, written as JSON and drawn."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..arrays.array import QuantArray
from ..check.judge import Judgement, for_json
from ..faults import Diagnosis, diagnose
from ..llama.program import Node

Verdict = Literal["ok", "wrong", "not judged", "died"]


@dataclass(frozen=True)
class Operands:
    """The worst product of a node: all of it, or rows and columns that show its error."""

    y: NDArray[np.float32]
    x: NDArray[np.float32]
    q: QuantArray
    rows: NDArray[np.intp] | None = None  # None: all
    columns: NDArray[np.intp] | None = None


@dataclass(frozen=True)
class Product:
    """A node of the graph (of MUL_MAT_ID with all its experts, of attention with all heads).

    Attributes
    ----------
    node, op : str
        The node's name and operation as ggml says them.
    step : int
        0 for the prompt, then one for each generated token.
    layer : int or None
        From the name of the weights or the node.
    weights, type, buffer : str
        The tensor that is multiplied with, its type, and where it lies.
    computed_in : str
        The buffer of the result, which says who computed it.
    m, n, k, parts : int
        Rows of activations, rows of weights, their length; experts or heads in the node. Of other nodes
        rows and columns of the result, and columns of the first source.
    judgement : Judgement or None
        ``.ok``, ``.arithmetic``, ``.distance``, ``.from_exact``, ``.out``; None where it is not judged.
    worst : dict
        The element nearest to its limit or furthest beyond: part, row, column, got, wanted, error, limit.
    verdict : str
        ``"ok"``, ``"wrong"``, ``"not judged"`` or ``"died"``.
    group : tuple of str
        Names of the nodes that were judged as one, with ``--fused``; empty for a single node.
    fault, text : str
        What is wrong by name and in words; for what is not judged, why.
    """

    node: str
    op: str
    step: int
    weights: str
    type: str
    buffer: str
    computed_in: str
    m: int
    n: int
    k: int
    parts: int = 1
    judgement: Judgement | None = None
    worst: dict[str, Any] = field(default_factory=dict)
    judged: int = 0  # elements that were judged one by one; random sums cover all
    verdict: Verdict = "ok"
    fault: str = ""
    text: str = ""
    seconds: float = math.nan  # of judging
    saved: str = ""
    group: tuple[str, ...] = ()  # names of nodes that were judged as one; the last is the node's
    again: bool = False  # of a further run: of a node that differed, or a group that a bisection named
    captured: Node | None = field(default=None, repr=False, compare=False)  # a wrong node, to be saved
    line: str | None = None  # of a wrong node, for test-backend-ops --test-file
    operands: Operands | None = field(default=None, repr=False, compare=False)
    diagnosis: Diagnosis | None = field(default=None, repr=False, compare=False)

    @property
    def layer(self) -> int | None:
        """The number of the model's layer; None for a node outside of all layers."""
        match = re.search(r"(?:\bblk\.|^cache_[kv]_l)(\d+)\b", self.weights)
        match = match or re.search(r"-(\d+)(?: |$)", self.node)
        return int(match[1]) if match else None

    @property
    def ok(self) -> bool:
        """True where the product is right, as far as it was judged."""
        return self.verdict in ("ok", "not judged")

    @property
    def arithmetic(self) -> str:
        """The arithmetic in which it was made; empty where it was not judged."""
        return self.judgement.arithmetic if self.judgement else ""

    def diagnose(self) -> Diagnosis:
        """The diagnosis of the product, which may be that it is right."""
        if self.diagnosis is not None:
            return self.diagnosis
        if self.operands is None:
            judged = f"all {self.judged} elements of {self.op} that were judged lie within their bounds"
            text = self.text or (f"{judged}." if self.verdict == "ok" else "it was not diagnosed.")
            fault = "correct" if self.verdict == "ok" else "unknown"
            return Diagnosis(self.verdict == "ok", fault, 0.5, text)
        with np.errstate(all="ignore"):
            return diagnose(self.operands.y, self.operands.x, self.operands.q)

    def without_arrays(self) -> Product:
        """The product without its arrays."""
        return replace(self, operands=None, captured=None)

    def facts(self) -> dict[str, Any]:
        """The record as JSON has it."""
        judgement, worst = self.judgement, self.worst
        return {
            "node": self.node, "op": self.op, "step": self.step, "layer": self.layer, "weights": self.weights,
            "type": self.type, "buffer": self.buffer, "computed_in": self.computed_in,
            "m": self.m, "n": self.n, "k": self.k, "parts": self.parts,
            "arithmetic": self.arithmetic or None,
            "nmse": for_json(judgement.distance) if judgement else None,
            "nmse_exact": for_json(judgement.from_exact) if judgement else None,
            "out_of_bound": judgement.out if judgement else None,
            "error": for_json(worst.get("error")), "limit": for_json(worst.get("limit")),
            "worst": {key: for_json(v) if isinstance(v, float) else v for key, v in worst.items()} or None,
            "group": list(self.group) or None, "again": self.again, "judged": self.judged,
            "verdict": self.verdict, "fault": self.fault or None, "text": self.text or None,
            "seconds": for_json(self.seconds), "saved": self.saved or None,
        }  # fmt: skip
