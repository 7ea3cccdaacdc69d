"""The schedule of a product: which block computes which steps of which tile.

raster.py   the order of tiles, chosen so that operands stay in the L2 cache; the steps of a tile that a block
            computes, the last wave split along K; the tile with which all multiprocessors are done first
groups.py   the uses of experts: the expert of a use, the uses that a block serves where tokens are few; a
            plan in memory, uses sorted by expert, a column of a tile for each; the same plan for a thousand
            uses, made by every block for itself
"""
