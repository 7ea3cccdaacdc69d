"""The layer of a tensor and its role there, both read from its name.

``blk.3.ffn_up.weight`` is ``ffn_up`` of layer 3 of the stack ``blk``; ``v.blk.3.ln1.bias`` is ``ln1.bias`` of
layer 3 of the stack ``v.blk``. Names without a number belong to no layer.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LAYER = re.compile(r"(?P<stack>(?:^|.*?\.)[^.\d][^.]*)\.(?P<layer>\d{1,9})\.(?P<role>.+)", re.ASCII)
PLAIN = ".weight"  # not said of a role


class Place(NamedTuple):
    """The place of a tensor in a model."""

    stack: str  # "" outside of all layers
    layer: int | None
    role: str


def place_of(name: str) -> Place:
    """The place (stack, layer, role) of a tensor, from its name."""
    match = LAYER.fullmatch(name)
    if match is None:
        return Place("", None, name.removesuffix(PLAIN))
    return Place(match["stack"], int(match["layer"]), match["role"].removesuffix(PLAIN))
