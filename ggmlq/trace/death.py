"""The error text of a trace in which the library died: the node, its operands, and what to try next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..llama.crash import cause_of
from ..llama.structs import HIDDEN

LAST_LINES = 3  # last lines of what a library printed

Tensor = dict[str, Any]  # as the flight recorder describes it


def sentence(
    doing: str,
    how: str,
    pending: Sequence[Tensor],
    step: int,
    last_words: str,
    libraries: Sequence[Path] = (),
) -> str:
    """The error in words. ``pending``: the nodes that were being computed; none where no graph ran yet."""
    if not pending:
        where = "while it loaded the model or made its context"
    elif len(pending) == 1:
        where = f"while it computed {described(pending[0])} (step {step})"
    else:
        first, last = described(pending[0]), described(pending[-1])
        where = f"within {len(pending)} nodes, from {first} to {last} (step {step})"
    quoted = f"; it said: {last_words}" if last_words else ""
    cause = cause_of(how, _special(pending), libraries)
    way = _way_on(pending, how)
    return f"{doing}: the library {how} {where}{quoted}; {f'{cause}; ' if cause else ''}{way}"


def described(node: Tensor) -> str:
    """``Qcur-0 = MUL_MAT, f32 [256, 17] of blk.0.attn_q.weight q4_K [256, 256] in AMX``."""
    of = ", ".join(
        f"{s['name']} {s['type']} {_lengths(s)} in {s['buffer'] or 'no buffer'}" for s in node["of"]
    )
    return f"{node['name']} = {node['op']}, {node['type']} {_lengths(node)}" + (f" of {of}" if of else "")


def _lengths(tensor: Tensor) -> list[int]:
    """The lengths of a tensor, without axes of 1 at the end."""
    ne = list(tensor["ne"])
    while len(ne) > 1 and ne[-1] == 1:
        del ne[-1]
    return ne


def _special(pending: Sequence[Tensor]) -> list[str]:
    """The repacked layouts that hold operands of these nodes."""
    buffers = dict.fromkeys(s["buffer"] for node in pending for s in node["of"])
    return [b for b in buffers if any(word in b.upper() for word in HIDDEN)]


def _way_on(pending: Sequence[Tensor], how: str) -> str:
    if special := _special(pending):
        return f"run it again with --without {','.join(special)}, which keeps weights in the plain layout"
    if "no answer" in how:
        return "a node that takes long needs a larger --timeout; one that hangs, another build"
    if pending:
        return "try `ggmlq check` on this library for that type and shape, or another build"
    return "try `ggmlq validate` on the model, or another build"


def end_of(tail: str) -> str:
    """The last lines of the output, joined to one."""
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    return " / ".join(lines[-LAST_LINES:])
