"""The roofs of a machine, which no product is faster than, and the clock of a GPU that times are read from.

floors.py   peak rates of a CPU or a GPU, and the least time that a product takes under them
timing.py   work timed by a GPU's own clock; its peak rates
probes.py   the kernel that reads a GPU's memory
"""
