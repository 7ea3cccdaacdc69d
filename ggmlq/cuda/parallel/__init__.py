"""Several GPUs of one process, or one process a GPU.

team.py   streams of several devices that begin and end together, copies between them, sums by copies
nccl.py   sums by NCCL, through CuPy
"""
