"""Positions on the host.

A cache that is longer than the memory of a card lies on the host in pieces. Each comes to the card, queries
attend over it there, and it goes. Two things join the results as if there had been one softmax: a sum of each
piece's weights, and weights of pieces by these sums.

The sum comes with the result itself. Values have one more block of columns, which holds 127 everywhere, a
number that q8_0 keeps as it is; and each query has a sink, a logit beside all scores that has no value. So
the column tells the share of the piece beside the sink. A sink far away from the sum tells little: then it
moves there, and the piece is attended once more. Pass `cuda` to do it on a GPU.
"""

import sys

import numpy as np

import ggmlq as gq

HEADS, KV_HEADS, WIDTH, QUERIES, PIECES, PIECE = 16, 4, 64, 2, 6, 700
BLOCK, WHOLE = 32, 127.0
device = sys.argv[1] if len(sys.argv) > 1 else "cpu"

if device == "cpu":
    there, back = np.asarray, np.asarray
else:
    import cupy

    there, back = cupy.asarray, cupy.asnumpy


def attended(q, k, v, sums):
    """Attention over a piece: the result, and the log of each query's sum of weights; ``sums``: a guess."""
    heads, queries, width = q.shape[1:]
    rows = there(q.reshape(1, heads * queries, 1, width))  # a head each, so that each has a sink
    k, v = k.to(device), v.to(device)
    while True:
        y = back(gq.attention(rows, k, v, sinks=there(sums.reshape(-1)))).reshape(heads, queries, -1)
        share = np.clip(y[..., -1] / WHOLE, 1e-4, 1 - 1e-4)
        sums = sums + np.log(share / (1 - share))
        if share.min() > 0.01 and share.max() < 0.99:
            return y[..., :-BLOCK] / share[..., None], sums


def over_pieces(q, pieces):
    """Attention over all pieces, one after the other."""
    sums = np.full(q.shape[1:3], np.log(PIECE))
    result, of_all = 0.0, np.full(q.shape[1:3], -np.inf)
    for k, v in pieces:
        y, sums = attended(q, k, v, sums)
        before, of_all = of_all, np.logaddexp(of_all, sums)
        result = result * np.exp(before - of_all)[..., None] + y * np.exp(sums - of_all)[..., None]
    return result[None]


rng = np.random.default_rng(3)
q = 2 * rng.standard_normal((1, HEADS, QUERIES, WIDTH), np.float32)
pieces = []
for size in np.linspace(0.3, 1.5, PIECES):  # keys of later pieces are larger, and so are their sums
    k, v = rng.standard_normal((2, 1, KV_HEADS, PIECE, WIDTH), np.float32)
    ones = np.full((*v.shape[:3], BLOCK), WHOLE, np.float32)
    pieces.append([gq.quantize(x, "q8_0") for x in (size * k, np.concatenate([v, ones], -1))])

y = over_pieces(q, pieces)
k, v = (np.concatenate([pair[i].dequantize() for pair in pieces], 2) for i in range(2))
exact = gq.reference.attention(q, k, v[..., :WIDTH])
size = sum(x.nbytes for pair in pieces for x in pair) / PIECES / 2**20
print(f"{PIECES} pieces of {PIECE} positions on the host, {size:.2f} MiB each; one at a time on {device}")
for i, (k, v) in enumerate(pieces):
    alone = gq.reference.attention(q, k.dequantize(), v.dequantize()[..., :WIDTH])
    print(f"piece {i} alone: error {gq.nmse(alone, exact):.1e}")
error = gq.nmse(y, exact)
print(f"all of them:   error {error:.1e}, {'one softmax' if error < 1e-5 else 'WRONG'}")
