"""Several GPUs of one process, or one process a GPU.

streams.py   streams of several devices that start and end together
team.py      copies between them, sums by copies
nccl.py      sums by NCCL, through CuPy
"""
