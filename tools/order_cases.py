"""Measure which cases of ``ggmlq check --ops`` catch which mistakes, and write their order for ``--budget``.

    python tools/order_cases.py [LIB]

writes ggmlq/check/order.json. A case runs once on a libggml, for the strides of its operands; the mistakes
are the doctor's imitations, applied to the oracle, and traits that bugs of ggml depended on.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ggmlq.check import order
from ggmlq.check.nodes import ATTENTION, operands, with_params
from ggmlq.check.opcases import CASES
from ggmlq.check.ops import OpOutcome, _features, traits
from ggmlq.check.sketch import OpCase
from ggmlq.errors import GGMLQError
from ggmlq.faults.imitations import imitations
from ggmlq.llama import Bridge
from ggmlq.reference.nodes import node

VECTORS = (4, 8, 16, 32, 64)
OUT = Path(order.__file__).with_name("order.json")


def caught(bridge: Bridge, case: OpCase) -> set[str]:
    """The mistakes that a case would show."""
    try:
        ran = bridge.node(case.program, case.arrays())
        these = operands(ran.node)
        if these.op == ATTENTION:
            these = with_params(these, {"arithmetic": "f32"})
        right = node(these.op, these.inputs, these.params)
    except GGMLQError:
        return set()
    facts = traits(ran.node, 1)
    things = {f"trait {text}" for text in _features(OpOutcome(case.op, str(case), 1, "ok", traits=facts))}
    length, *axes = ran.node.tensors["y"]["ne"]
    things |= {f"tail of {v}" for v in VECTORS if length % v} | {f"below {v}" for v in VECTORS if length < v}
    things |= {f"axis {i + 1}" for i, n in enumerate(axes) if n > 1}
    things |= {"over a source"} if case.program.over is not None else set()
    return things | set(_imitated(these, right))


def _imitated(these, right) -> Iterator[str]:
    numbers = Counter[str]()
    for one in imitations(these.op, these.inputs, these.params):
        numbers[one.fault] += 1
        try:
            other = node(one.op, one.inputs, one.params)
        except (GGMLQError, ValueError, IndexError, KeyError):
            continue
        shows = other.value.shape != right.value.shape or bool(right.wrong(other.value).any())
        if shows:
            yield f"{one.fault} {numbers[one.fault]}"


def cover(catches: dict[str, set[str]]) -> list[tuple[str, int]]:
    """Cases with what each catches beside those before it, the largest gain first."""
    left, chosen = dict(catches), []
    while left:
        best = max(left, key=lambda name: len(left[name]))
        new = left.pop(best)
        if not new:
            break
        chosen.append((best, len(new)))
        left = {name: things - new for name, things in left.items()}
    return chosen


def main() -> None:
    table = {}
    with Bridge(sys.argv[1] if len(sys.argv) > 1 else None, timeout=60, sleeps=True) as bridge:
        for op in sorted(CASES):
            with np.errstate(all="ignore"):
                table[op] = cover({str(case): caught(bridge, case) for case in CASES[op](0)})
            print(op, len(table[op]), sum(gain for _, gain in table[op]), flush=True)
    lines = ",\n".join(f" {json.dumps(op)}: {json.dumps(cases)}" for op, cases in table.items())
    OUT.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
