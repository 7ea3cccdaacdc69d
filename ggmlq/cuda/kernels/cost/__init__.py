"""The cost of kernels: estimates of how long they take on a card, and the choice that follows.

choice.py            the order of rungs for a problem that no table has: by estimate on Hopper, else by rows
gemv.py              cuda:gemv: microseconds of each way to split a product, and the best way
warp_specialized.py  cuda:warp_specialized: microseconds of each tile, and the best tile; the best split of
                     tiles among blocks: whole, along K, or in clusters
stage.py             microseconds of a stage, by tile and format; the fitted constants of Hopper's estimates
                     (costs.json), which tools/fit.py writes
mma.py               cuda:mma_bf16 and its kin: microseconds of each tile and split, and the best ones
codes8.py            products of 8-bit codes: tiles and parts of K
roof.py              floors and estimates on any card, from its data sheet
"""
