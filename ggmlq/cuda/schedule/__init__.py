"""The schedule of a product: which block computes which steps of which tile.

raster.py      the order of tiles, chosen so that operands stay in the L2 cache
raster.py       the tile with which all multiprocessors are done first (8-bit codes)
raster.py  the steps of a tile that a block computes; the last wave split along K
linear/r15_wgmma.py     K split among blocks by the grid
groups.py        the expert of a use, and the uses that a block serves where tokens are few
groups.py      a plan in memory: uses sorted by expert, a column of a tile for each
groups.py  the same plan for a thousand uses, made by every block for itself
warp_specialized/schedules.py     the order of the tiles of all experts
"""
