"""``expert_linear`` in its plain form: products with a mixture of experts, one expert after the other.

A *use* is a number t · U + u: token t is multiplied with the u-th of its experts. Uses are sorted by expert.
There is one row of activations a token or a use, and one result a use. This code serves every device, in
NumPy or CuPy; faster kernels sort in compiled code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..arrays.scaled import ScaledArray
from ..base.devices import cuda_device, is_host, is_over_torch, namespace, place_of
from ..errors import UnsupportedError
from .ladder import choose
from .problems import ExpertLinear, Linear, Operand, ScaledLinear

Multiply = Callable[[Any, Any, Any], None]  # (rows [M, K], matrix [N, K], out float32 [M, N])


class Uses(NamedTuple):
    """Uses sorted by expert: the uses of expert e are ``order[starts[e] : starts[e + 1]]``, ascending."""

    order: Any
    starts: list[int]
    lost: Any  # uses whose id is no expert


def by_expert(ids: Any, experts: int) -> Uses:
    """The uses of ids [T, U] sorted by expert, on the ids' device; the starts of the groups on the host."""
    xp, flat = namespace(ids), ids.reshape(-1)
    key = xp.where((flat >= 0) & (flat < experts), flat, experts)
    if experts < 1 << 15:
        key = key.astype(np.int16)  # sorted by counting
    order = xp.argsort(key, kind="stable")
    counts = xp.bincount(key, minlength=experts + 1)[:experts]
    starts = [0, *(int(n) for n in xp.cumsum(counts).tolist())]
    return Uses(order[: starts[-1]], starts, order[starts[-1] :])


def expert_by_expert(x: Any, q: Any, ids: Any, out: Any, multiply: Multiply) -> None:
    """Compute ``out[t, u] = x[…] @ q[ids[t, u]].T``, with all rows of an expert gathered for one product."""
    if not is_host(out):
        cuda_device().refuse_capture("expert_linear, which looks at ids on the host with this kernel,")
    xp, lines = namespace(out), out.reshape(ids.size, out.shape[-1])
    uses, per = by_expert(ids, len(q)), ids.size // max(len(x), 1)
    matrices = q.matrices()
    for e in range(len(q)):
        group = uses.order[uses.starts[e] : uses.starts[e + 1]]
        if len(group):
            y = xp.empty((len(group), lines.shape[1]), np.float32)
            multiply(x[group // per], matrices[e], y)
            lines[group] = y
    if len(uses.lost):
        lines[uses.lost] = np.nan


def as_linear(arithmetic: str, invariant: bool = False) -> Multiply:
    """The function that multiplies with one expert of blocks or floats, by ``linear`` in this arithmetic."""

    def multiply(x: Any, q: Any, out: Any) -> None:
        (n, k), (device, card), without_cublas = q.shape, place_of(out), is_over_torch(type(out))
        problem = Linear(q.format, len(x), n, k, device=device, card=card, captured=without_cublas)
        choose(problem, arithmetic=arithmetic, invariant=invariant).launch(x, q, out)

    return multiply


def as_scaled_linear(x: ScaledArray, w: ScaledArray, out: Any, invariant: bool = False) -> None:
    """Multiply with one expert of codes with scales, by a kernel of ``scaled_linear``."""
    choose(ScaledLinear.of(x, w), invariant=invariant).launch(x, w, out)


def refuses_blocks(problem: ExpertLinear) -> str | None:
    """The reason why a kernel for codes with scales does not take a problem of blocks or floats."""
    return None if isinstance(problem.weights, Operand) else "it multiplies codes with scales"


def in_arithmetic(arithmetic: str) -> Callable[[ExpertLinear], str | None]:
    """The ``refuses`` of a kernel that is :func:`expert_by_expert` with :func:`as_linear`."""

    def refuses(problem: ExpertLinear) -> str | None:
        if isinstance(problem.weights, Operand):
            return refuses_scaled(problem)
        uses = max(1, problem.t * problem.u)
        fmt, n, k = problem.weights, problem.n, problem.k
        place: dict[str, Any] = {"device": problem.device, "card": problem.card, "captured": problem.captured}
        try:
            for m in {1, uses}:  # an expert may have one use, or all
                choose(Linear(fmt, m, n, k, **place), arithmetic=arithmetic)
        except UnsupportedError:
            return f"no kernel of linear multiplies {fmt.name} in {arithmetic} here"
        return None

    return refuses


def refuses_scaled(problem: ExpertLinear) -> str | None:
    """The reason why a kernel for blocks and floats does not take a problem of codes with scales."""
    return "it multiplies block formats and floats" if isinstance(problem.weights, Operand) else None
