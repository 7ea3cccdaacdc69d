"""Load a model straight to several devices: each gets its parts of the tensors.

Parts whose bytes lie together in the file go the way of a whole model, by threads and locked memory
(gguf/load.py), one device after the other; columns, whose bytes do not, are copied on the host part by part.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..arrays.array import QuantArray
from ..base.devices import cuda_module
from ..base.progress import Progress
from ..base.text import short
from ..errors import ShapeError
from ..gguf import load
from . import parts as cuts
from .parts import Spans
from .sharded import Sharded, checked_axis
from .team import canonical, team_of

# Embeddings, whose rows are looked up, and scales that lie beside codes in tensors of their own.
WHOLE = re.compile(
    r"(.*\.)?((\w*token_embd\w*|position_embd|embed_tokens\w*|w[tp]e)\.weight|\w*_scale(_inv)?)"
)
ROUTERS = re.compile(r"(.*\.)?(ffn_gate_inp\w*|mlp\.gate|router|block_sparse_moe\.gate)\.weight")
COLUMNS = re.compile(r"(.*\.)?(attn_output|ffn_down\w*|ssm_out|o_proj|down_proj|out_proj|w2)\.weight")


def tensor_parallel(name: str, array: Any) -> int | None:
    """The axis of a tensor in a model whose blocks are divided as usual, for ``f.to(devices, axis=…)``.

    The second matrix of attention and of feed-forward blocks is cut by columns, the others by rows: so
    results of the first are operands of the second, and each block needs one sum. Embeddings, norms and
    routers are copied to each device. Names are those of GGUF and of Hugging Face.

    >>> import numpy as np, ggmlq as gq
    >>> w = gq.quantize(np.ones((64, 64), np.float32), "q8_0")
    >>> [gq.parallel.tensor_parallel(f"blk.0.{n}.weight", w) for n in ("ffn_up", "ffn_down", "ffn_gate_inp")]
    [0, 1, None]
    """
    if len(array.shape) < 2 or WHOLE.fullmatch(name) or ROUTERS.fullmatch(name):
        return None
    return 1 if COLUMNS.fullmatch(name) else 0


Axis = int | str | Callable[[str, Any], Any] | None


class _Plan:
    """The axis and the cuts of one tensor."""

    def __init__(self, request: str, name: str, array: Any, axis: Any, count: int) -> None:
        self.array = array
        self.axis, self.spans = _cut(f"{request}[{short(name)}]", name, array, axis, count)

    def part(self, position: int) -> Any:
        if self.spans is None:
            return self.array
        return cuts.piece(self.array, self.axis, *self.spans[position])


def _cut(request: str, name: str, array: Any, axis: Axis, count: int) -> tuple[Any, Spans | None]:
    if callable(axis):
        way = checked_axis(request, axis(name, array), array.ndim)
        return way, None if way is None else cuts.spans(request, array, count, way)
    try:
        way = checked_axis(request, axis, array.ndim)
        if way is not None and not WHOLE.fullmatch(name):
            return way, cuts.spans(request, array, count, way)
    except ShapeError:
        checked_axis(
            request, axis, 3
        )  # an unknown axis is an error; a known one that this array lacks is not
    return None, None


def to_several(
    request: str, tensors: Mapping[str, Any], devices: Any, axis: Axis, progress: bool | None
) -> dict[str, Sharded]:
    """Arrays of an open file in parts on devices; plain NumPy arrays, which have no kernels, are left out."""
    names = canonical(request, devices)
    team = team_of(names, None)
    plans = {
        name: _Plan(request, name, array, axis, len(names))
        for name, array in tensors.items()
        if not isinstance(array, np.ndarray)
    }
    parts = [_on_device(request, plans, position, name, progress) for position, name in enumerate(names)]
    return {
        name: Sharded([there[name] for there in parts], plan.axis, plan.spans, team)
        for name, plan in plans.items()
    }


def _on_device(
    request: str, plans: Mapping[str, _Plan], position: int, device: str, progress: bool | None
) -> dict[str, Any]:
    """The parts of one device."""
    if device == "cpu":
        return {name: plan.part(position) for name, plan in plans.items()}
    straight, others = {}, []
    for name, plan in plans.items():
        part = plan.part(position)
        if isinstance(part, QuantArray) and part.memory.flags.c_contiguous:
            straight[name] = part
        else:
            others.append(name)
    tensors: dict[str, Any] = {}
    if straight:
        tensors |= load.load(request, straight, cuda_module("machine.upload").Link(device), progress)
    with Progress(
        sum(plans[name].part(position).nbytes for name in others), f"to {device}", show=progress
    ) as bar:
        for name in others:
            part = plans[name].part(position)
            tensors[name] = part.to(device)
            bar.advance(part.nbytes)
    return tensors
