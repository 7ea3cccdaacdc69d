"""Judges a group of nodes as one: its last result, from what the group read.

Each member's oracle carries the errors of the member before on into its bound. A product is a member too, in
each arithmetic that its kernel may have; the first in which the result fits is that of the kernel. Of a large
product some columns are judged. The order of experts that a group of routing gives is judged by the values
that it orders, and what follows is judged by that order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import reference
from ..arrays.array import QuantArray
from ..base.indices import evenly_spaced
from ..check.beyond import OTHER, is_nearer
from ..check.judge import Judgement, candidates, measure
from ..check.nodes import NodeVerdict, compared, sentence
from ..errors import UnsupportedError
from ..faults import Diagnosis
from ..llama.program import DTYPES, Node, original, source_name
from ..reference.nodes import Number, Result, freedoms, named_words
from .fusion import ELEMENTWISE, PLAIN, PRODUCTS, ROUTES, Group
from .judging import in_blocks, parts
from .product import Product
from .tracer import FEW
from .tracer import LARGE as SAMPLED

LARGE = 1 << 24  # elements of weights beyond which some columns of a product are judged
COLUMNS = 256
NORMS = ("RMS_NORM", "NORM", "L2_NORM")
FAULT = "fused-kernel"


@dataclass(frozen=True)
class Part:
    """Some indices of one of NumPy's axes of a result, and of what it is made of."""

    axis: int
    length: int
    picks: NDArray[np.intp]

    def cut(self, array: Any) -> Any:
        """These indices of an operand; all of one that is repeated along the axis."""
        axis = self.axis - 4 + array.ndim
        return array.take(self.picks, axis) if array.shape[axis] == self.length else array


