"""A GRU, and the same GRU in integers: calibrated, fixed, run, saved.

    z = σ(W_z x + b_xz + R_z h + b_rz)      r = σ(W_r x + b_xr + R_r h + b_rr)
    g = tanh(W_g x + b_xg + r · (R_g h + b_rg))        h' = z · h + (1 - z) · g

    float_gru.py   GRU: float weights, the forward pass, calibration, ``fixed``
    weights.py     the arrays of a direction, x and h0, checked
    widths.py      the names of all tensors, and how many bits each has: "int8", "mixed", "int16" or a mapping
    cell.py        one direction in integers: formats, codes, sums of rows; made from a calibration
    fixed_gru.py   FixedGRU: the GRU that a caller runs, saves and asks for diagnostics
    run.py         a call: check, quantize h, choose a kernel, run, dequantize
    diagnostics.py  counts of saturated values, and how much of each format is used
    plan.py        the constants of kernels for a cell: amounts of shifts, corrections, ends, all in integers
    step.py        the atoms of one step for one unit, plain Python that Numba compiles for CPU and CUDA
    files.py       a FixedGRU in an npz file: integers only, nothing that could be code
    onnx.py        the GRU nodes of an ONNX file, read without a package
    torch.py       the weights of a torch.nn.GRU, and the orders of gates
    cpu/           its kernels for CPUs, a ladder
    cuda/          its kernels for GPUs, a ladder

``ggmlq/reference/gru.py`` computes the same in int64, number by number. Shifts, formats,
observers and tables are ``ggmlq/fixed``.
"""

from .fixed_gru import FixedGRU, SaturationWarning
from .float_gru import GRU
from .torch import from_torch_order, to_torch_order

__all__ = ["GRU", "FixedGRU", "SaturationWarning", "from_torch_order", "to_torch_order"]
