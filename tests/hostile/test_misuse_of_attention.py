"""Callers of attention and of its cache who pass anything for anything: a clear error, or a result."""

from __future__ import annotations

import numpy as np
import pytest

import ggmlq as gq

X = np.ones((1, 2, 3, 64), np.float32)
IDS = np.arange(6).reshape(1, 2, 3)
ANYTHING = [
    None, True, "x", b"x", "", -1, 0, 1.5, 2**70, -(2**70), 1j, np.nan, np.inf, np.float32("nan"),
    [], [1, [2]], {}, {1}, object, print, slice(2), np.datetime64("now"), np.array([1, 2]), np.array(["x"]),
    np.array(None), np.array(1.5), np.array([np.nan]), np.ma.masked_array([1.0], [True]),
    np.uint64([2**64 - 1]), np.zeros((0, 3)), np.zeros((1,) * 6), X[0], X[..., :32], X.astype(int),
    X.astype(complex), X.astype("S4"), gq.quantize(X, "q8_0"), gq.quantize_scaled(X[0, 0], "int8", (1, None)),
]  # fmt: skip
OPTIONS = (
    "scale", "causal", "mask", "lengths", "window", "softcap", "sinks", "alibi", "kernel", "arithmetic",
    "invariant", "out", "dtype",
)  # fmt: skip
OF_CACHES = "heads", "width", "positions", "k", "v", "batch", "width_v", "shared", "rotate", "device"


def of_attention():
    q, k = X, gq.quantize(X, "q8_0")
    for name in ("q", "k", "v"):
        yield name, lambda x, name=name: gq.attention(**{"q": q, "k": k, "v": k, name: x})
    for name in OPTIONS:
        yield name, lambda x, name=name: gq.attention(q, k, k, **{name: x})
    for name in OPTIONS[:8]:
        yield f"reference {name}", lambda x, name=name: gq.reference.attention(q, k, k, **{name: x})
    yield (
        "a node's alibi",
        lambda x: gq.reference.attention(q, k, k, arithmetic="ggml-cpu-attention", alibi=x),
    )


def of_caches():
    sizes = {"heads": 2, "width": 64, "positions": 9}
    for name in OF_CACHES:
        yield f"KVCache {name}", lambda x, name=name: gq.KVCache(**sizes | {name: x})
    for rotate in (False, True):
        c = gq.KVCache(2, 64, 9, rotate=rotate)
        yield "append k", lambda x, c=c: c.append(x, X)
        yield "append v", lambda x, c=c: c.append(X, x)
        yield "append lengths", lambda x, c=c: c.append(X, X, x)
        yield "put ids", lambda x, c=c: c.put(x, X, X)
        yield "put k", lambda x, c=c: c.put(IDS, x, X)
        yield "put v", lambda x, c=c: c.put(IDS, X, x)
        yield "attend", lambda x, c=c: c.attend(x)
        for name in OPTIONS:
            yield f"attend {name}", lambda x, c=c, name=name: c.attend(X, **{name: x})
        yield "advance", lambda x, c=c: c.advance(x)
        yield "truncate", lambda x, c=c: c.truncate(x)


def of_parts():
    places, sizes = ["cpu", "cpu"], {"heads": 2, "width": 64, "positions": 9}
    c, k = (
        gq.parallel.KVCache(2, 64, 9, places),
        gq.parallel.shard(gq.quantize(X, "q8_0"), places, axis="heads"),
    )
    for name in ("devices", *OF_CACHES[:-1]):
        yield name, lambda x, name=name: gq.parallel.KVCache(**{"devices": places} | sizes | {name: x})
    yield "append k", lambda x: c.append(x, X)
    yield "append lengths", lambda x: c.append(X, X, x)
    yield "attend", c.attend
    for name in OPTIONS:
        yield f"attention {name}", lambda x, name=name: gq.attention(X, k, k, **{name: x})
    yield "truncate", c.truncate


@pytest.mark.parametrize("calls", [of_attention, of_caches, of_parts])
def test_anything_for_any_argument(calls):
    bare = []
    for name, call in calls():
        for x in ANYTHING:
            try:
                call(x)
            except gq.GGMLQError as error:
                bare += [(name, str(error))] if len(str(error)) > 1000 else []
            except Exception as error:
                bare.append((name, repr(x)[:60], repr(error)[:200]))
    assert not bare
