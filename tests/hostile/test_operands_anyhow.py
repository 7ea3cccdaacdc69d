"""Operands that lie anywhere: beside pages nobody may touch, in any layout, over each other, in threads."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from at_once import at_once

import ggmlq as gq

FLOATS = ["<f4", ">f4", "<f8", "<f2", ">f2"]
ABLE = [fmt.name for fmt in gq.formats.values() if fmt.can_quantize and not fmt.needs_imatrix]
ATTENDED = [
    "f16", "bf16", "f32", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "mxfp4", "q4_K", "q6_K", "tq2_0",
]  # fmt: skip


@pytest.fixture(scope="module")
def types(drawn_formats):
    """Names of types that this run compiles kernels for."""
    return [fmt.name for fmt in gq.formats.values() if fmt.block_size == 1 or fmt.name in drawn_formats]


def normal(fresh, shape, kind="<f4"):
    return fresh.standard_normal(shape).astype(kind)


def laid(fresh, a):
    """The same numbers in another layout of memory."""
    way = int(fresh.integers(9))
    if way == 0:
        return a.astype(a.dtype.newbyteorder())
    if way == 1:
        found = np.zeros(a.nbytes + 1, np.uint8)[1:].view(a.dtype).reshape(a.shape)
    elif way == 2:
        found = np.zeros((*a.shape[:-1], 2 * a.shape[-1] + 1), a.dtype)[..., 1::2]
    elif way == 3:
        found = np.zeros(a.shape, [("before", "u1"), ("number", a.dtype), ("behind", "u1", 3)])["number"]
    elif way == 4:
        found = np.zeros((2 * a.shape[0] + 1, *a.shape[1:]), a.dtype)[1::2]
    elif way == 5:
        return np.asfortranarray(a)
    elif way == 6:
        return np.ascontiguousarray(a[..., ::-1])[..., ::-1]
    elif way == 7:
        return np.ascontiguousarray(a[::-1])[::-1]
    else:
        found = a.copy()
    found[...] = a
    found.flags.writeable = way != 8
    return found


# --- products ---------------------------------------------------------------------------------


def test_products_of_operands_in_any_layout(types, fresh, rounds):
    """x, bias, residual and out; results over x or over the residual."""
    names = fresh.choice([name for name in ABLE if name in types], 3)
    for _ in rounds(1.5):
        fmt = gq.formats[str(fresh.choice(names))]
        n, m = int(fresh.choice([1, 2, 5, 16, 33, 100])), int(fresh.choice([0, 1, 2, 3, 8, 40]))
        k = fmt.block_size * int(fresh.integers(1, 5)) if fmt.block_size > 1 else int(fresh.integers(1, 300))
        q, x = gq.quantize(normal(fresh, (n, k)), fmt), normal(fresh, (m, k), fresh.choice(FLOATS))
        want, options = gq.linear(x, q).astype(np.float64), {}
        if fresh.integers(2):
            bias = normal(fresh, n, fresh.choice(FLOATS))
            want, options["bias"] = want + bias, laid(fresh, bias)
        if fresh.integers(2):
            residual = normal(fresh, (m, n))
            want, options["residual"] = want + residual, laid(fresh, residual)
        x = laid(fresh, x)
        outs = [np.empty((n, m), fresh.choice(FLOATS)).T[::-1], laid(fresh, np.empty((m, n), "<f4"))]
        outs += [x[:, :n][:, ::-1], x[:, k - n :]] if n <= k else []
        outs += [options["residual"]] if "residual" in options else []
        out = outs[int(fresh.integers(len(outs)))]
        options |= {"out": out} if out.flags.writeable else {}
        y = np.asarray(gq.linear(x, q, **options), np.float64)
        size = np.asarray(options.get("out", y)).dtype.itemsize
        off = np.abs(y - want).max(initial=0) / (1 + np.abs(want).max(initial=0))
        assert off <= (2e-3 if size == 2 else 2e-5), (
            fmt.name,
            m,
            n,
            k,
            {a: b.strides for a, b in options.items()},
        )


# --- attention --------------------------------------------------------------------------------


def softmax(q, k, v, lengths, scale, causal=False, window=0, softcap=0.0, sinks=None, alibi=0.0, mask=None):
    """Attention by NumPy in float64, [B, H, T, DV]; slopes are those of 2^n heads."""
    heads, queries, positions = *q.shape[1:3], k.shape[2]
    k, v = (rows.repeat(heads // rows.shape[1], axis=1) for rows in (k, v))
    s, at = q @ k.swapaxes(2, 3) * scale, np.arange(positions)
    s = softcap * np.tanh(s / softcap) if softcap else s
    away = (lengths[:, None] - queries + np.arange(queries))[:, None, :, None] - at
    slopes = 2.0 ** (-alibi / heads * np.arange(1, heads + 1))[:, None, None] if alibi else 1.0
    s = s - slopes * np.abs(away) if alibi and mask is None else s if mask is None else s + slopes * mask
    seen = (at < lengths[:, None, None, None]) & ((away >= 0) | (not causal and not window))
    s = np.where(seen & (away < (window or positions + queries)), s, -np.inf)
    sink = np.full(heads, -np.inf) if sinks is None else sinks
    top = np.maximum(s.max(-1, initial=-np.inf), sink[:, None])[..., None]
    top = np.where(np.isfinite(top), top, 0)
    weights = np.exp(s - top)
    total = weights.sum(-1, keepdims=True) + np.exp(sink[:, None, None] - top)
    return np.where(total > 0, weights / np.where(total > 0, total, 1), 0) @ v


@pytest.mark.slow
def test_attention_of_operands_in_any_layout(types, fresh, rounds):
    names = [*fresh.choice([name for name in ATTENDED if name in types], 2), *fresh.choice(FLOATS, 2)]
    for _ in rounds(1.5):
        b, kv_heads, group = (
            int(fresh.integers(1, 4)),
            int(fresh.integers(1, 4)),
            int(fresh.choice([1, 2, 4])),
        )
        heads = kv_heads * group
        t, s = int(fresh.choice([0, 1, 2, 5, 17, 40])), int(fresh.choice([0, 1, 15, 16, 33, 65, 129, 300]))
        rows, exact = [], []
        for name in fresh.choice(names, 2):
            block = 1 if name in FLOATS else gq.formats[name].block_size
            width = block * int(fresh.integers(1, 4)) if block > 1 else int(fresh.choice([1, 3, 16, 64, 100]))
            x = normal(fresh, (b, kv_heads, s, width), name if name in FLOATS else "<f4")
            rows.append(laid(fresh, x) if name in FLOATS else gq.quantize(x, name))
            exact.append(np.asarray(rows[-1] if name in FLOATS else rows[-1].dequantize(), np.float64))
        q = normal(fresh, (b, heads, t, exact[0].shape[3]), fresh.choice(FLOATS))
        options = {"scale": float(fresh.choice([0.0, -1.0, 0.3])), "lengths": fresh.integers(0, s + 1, b)}
        options |= {"causal": True} if fresh.integers(2) else {}
        options |= {"window": int(fresh.choice([1, 16, 2**40]))} if not fresh.integers(3) else {}
        options |= {"softcap": float(fresh.choice([1, 30]))} if not fresh.integers(3) else {}
        options |= {"sinks": normal(fresh, heads)} if not fresh.integers(3) else {}
        options |= {"alibi": 8.0} if heads & (heads - 1) == 0 and not fresh.integers(3) else {}
        if not fresh.integers(3):
            shape = ((t, s), (b, 1, t, s), (1, heads, 1, s))[int(fresh.integers(3))]
            options["mask"] = np.where(fresh.random(shape) < 0.3, np.float32(-np.inf), normal(fresh, shape))
        y = gq.attention(laid(fresh, q), *rows, **options)
        want = softmax(q.astype(np.float64), *exact, **options)
        off = np.abs(y - want).max(initial=0) / max(1, np.abs(exact[1]).max(initial=0))
        assert off <= 2e-5, (names, q.shape, [x.shape for x in exact], options, off)


# --- threads, and memory that must not be touched ---------------------------------------------


def test_one_cache_of_six_threads(fresh, rounds):
    """They append to it, cut it and read it: numbers are anybody's, but finite, and nobody waits for ever."""
    c, q = gq.KVCache(2, 64, 400, "q8_0", "q4_0", batch=2), np.ones((2, 8, 7, 64), np.float32)
    seeds = fresh.integers(1 << 30, size=6)

    def work(i):
        rng, x = np.random.default_rng(seeds[i]), np.ones((2, 2, 3, 64), np.float32)
        for _ in rounds(1):
            way = rng.integers(3)
            if way == 0:
                c.truncate(int(rng.integers(200)))
            elif way == 1:
                assert np.isfinite(c.attend(q, causal=True)).all()
            else:
                try:
                    c.append(x, x)
                except gq.errors.BlockIndexError:  # it is full
                    c.truncate(0)

    at_once(work, 6)


