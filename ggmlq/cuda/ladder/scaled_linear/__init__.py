"""The CUDA ladder of ``scaled_linear``: one rung a file, to be read from the lowest up.

    r0_naive.py          a product of codes with scales, one thread an output
    r1_tiled.py          tiles in shared memory, sums in float32 every 32 columns: the INT8 document's
    r2_dequant.py        FP8 on GPUs before 8.0: decoded to float32, multiplied by the library
    r3_dp4a.py           integers throughout, exact: four products an instruction
    r4_mma_int8.py       int8 tensor cores
    r5_widen.py          FP8 widened to halves, exactly, for the tensor cores of halves
    r6_mma_e4m3.py       FP8 tensor cores without wgmma: capabilities 8.9 and 12.x
    r9_persistent.py     Hopper: persistent blocks with producer and consumer warps, boxes, wgmma; int8 too
    r10_small_m.py       up to 64 rows: operands swapped, K split among a cluster
    r11_split_k.py       some hundred rows: K of a tile split among a cluster
    operands.py          the host's side of r0 to r3: codes, scales and zero points as their kernels take them

r0 to r3 import no other rung: each kernel is read alone. The rungs from r4 on stand on codes8/. The head of
a file says what it changed from the rung below, why that helps and what limits it now. Integers are summed
exactly, so all rungs that take a problem agree to the bit (r1 apart, whose sums are float32).
"""
