"""The schedule of products with experts: which block computes which uses.

groups.py   the uses of experts: the expert of a use, the uses that a block serves where tokens are few; a
            plan in memory, uses sorted by expert, a column of a tile for each; the same plan for a thousand
            uses, made by every block for itself
"""
