"""Split softmax: attention of one query, its positions divided among blocks, and softmax put together again.

A query q [D] over S positions gives Σ p[s] · v[s], p = softmax(q · k[s] · scale). While a model writes,
there is one query a head, and S is long: a block for each head leaves most of a card idle, and one block
cannot read memory as fast as the card can. So positions are split. But softmax needs the largest logit and
the sum of *all* positions. The way out: each part works with its own, and keeps them.

    part i:    m_i = max of its logits     l_i = Σ exp(logit - m_i)     o_i = Σ exp(logit - m_i) · v
    whole:     m = max of m_i     y = Σ exp(m_i - m) · o_i  /  Σ exp(m_i - m) · l_i

exp(logit - m_i) · exp(m_i - m) = exp(logit - m): nothing is approximated, and no exponent is above 0, so
that nothing overflows whatever the logits are. The same two lines, applied from one tile of positions to
the next within a block, are the *online* softmax of long parts.

What the summit adds: k and v in blocks of few bits, queries of a group that share them, masks, and products
on tensor cores where there are several queries. Here k and v are floats, and any card will do.

Limited by memory, as it should be: k and v are read once, and there is half an operation for a byte.
"""

from __future__ import annotations

import math
from typing import Any

from ....errors import ShapeError
from ...driver import device
from ...driver.launch import Kernel, array, family
from ...intrinsics.language import cuda, float32, int32

THREADS = 128
MAX_POSITIONS = 1024  # positions of a part: their logits lie in shared memory


# Who computes what: block (i, h) has the positions first … last - 1 of head h. Its threads change what they
# stand for three times:
#
#     1. logits      thread t: positions t, t + 128, …        logits[s]  = q · k[s] · scale
#     2. weights     thread t: positions t, t + 128, …        logits[s]  = exp(logits[s] - most)
#     3. outputs     thread t: columns   t, t + 128, …        output[d]  = Σ logits[s] · v[s, d]
#
# Three barriers: all must have written what others read next, and all must have read the largest logits out
# of ``reduced`` before it holds sums.
#
#     positions of head h    | part 0 | part 1 | … | part i | …         a block each
#     what a part leaves     m_i, l_i, o_i [width]                      the second kernel: a block a head


@family()
def kernel() -> Kernel:
    """The kernel of the parts: block (i, h) has the positions of part i, for head h."""

    def softmax_part(q: Any, k: Any, v: Any, maxima: Any, sums: Any, outputs: Any, scale: Any) -> None:
        thread, part, head = cuda.threadIdx.x, cuda.blockIdx.x, cuda.blockIdx.y
        positions, width, count = k.shape[1], k.shape[2], cuda.gridDim.x
        first, last = part * positions // count, (part + 1) * positions // count
        logits, reduced = cuda.shared.array(MAX_POSITIONS, float32), cuda.shared.array(THREADS, float32)
        most = float32(-math.inf)
        for s in range(first + thread, last, THREADS):
            logit = float32(0)
            for d in range(width):
                logit += q[head, d] * k[head, s, d]
            logits[s - first] = logit * scale[0]
            most = max(most, logits[s - first])
        reduced[thread] = most
        cuda.syncthreads()  # the largest logit of each thread is there
        for i in range(THREADS):  # every thread finds the same; a tree of steps is faster, and longer
            most = max(most, reduced[i])
        cuda.syncthreads()  # all have read ``reduced``, which holds sums from here on
        total = float32(0)
        for s in range(thread, last - first, THREADS):
            logits[s] = math.exp(logits[s] - most)
            total += logits[s]
        reduced[thread] = total
        cuda.syncthreads()  # all weights and all sums are there
        # A thread has a column of v: 32 lanes read 32 neighbours of a row at once, whole lines of memory.
        for d in range(thread, width, THREADS):
            output = float32(0)
            for s in range(last - first):
                output += logits[s] * v[head, first + s, d]
            outputs[head, part, d] = output
        if thread == 0:
            total = float32(0)
            for i in range(THREADS):
                total += reduced[i]
            maxima[head, part], sums[head, part] = most, total

    floats = array(float32, 1), array(float32, 2), array(float32, 3)
    return Kernel(
        "chapter softmax part", softmax_part, floats[1], floats[2], floats[2], floats[1], floats[1],
        floats[2], floats[0], threads=THREADS,
    )  # fmt: skip


@family()
def joiner() -> Kernel:
    """The kernel that puts the parts of each head together: a block a head."""

    def softmax_whole(maxima: Any, sums: Any, outputs: Any, y: Any) -> None:
        # The largest logit of all parts, then each part brought from its own largest to that one. Threads
        # find the same maximum each for itself, so this kernel needs no barrier.
        head, parts = cuda.blockIdx.x, int32(maxima.shape[1])
        most = float32(-math.inf)
        for i in range(parts):
            most = max(most, maxima[head, i])
        for d in range(cuda.threadIdx.x, y.shape[1], THREADS):
            total, output = float32(0), float32(0)
            for i in range(parts):
                weight = math.exp(maxima[head, i] - most)
                total += weight * sums[head, i]
                output += weight * outputs[head, i, d]
            y[head, d] = output / total

    floats = array(float32, 2), array(float32, 3)
    return Kernel(
        "chapter softmax whole", softmax_whole, floats[0], floats[0], floats[1], floats[0], threads=THREADS
    )


def attention(q: Any, k: Any, v: Any, parts: int = 8) -> Any:
    """The attention of one query a head: q [H, D] over k and v [H, S, D], float32; the result is [H, D].

    Logits are scaled by 1 / √D. ``parts``: the blocks that share a head's positions.
    """
    heads, width = q.shape
    if k.shape != v.shape or (k.shape[0], k.shape[2]) != (heads, width) or not k.shape[1]:
        raise ShapeError(
            f"attention of q {q.shape} over k {k.shape} and v {v.shape}: q is [H, D], k and v are [H, S, D], "
            "with positions in them; pass such arrays"
        )
    positions = k.shape[1]
    if not -(-positions // MAX_POSITIONS) <= parts <= positions:
        raise ShapeError(
            f"attention over {positions} positions in {parts} parts: a part has 1 to {MAX_POSITIONS} of "
            f"them; pass parts={min(positions, max(8, -(-positions // MAX_POSITIONS)))}"
        )
    cupy = device.cupy()
    maxima, sums = (cupy.empty((heads, parts), "f4") for _ in range(2))
    outputs, y = cupy.empty((heads, parts, width), "f4"), cupy.empty((heads, width), "f4")
    scale = cupy.full(1, width**-0.5, "f4")
    kernel()((parts, heads), (THREADS,), q, k, v, maxima, sums, outputs, scale)
    joiner()((heads,), (THREADS,), maxima, sums, outputs, y)
    return y
