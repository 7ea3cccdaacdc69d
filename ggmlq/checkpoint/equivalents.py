"""Names of one tensor in a checkpoint and in GGUF, for the error about a name that a file lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .families import BLOCK, FAMILIES, GATE_AND_UP, LAYER, OUTER, STACKED_DOWN

STACKED = {GATE_AND_UP: ("ffn_gate_exps", "ffn_up_exps"), STACKED_DOWN: ("ffn_down_exps",)}


def equivalent_names(name: object) -> Iterator[str]:
    """The names in GGUF of a tensor in a checkpoint, and the reverse, in all families."""
    parts = re.fullmatch(r"(.+)\.(weight|bias)", name) if isinstance(name, str) else None
    if parts is None:
        return
    stem, end = parts[1], parts[2]
    for there, here in OUTER.items():
        if stem in (there, here):
            yield f"{here if stem == there else there}.{end}"
    if match := re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem):
        bare = re.sub(r"\.experts\.\d+\.", ".experts.{e}.", match[2])
        yield from (f"{BLOCK.format(n=match[1])}{here}.{end}" for there, here in _table() if there == bare)
    elif match := re.fullmatch(r"blk\.(\d+)\.(.+)", stem):
        layer = LAYER.format(n=match[1])
        yield from (
            f"{layer}{there}.{end}".replace("{e}", "0") for there, here in _table() if here == match[2]
        )


def _table() -> list[tuple[str, str]]:
    """All pairs of stems within a layer, of every family."""
    pairs = [*((there, here) for there, several in STACKED.items() for here in several)]
    for family in FAMILIES.values():
        pairs += [*family.layer.items(), *family.experts.items()]
    return list(dict.fromkeys(pairs))