@dataclass
class _Evaluation:
    """One evaluation of a group: a value for each member, and the judgement of each order of experts."""

    group: Group
    model: Mapping[str, QuantArray]
    arithmetic: str
    part: Part | None  # of a large result that is judged; None: all
    left_out: int = -1  # a member that passes its source on, to see whether a kernel does so
    values: list[Any] = field(default_factory=list)
    orders: list[NodeVerdict] = field(default_factory=list)
    loose: bool = False

    @property
    def has_nan(self) -> bool:
        """True where a tensor of numbers that the group reads holds NaN."""
        kinds = {name: facts["type"] for name, facts in self.group.tensors.items() if name[0] == "e"}
        read = [name for name, kind in kinds.items() if kind in PLAIN and name in self.group.arrays]
        return any(bool(np.isnan(self.group.floats(name)).any()) for name in read)

    def run(self) -> Result:
        """The result of the last member."""
        for number, member in enumerate(self.group.members):
            if number == self.left_out:
                value = next(self._source(s) for s in member["sources"] if isinstance(s, dict))
                last = Result(value.value, value.errors())
            elif member["op"] in PRODUCTS:
                value = self._product(number, member)
                last = Result(value.value, value.errors())
            elif member["op"] in ROUTES:
                value = self._order(number, member)
                last = Result(value, np.zeros(value.shape))
            else:
                last = self._node(member)
                value = Number(last.value, last.bound)
            self.values.append(value)
        return last

    def _source(self, source: Any) -> Any:
        if source is None:
            return None
        if isinstance(source, str):
            facts = self.group.tensors[source]
            if source not in self.group.arrays and original(facts["name"]) in self.model:
                return in_blocks(self.model, original(facts["name"]))
            return self._cut(self.group.operand(source))
        value, maker = self.values[source["member"]], self.group.members[source["member"]]["facts"]
        shape = tuple(source["ne"][::-1])
        if self.part is not None:  # such groups have no views but of all elements
            return value
        size = np.dtype(DTYPES[maker["type"]]).itemsize
        index = np.full(shape, source["offset"] // size)
        for axis, (n, step) in enumerate(zip(shape, source["nb"][::-1], strict=True)):
            index += (np.arange(n) * (step // size)).reshape((-1,) + (1,) * (3 - axis))
        if isinstance(value, Number):
            return value.map(lambda v: v.reshape(-1)[index])
        return value.reshape(-1)[index]

    def _cut(self, array: Any) -> Any:
        """The part of an operand that is judged."""
        return array if self.part is None else self.part.cut(array)

    def _node(self, member: Mapping[str, Any]) -> Result:
        params = named_words(member["op"], np.array(member["words"], np.int32))
        shape = tuple(member["facts"]["ne"][::-1])
        params |= {"type": member["facts"]["type"], "shape": shape}
        return reference.node(member["op"], [self._source(s) for s in member["sources"]], params)

    def _product(self, number: int, member: Mapping[str, Any]) -> Number:
        node = self._as_node(member)
        every = list(parts(node, self.model))
        width = member["facts"]["ne"][0] if self.part is None else len(self.part.picks)
        shape = (*member["facts"]["ne"][:0:-1], width)
        value, limit = np.zeros((2, int(np.prod(shape[:-1])), width))
        start = 0
        for part in every:
            q = part.q if self.part is None else part.q[self.part.picks]
            these = measure(np.zeros((len(part.x), width)), part.x, q, self.arithmetic)
            rows = np.arange(start, start + len(part.x)) if part.rows is None else part.rows
            value[rows], limit[rows] = these.expected, these.limit
            self.loose |= these.loose
            start += len(part.x)
        return Number(value.reshape(shape), limit.reshape(shape))

    def _as_node(self, member: Mapping[str, Any]) -> Node:
        """A product of the group as a node of its own; its result is none that could be read."""
        y = dict(member["facts"])
        tensors, arrays = {"y": y}, {"y": np.zeros(int(y["nb"][3] * y["ne"][3]), np.uint8)}
        for i, source in enumerate(member["sources"]):
            name = source_name(member["op"], i)
            if not isinstance(source, str):
                raise UnsupportedError(
                    f"{y['name']}: a product of what its own group made is not judged in it"
                )
            tensors[name] = self.group.tensors[source]
            if source in self.group.arrays:
                arrays[name] = self.group.arrays[source]
        return Node(member["op"], self.group.step, tensors, arrays)

    def _order(self, number: int, member: Mapping[str, Any]) -> NDArray[Any]:
        """The order that the library wrote, judged by the values that it orders."""
        last = number == len(self.group.members) - 1
        order: NDArray[Any] = np.array(self.group.strided("y" if last else f"o{number}"))
        values = self._source(member["sources"][0])
        used = self._columns_used(number, member)
        self.orders.append(_judged_order(order[..., :used], values, member["op"]))
        inside: NDArray[Any] = np.clip(order, 0, values.shape[-1] - 1)
        return inside

    def _columns_used(self, number: int, member: Mapping[str, Any]) -> int:
        """The number of places of each row that the group reads: a kernel of routing writes no others."""
        views = [
            source["ne"] for m in self.group.members for source in m["sources"]
            if isinstance(source, dict) and source["member"] == number
        ]  # fmt: skip
        rows = int(np.prod(member["facts"]["ne"][1:]))
        return min((int(np.prod(ne)) // rows for ne in views), default=member["facts"]["ne"][0])


def _judged_order(order: NDArray[Any], values: Any, op: str) -> NodeVerdict:
    """Places of the largest values: all different, in order, none left out that is larger."""
    n = values if isinstance(values, Number) else Number(values)
    value, error = n.value, n.errors()
    inside = (order >= 0) & (order < value.shape[-1])
    at = np.where(inside, order, 0).astype(np.int64)
    picked, room = np.take_along_axis(value, at, -1), np.take_along_axis(error, at, -1)
    chosen = np.zeros(value.shape, np.bool_)
    np.put_along_axis(chosen, at, True, -1)
    rest = np.where(chosen, -np.inf, value - error).max(axis=-1, keepdims=True)
    right = inside & ((picked + room >= rest) | np.isnan(value).any(axis=-1, keepdims=True))
    right &= chosen.sum(axis=-1, keepdims=True) == order.shape[-1]
    if op == "ARGSORT":
        falling = ~(picked[..., :-1] + room[..., :-1] < picked[..., 1:] - room[..., 1:])
        right[..., 1:] &= falling
    ids = np.where(right, order, -1).astype(np.int64)
    return compared(Result(ids, np.zeros(ids.shape)), order)


def record_group(group: Group, model: Mapping[str, QuantArray], how: str = "all") -> Product:
    """The record of a group, with its verdict; ``how``: ``"sample"`` judges some rows of a large one."""
    part = _part(group, how == "sample")
    product = facts_of_group(group)
    on_cpu = product.computed_in.startswith("CPU") or product.computed_in.endswith("_Host")
    backend = "CPU" if on_cpu else product.computed_in
    with freedoms(quick=not on_cpu):
        arithmetic, verdict = _best(group, model, backend, part)
        judgement = Judgement(arithmetic or verdict.how, verdict.distance, verdict.distance, verdict.out)
        product = replace(product, judgement=judgement, worst=verdict.worst, judged=verdict.judged)
        if not verdict.out:
            return product
        if arithmetic and _is_nearer(group, model, candidates(backend, product.m), part):
            return replace(product, judgement=replace(judgement, arithmetic=OTHER, out=0), worst={})
        text = f"{sentence(verdict)}\n{_cause(group, model, arithmetic, part)}"
    diagnosis = Diagnosis(False, FAULT, 0.5, text)
    return replace(product, verdict="wrong", fault=FAULT, text=text, diagnosis=diagnosis)


def _best(
    group: Group, model: Mapping[str, QuantArray], backend: str, part: Part | None
) -> tuple[str, NodeVerdict]:
    """The first arithmetic in which the group is right, or that with the fewest wrong elements."""
    products = [member for member in group.members if member["op"] in PRODUCTS]
    if not products:
        return "", _verdict(group, model, "", part)[0]
    best: tuple[str, NodeVerdict] | None = None
    rows = int(products[0]["facts"]["ne"][1 if products[0]["op"] == "MUL_MAT" else 2])
    for arithmetic in candidates(backend, rows):
        try:
            verdict, loose = _verdict(group, model, arithmetic, part)
        except UnsupportedError:  # no program multiplies one of these types so
            continue
        if loose and best is not None:
            continue
        if best is None or verdict.out < best[1].out:
            best = arithmetic, verdict
        if not verdict.out:
            break
    if best is None:
        raise UnsupportedError(f"{group.name}: its products are multiplied in no arithmetic that is known")
    return best


def _is_nearer(group: Group, model: Mapping[str, QuantArray], names: list[str], part: Part | None) -> bool:
    """True where a group is nearer to float64 than it is with products in the likeliest arithmetic."""
    if group.members[-1]["op"] in ROUTES:
        return False
    for name in names:
        try:
            known = _Evaluation(group, model, name, part).run().value
        except UnsupportedError:
            continue
        this = _Evaluation(group, model, "f32", part)
        exact, y = this.run().value, this._cut(group.operand("y")).astype(np.float64)
        return not any(o.out for o in this.orders) and is_nearer(y, known, exact, exact**2, -1)
    return False


def _verdict(
    group: Group, model: Mapping[str, QuantArray], arithmetic: str, part: Part | None, left_out: int = -1
) -> tuple[NodeVerdict, bool]:
    this = _Evaluation(group, model, arithmetic, part, left_out)
    result = this.run()
    if group.members[-1]["op"] in ROUTES:
        return this.orders[-1], this.loose
    y = this._cut(group.operand("y"))
    if this.has_nan:  # a node before the group gave it; what is made of it is nobody's promise
        result = replace(result, bound=np.where(np.isnan(result.value), np.inf, result.bound),
                         value=np.where(np.isnan(result.value), y, result.value))  # fmt: skip
    verdict = compared(result, y)
    wrong = next((order for order in this.orders if order.out), None)
    return wrong or verdict, this.loose


def _part(group: Group, sample: bool) -> Part | None:
    """Columns of a group with large products, or with ``sample`` rows of a large one; None: all of it."""
    members, shape = group.members, tuple(group.tensors["y"]["ne"][::-1])
    plain = all(tuple(m["facts"]["ne"][::-1]) == shape for m in members)
    if any(m["op"] in PRODUCTS for m in members):
        size = sum(int(np.prod(group.tensors[m["sources"][0]]["ne"])) for m in members if m["op"] in PRODUCTS)
        alike = plain and all(m["op"] in (*PRODUCTS, *ELEMENTWISE) for m in members)
        if size <= LARGE or not alike or shape[3] <= COLUMNS:
            return None
        return Part(3, shape[3], evenly_spaced(shape[3], COLUMNS))
    axis = next((i for i, n in enumerate(shape[:3]) if n > 1), 3)
    # All that the group reads has as many along the axis, or is repeated along it from 1.
    read = [facts["ne"][3 - axis] for name, facts in group.tensors.items() if name[0] == "e"]
    alike = all(n in (1, group.tensors["y"]["ne"][3 - axis]) for n in read)
    rowwise = plain and alike and all(m["op"] in (*ELEMENTWISE, *NORMS) for m in members)
    if not sample or not rowwise or axis == 3 or shape[axis] <= FEW or np.prod(shape) < SAMPLED:
        return None
    return Part(axis, shape[axis], evenly_spaced(shape[axis], FEW))


def _cause(group: Group, model: Mapping[str, QuantArray], arithmetic: str, part: Part | None) -> str:
    """A sentence on the mistake that the group may have made."""
    ops = [member["op"] for member in group.members]
    for number in range(len(ops) - 1, 0, -1):
        try:
            verdict, _ = _verdict(group, model, arithmetic, part, left_out=number)
        except (UnsupportedError, StopIteration, ValueError, IndexError):
            continue
        if not verdict.out:
            return f"{FAULT}: the result is that of the group without its {ops[number]}."
    return (
        f"{FAULT}: {' and '.join(ops)} were computed together. If each is right where it is asked for alone, "
        "the kernel that fuses them is wrong."
    )


def facts_of_group(group: Group) -> Product:
    """The facts about a group before it is judged."""
    y = group.tensors["y"]
    read = [source for m in group.members for source in m["sources"] if isinstance(source, str)]
    products = [m for m in group.members if m["op"] in PRODUCTS]
    named = products[0]["sources"][0] if products else read[min(1, len(read) - 1)]
    first = group.tensors[named]
    k = group.tensors[read[0]]["ne"][0]
    return Product(
        group.name, group.op, group.step, original(str(first["name"])), str(first["type"]),
        str(first["buffer"]), str(y["buffer"]), int(np.prod(y["ne"][1:])), int(y["ne"][0]), int(k),
        group=tuple(str(member["facts"]["name"]) for member in group.members),
    )  # fmt: skip
