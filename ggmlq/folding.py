"""Tensors of equal layers in one line: ``blk.{0-31}.ffn_up.weight``."""

from __future__ import annotations

import re
from typing import Any

LAYER = re.compile(r"^(.*?\.)(\d+)(\..*)$", re.DOTALL)
RUNS = 4  # of layers that a name shows


def folded(tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Facts of tensors, with those that differ in the number of their layer alone as one.

    Each keeps type and shape and gets ``tensors``, how many it stands for, and ``bytes`` of all of them.
    """
    groups: dict[Any, list[tuple[int, dict[str, Any]]]] = {}
    for position, fact in enumerate(tensors):
        found = LAYER.match(fact["name"])
        if found is None or str(int(found[2])) != found[2]:  # "01" is no number of a layer
            groups[position] = [(-1, fact)]
            continue
        kind = (found[1], found[3], fact["type"], tuple(fact["shape"]))
        groups.setdefault(kind, []).append((int(found[2]), fact))
    return [_one(key, members) for key, members in groups.items()]


def _one(key: Any, members: list[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    first = members[0][1]
    count = {"tensors": len(members), "bytes": sum(fact["bytes"] for _, fact in members)}
    if len(members) == 1:
        return first | count
    return first | count | {"name": f"{key[0]}{{{layers([layer for layer, _ in members])}}}{key[1]}"}


def layers(numbers: list[int]) -> str:
    """``0-3,8`` of [0, 1, 2, 3, 8]; many runs are cut."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    said = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    return ",".join(said if len(said) <= RUNS else [*said[: RUNS - 1], "…", said[-1]])
