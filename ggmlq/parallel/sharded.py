"""``Sharded``: weights in parts on several devices; ``shard`` and ``tensor_parallel`` make it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..arrays.array import QuantArray
from ..arrays.scaled import ScaledArray
from ..arrays.weights import Divided
from ..base import text
from ..base.devices import cuda_module
from ..base.progress import Progress
from ..base.text import short
from ..errors import BlockIndexError, DTypeError, ShapeError
from ..gguf import load
from ..ops import concatenate
from . import parts as cuts
from . import parts as cutting
from .heads import over_parts
from .parts import Spans
from .product import multiply
from .team import Team, canonical, team_of

AXES = {0: 0, 1: 1, -2: 0, -1: 1, "experts": "experts", "heads": "heads", None: None}
NAMES = {0: "rows", 1: "columns", "experts": "experts", "heads": "heads", None: "copies"}
AXES_OF: dict[Any, tuple[tuple[int, ...], str]] = {
    "experts": ((3,), "[E, N, K]"),
    "heads": ((4,), "[B, HK, S, D]"),
}
AT: dict[Any, int] = {0: -2, 1: -1, "experts": 0, "heads": 1}  # axes of an array
SUMS = (None, "nccl", "copies")


def shard(
    q: QuantArray | ScaledArray,
    devices: Any,
    axis: int | str | None = 0,
    *,
    cuts: Sequence[int] | None = None,
    sums: str | None = None,
) -> Sharded:
    """Divide weights among devices; ``x @ s.T``, :func:`ggmlq.linear` and the like then use all of them.

    Each device gets its part only, straight from the memory or the file that q looks at.

    Parameters
    ----------
    q : QuantArray or ScaledArray
        [N, K], experts [E, N, K], or keys or values of attention [B, HK, S, D].
    devices : list
        ``["cuda:0", "cuda:1"]``, ``[0, 1]``, CuPy's devices, or ``["cpu", "cpu"]``, which needs no GPU. One
        device is a list of one; a device that is named twice has two parts.
    axis : 0, 1, "experts", "heads" or None
        0: rows N; each device has some columns of the result. 1: columns K, between blocks; each device has
        a sum of its own, and all of them are added. ``"experts"``: whole experts. ``"heads"``: whole heads of
        keys or values, for :func:`ggmlq.attention`. None: every device has all.
    cuts : sequence of int, optional
        Where it is cut, in elements, without the ends; ``s.cuts`` of another array, so that both fit.
    sums : {"nccl", "copies"}, optional
        How sums over devices are made: by NCCL, or by copies between them and additions in the order of the
        devices. By default the latter on two cards that can read each other's memory, where it is faster, and
        where NCCL is not installed.

    >>> import numpy as np, ggmlq as gq
    >>> q = gq.quantize(np.eye(96, 64, dtype=np.float32), "q8_0")
    >>> s = gq.parallel.shard(q, ["cpu", "cpu", "cpu"])
    >>> s
    <Sharded QuantArray q8_0 (96, 64), rows 32 + 32 + 32 on cpu, cpu, cpu>
    >>> np.array_equal(np.ones(64, np.float32) @ s.T, np.ones(64, np.float32) @ q.T)
    True
    """
    request = f"shard(q, {text.short(devices)}, axis={text.short(axis)})"
    source: Any = q
    if isinstance(source, Sharded):
        raise DTypeError(f'{request}: q is {q!r}, sharded already; pass q.to("cpu"), the whole')
    if not isinstance(q, QuantArray | ScaledArray):
        raise DTypeError(
            f"{request}: q is a {type(q).__name__}; weights are a QuantArray or a ScaledArray; make one with "
            'gq.quantize(w, "q8_0") or gq.quantize_scaled(w, "e4m3", (128, 128))'
        )
    way = checked_axis(request, axis, q.ndim)
    names = canonical(request, devices)
    if sums not in SUMS:
        raise DTypeError(
            f'{request}: sums={text.short(sums)}; they are made by "nccl" or "copies"; leave it out'
        )
    team = team_of(names, sums)
    if way is None:
        return Sharded([q.to(name) for name in names], None, None, team)
    spans = cutting.spans(request, q, len(names), way, cuts)
    pieces = (cutting.piece(q, way, *span) for span in spans)
    return Sharded([part.to(name) for part, name in zip(pieces, names, strict=True)], way, spans, team)


def checked_axis(request: str, axis: Any, ndim: int) -> Any:
    """The axis as 0, 1, "experts", "heads" or None; an error for any other."""
    valid = axis is None or (isinstance(axis, int | str | np.integer) and not isinstance(axis, bool))
    way = AXES.get(axis, "?") if valid else "?"
    if way == "?":
        raise ShapeError(
            f'{request}: axis={text.short(axis)}; it is 0 (rows N), 1 (columns K), "experts" (of [E, N, K]), '
            '"heads" (of [B, HK, S, D]) or None (all of it everywhere); pass one of these'
        )
    fit, need = AXES_OF.get(way, ((2, 3), "[N, K] or [E, N, K]"))
    if way is not None and ndim not in fit:
        raise ShapeError(
            f"{request}: q is {ndim}-D; {NAMES[way]} are those of {need}; pass axis=None to have all of it "
            "on every device, or reshape it"
        )
    return way


class Sharded(Divided):
    """Weights in parts on several devices; :func:`shard` makes it."""

    __slots__ = {  # attributes with their docstrings
        "axis": 'The axis that is cut: 0, 1, "experts" or "heads"; None where every device has all.',
        "parts": "The arrays on the devices, in their order.",
    }

    parts: tuple[Any, ...]
    axis: Any

    def __init__(self, parts: Sequence[Any], axis: Any, spans: Spans | None, team: Team) -> None:
        self.parts = tuple(parts)
        self.axis = axis
        self.spans = spans
        self.team = team
        self.recorded: list[Any] = []  # memory of products in CUDA graphs, which replays use again
        first = self.parts[0]
        shape = list(first.shape)
        if spans is not None:
            shape[AT[axis]] = spans[-1][1]
        self.shape: tuple[int, ...] = tuple(shape)
        self.product = first.product  # type: ignore[misc]
        self.stored, self.decoding = "s.parts", first.decoding  # type: ignore[misc]
        self.unit = first.unit

    # --- what it is ---------------------------------------------------------------------

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of the parts, in order."""
        return self.team.devices

    @property
    def device(self) -> str:
        """All of them, in words: ``"cuda:0 and cuda:1"``."""
        return " and ".join(dict.fromkeys(self.devices))

    @property
    def cuts(self) -> tuple[int, ...]:
        """The cuts in elements, without the ends."""
        return tuple(first for first, _ in self.spans[1:]) if self.spans else ()

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self.parts)

    @property
    def sums(self) -> str:
        """The way in which sums over the devices are made, in words."""
        return self.team.sums

    def facts(self) -> list[tuple[str, object]]:
        return [
            ("parts", ", ".join(map(repr, self.parts))),
            ("shape", self.shape),
            ("cut", f"{NAMES[self.axis]} {self._cut()}"),
            ("bytes", text.size(self.nbytes)),
            ("devices", ", ".join(self.devices)),
        ]

    def _repr_html_(self) -> str:
        return text.html_table((), self.facts(), type(self).__name__)

    def _cut(self) -> str:
        return " + ".join(str(end - first) for first, end in self.spans or ())

    def __repr__(self) -> str:
        first = self.parts[0]
        kind = first.format.name if isinstance(first, QuantArray) else f"{first.code.name}, tile {first.tile}"
        cut = f"{NAMES[self.axis]} {self._cut()}".strip()
        sums = f", sums by {self.sums}" if self.axis in (1, "experts") and len(self.parts) > 1 else ""
        where = ", ".join(self.devices)
        return f"<Sharded {type(first).__name__} {kind} {self.shape}, {cut} on {where}{sums}>"

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        raise BlockIndexError(
            f"s[{text.short(index)}] of {self!r}: it lies on several devices; index one of s.parts, or the "
            'whole, s.to("cpu")'
        )

    def __iter__(self) -> Iterator[Any]:
        raise BlockIndexError(f'iteration over {self!r}: iterate over s.parts, or over s.to("cpu")')

    # --- what it does -------------------------------------------------------------------

    def run(self, operation: str, x: Any, *rest: Any, **options: Any) -> Any:
        if operation == "attention":
            return over_parts(self, x, *rest, **options)
        return multiply(operation, self, x, *rest, **options)

    def to(self, device: str) -> Any:
        """The whole as one array on a device: joined on the host, block by block."""
        if self.axis is None:
            return self.parts[0].to(device)
        return concatenate([part.to("cpu") for part in self.parts], AT[self.axis]).to(device)

    def copy(self) -> Self:
        """A copy with its own parts."""
        return type(self)([part.copy() for part in self.parts], self.axis, self.spans, self.team)

    def dequantize(self, dtype: Any = np.float32, out: Any = None) -> Any:
        """The values as floats on the host."""
        return self.to("cpu").dequantize(dtype, out)

    def drop_prepared(self) -> None:
        """Give back what kernels keep with the parts; see :meth:`ggmlq.QuantArray.drop_prepared`."""
        for part in self.parts:
            part.drop_prepared()
        self.recorded.clear()

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self.to("cpu").__array__(dtype, copy))

    def __reduce__(self) -> tuple[Any, ...]:
        cuts = self.cuts if self.spans else None
        return _again, (self.to("cpu"), list(self.devices), self.axis, cuts)


def _again(whole: Any, devices: list[str], axis: Any, cuts: Any) -> Sharded:
    return shard(whole, devices, axis, cuts=cuts)


# --- a model straight to several devices: each gets its parts of the tensors --------------------
# Parts whose bytes lie together in the file go the way of a whole model, by threads and locked memory
# (gguf/load.py), one device after the other; columns, whose bytes do not, are copied on the host part by
# part.

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
        tensors |= load.load(request, straight, cuda_module("driver.upload").Link(device), progress)
    with Progress(
        sum(plans[name].part(position).nbytes for name in others), f"to {device}", show=progress
    ) as bar:
        for name in others:
            part = plans[name].part(position)
            tensors[name] = part.to(device)
            bar.advance(part.nbytes)
    return tensors
