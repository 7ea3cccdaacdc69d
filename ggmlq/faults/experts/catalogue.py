"""The doctor's catalogue for products with experts: their own mistakes, and those of a single matrix."""

from __future__ import annotations

from ..catalogue import CATALOGUE, entries

EXPERTS = CATALOGUE | entries(
    ("expert-wrong", "Rows are multiplied with another expert than their ids name.",
     "y[t, u] = x[t] @ q[e].T, e ≠ ids[t, u]", "y[t, u] = x[t] @ q[ids[t, u]].T",
     "the index or the stride of the expert's matrix, and where each expert's rows begin"),
    ("expert-rows-exchanged",
     "Rows are right products that lie in each other's places, or products of another token's row.",
     "y[t, u] = x[t'] @ q[ids[t', u']].T",
     "y[t, u] = x[t] @ q[ids[t, u]].T: the way there and the way back are one permutation",
     "the table of sorted tokens, where rows are gathered and where results are put back"),
    ("expert-ids-stride", "Ids are read in another order than they lie in.",
     "ids[u·T + t], ids[t·s + u] with s ≠ U, or 64-bit ids read as 32",
     "ids[t·U + u], by the strides of the tensor: it is often a view of a longer one",
     "the stride between tokens (nb[1]) and the size of an id"),
    ("expert-tokens-dropped",
     "Rows of tokens are never computed: what an expert has beyond whole tiles, or beyond a limit.",
     "rows 0 … ⌊count / tile⌋·tile of each expert", "rows 0 … count, the last tile filled in part",
     "the number of tiles of an expert (rounded up?) and the size of buffers that hold its rows"),
    ("expert-duplicates", "A token that uses an expert twice gets its result once.",
     "one slot for each token and expert", "one slot for each use: ids of a token may repeat",
     "the search for the slot of a token in an expert's list: it stops at the first",
     "llama.cpp #24591, #26294, #26295, #27015, #26310"),
)  # fmt: skip
