"""A trace judges a node that is no product by its oracle, and makes its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..arrays.array import QuantArray
from ..check.attention import Habits
from ..check.judge import Judgement
from ..check.nodes import diagnosed, judge_node, operands, sentence, with_rows
from ..check.unjudged import reason
from ..faults import Diagnosis
from ..llama.captured import Node
from .attention import suspects
from .product import Product


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
