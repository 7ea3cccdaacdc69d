"""The schedule of a product: which block computes which steps of which tile.

raster.py      the order of tiles, chosen so that operands stay in the L2 cache
waves.py       the tile with which all multiprocessors are done first (8-bit codes)
work_units.py  the steps of a tile that a block computes; the last wave split along K
split_k.py     K split among blocks by the grid
uses.py        the expert of a use, and the uses that a block serves where tokens are few
groups.py      a plan in memory: uses sorted by expert, a column of a tile for each
block_plan.py  the same plan for a thousand uses, made by every block for itself
grouped.py     the order of the tiles of all experts
"""
