"""The GPUs' part of ``gq.parallel``: several GPUs of one process, or one process a GPU.

team.py   streams of several GPUs that work for one caller; copies between them, sums by copies
nccl.py   sums by NCCL, through CuPy
"""