GUARDED = """
import ctypes, mmap, sys, time
import numpy as np
import ggmlq as gq
from ggmlq.arrays.blocks import random_blocks

fresh, end = np.random.default_rng(int(sys.argv[1])), time.process_time() + float(sys.argv[2])
protect, PAGE = ctypes.CDLL(None).mprotect, mmap.PAGESIZE
protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


def beside(a):
    # between two pages nobody may touch: it ends at the one behind it, or begins at the one before
    size = -(-max(a.nbytes, 1) // PAGE) * PAGE
    memory = mmap.mmap(-1, size + 2 * PAGE)
    at = np.frombuffer(memory, np.uint8).ctypes.data
    assert not protect(at, PAGE, 0) and not protect(at + PAGE + size, PAGE, 0)
    first = PAGE if fresh.random() < 0.3 else PAGE + size - a.nbytes
    found = np.frombuffer(memory, np.uint8, a.nbytes, first).view(a.dtype).reshape(a.shape)
    found[...] = a
    return found


def floats(*shape):
    return beside(fresh.standard_normal(shape).astype(fresh.choice([np.float32, np.float16])))


def blocks(fmt, *shape):
    whole = int(np.prod(shape[:-1]))
    raw = random_blocks(fmt, whole, shape[-1] // fmt.block_size, int(fresh.integers(1 << 30))).view(np.uint8)
    return gq.QuantArray(fmt, shape, beside(raw.reshape(*shape[:-1], -1)))


names, calls = fresh.choice(sys.argv[3:], 3), 0
while calls < 8 or time.process_time() < end:
    fmt = gq.formats[str(fresh.choice(names))]
    n, m = int(fresh.choice([1, 2, 7, 16, 33, 64])), int(fresh.choice([1, 2, 5, 9, 33]))
    k = fmt.block_size * int(fresh.integers(1, 5)) if fmt.block_size > 1 else int(fresh.integers(1, 150))
    kernels = "auto", *(one.name for one in gq.kernels("linear", fmt.name, "cpu"))
    q, kernel, way = blocks(fmt, n, k), str(fresh.choice(kernels)), int(fresh.integers(6))
    print(calls, fmt, n, m, k, kernel, way, flush=True)  # the last line is the call that touched a page
    try:
        if way == 0:
            out = beside(np.zeros((m, n), np.float32))
            gq.linear(floats(m, k), q, kernel=kernel, bias=floats(n), out=out)
        elif way == 1:
            gq.dequantize(q, out=beside(np.zeros((n, k), np.float32)))
            gq.take(q, beside(np.array([n - 1, 0])), out=beside(np.zeros((2, k), np.float16)))
        elif way == 2:
            there = gq.QuantArray(fmt, (n, k), beside(np.zeros_like(q.raw)))
            gq.put(there, beside(np.array([n - 1, 0])[:n]), floats(min(n, 2), k))
        elif way == 3:
            gq.linear(floats(m, n), q.T)
        elif way == 4:
            gq.expert_linear(floats(m, k), blocks(fmt, 3, n, k), beside(fresh.integers(0, 3, (m, 2))))
        else:
            keys, mask = blocks(fmt, 1, 2, n, k), beside(np.zeros((1, 1, m, n), np.float32))
            gq.attention(floats(1, 4, m, k), keys, keys, causal=True, sinks=floats(4), mask=mask)
            gq.attention(floats(1, 4, m, k), floats(1, 2, n, k), floats(1, 2, n, 5))
    except gq.GGMLQError:  # no encoder, or a kernel that refuses
        pass
    calls += 1
"""


@pytest.mark.skipif(sys.platform == "win32", reason="pages are protected by mprotect")
def test_no_byte_beside_operands_is_touched(types, fresh, request):
    """In a process of its own, which such an access ends."""
    seed, seconds = str(fresh.integers(1 << 30)), "90" if request.config.option.long else "2"
    done = subprocess.run(
        [sys.executable, "-c", GUARDED, seed, seconds, *types], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, (seed, done.returncode, done.stdout.splitlines()[-1:], done.stderr[-2000:])
