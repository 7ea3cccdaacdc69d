"""Operands of attention that its kernels are tried on, on the host and on a card."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import ggmlq as gq

TYPES = ["f16", "bf16", "f32", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "mxfp4"]
WIDTHS = [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256), (576, 512)]
FLOATS = [np.float32, np.float16, ml_dtypes.bfloat16, np.float64]
ANY_WIDTHS = [
    (1, 1, np.float32),
    (7, 50, np.float16),
    (80, 33, ml_dtypes.bfloat16),
    (100, 576, np.float64),
]
HEADS = [(1, 1), (6, 2), (7, 1), (40, 1)]  # of queries and of keys
OPTIONS: dict[str, dict[str, Any]] = {
    "all": {},
    "scale": {"scale": 2.5},
    "causal": {"causal": True},
    "window": {"window": 100},
    "softcap": {"softcap": 5.0, "scale": 1.0, "causal": True},
    "alibi": {"alibi": 8.0, "causal": True},
    "lengths": {"lengths": np.array([700, 3, 0]), "causal": True},
    "short": {"lengths": np.array([700, 64, 63])},
}


class Case(NamedTuple):
    """Queries, keys and values on the host, and the options of a call."""

    q: Any
    k: Any
    v: Any
    options: dict[str, Any]


def cache(fresh, name, *shape):
    """Keys or values of a type."""
    return gq.quantize(fresh.standard_normal(shape, np.float32), name)


def of_types(name, fresh, counts) -> Iterator[Case]:
    """A type beside another one that is drawn; queries of a kind of floats that is drawn."""
    other, kind = str(fresh.choice(TYPES)), FLOATS[int(fresh.integers(4))]
    for queries in counts:
        q = fresh.standard_normal((2, 4, queries, 64)).astype(kind)
        for names in ((name, other), (other, name)):
            yield Case(q, *(cache(fresh, one, 2, 2, 133, 64) for one in names), {"causal": True})


def of_widths(widths, fresh, counts) -> Iterator[Case]:
    """Columns of keys and of values."""
    for name in ("q8_0", "f16"):
        for queries in counts:
            k, v = (cache(fresh, name, 1, 1, 70, width) for width in widths)
            yield Case(fresh.standard_normal((1, 4, queries, widths[0])), k, v, {"causal": True})


def of_any_widths(fresh) -> Iterator[Case]:
    """Floats of any number of columns."""
    for d, dv, kind in ANY_WIDTHS:
        k, v = (fresh.standard_normal((2, 3, 90, n)).astype(kind) for n in (d, dv))
        v = v if dv > 1 else np.abs(v)  # one value that cancels has no relative error
        yield Case(fresh.standard_normal((2, 6, 4, d)), k, v, {"window": 40})


def of_heads(queries, fresh) -> Iterator[Case]:
    """Any number of heads over one of the keys, more rows than a unit has, more positions than a stretch."""
    for heads, kv_heads in HEADS:
        s = int(fresh.integers(queries, 2300))
        k, v = (cache(fresh, name, 1, kv_heads, s, 32) for name in ("q4_0", "q8_0"))
        yield Case(fresh.standard_normal((1, heads, queries, 32)), k, v, {"causal": True})


def of_options(case, fresh, counts) -> Iterator[Case]:
    """Options that hide positions or change scores: each alone, with sinks, and masks of any axes."""
    q, k, v = (
        fresh.standard_normal((3, 6, max(counts), 64)),
        cache(fresh, "q8_0", 3, 2, 700, 64),
        cache(fresh, "f16", 3, 2, 700, 64),
    )
    options = OPTIONS[case]
    for queries in counts:
        rows = q[:, :, :queries]
        yield Case(rows, k, v, options)
        yield Case(rows, k, v, options | {"sinks": fresh.standard_normal(6)})
        for shape in ((queries, 700), (3, 1, queries, 700), (1, 6, 1, 700), (3, 6, queries, 1)):
            mask = fresh.standard_normal(shape, np.float32)
            mask[fresh.random(shape) < 0.3] = -np.inf
            yield Case(rows, k, v, options | {"mask": mask.astype(np.float16)})
            yield Case(rows, k, v, options | {"mask": mask > 0})


def of_nothing_seen(fresh) -> Iterator[tuple[Case, int]]:
    """Queries of which the first ones see no position, and how many."""
    q, k = fresh.standard_normal((1, 2, 4, 32)), fresh.standard_normal((1, 2, 5, 32))
    yield Case(q, k, k, {"lengths": np.array([2]), "causal": True}), 2
    yield Case(q, k, k, {"mask": np.zeros(5, bool)}), 4
    yield Case(q, k, k, {"lengths": np.array([0]), "sinks": np.ones(2)}), 4


def of_draw(fresh, types) -> Case:
    """Any sizes, types and options."""
    kv_heads, group, b, t = (int(fresh.integers(1, n)) for n in (4, 9, 4, 40))
    s, d, dv = int(fresh.integers(t, 1500)), *(32 * int(n) for n in fresh.integers(1, 7, 2))
    options = {"causal": bool(fresh.integers(2)), "lengths": fresh.integers(0, s + 1, b)}
    options |= {"window": int(fresh.integers(1, s + 1))} if fresh.integers(2) else {}
    options |= {"softcap": float(fresh.uniform(1, 30))} if fresh.integers(2) else {}
    options |= {"sinks": fresh.standard_normal(kv_heads * group)} if fresh.integers(2) else {}
    options |= {"alibi": 8.0} if fresh.integers(2) else {}
    options |= {"invariant": True} if fresh.integers(2) else {}
    if fresh.integers(2):
        options["mask"] = np.where(fresh.random((b, 1, t, s)) < 0.5, 0, -np.inf)
    names = fresh.choice(types, 2)
    k, v = (cache(fresh, str(n), b, kv_heads, s, w) for n, w in zip(names, (d, dv), strict=True))
    return Case(fresh.standard_normal((b, kv_heads * group, t, d)), k, v, options)
