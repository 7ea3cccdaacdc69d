"""The functions that papers and kernels about 8 bits name, under those names: arrays in, arrays out.

They stand on ``gq.quantize_scaled``, ``gq.scaled_linear`` and ``gq.ScaledArray``, which do more; who
knows these names finds here what they mean, with their checks in words. NumPy gives NumPy, CuPy gives
CuPy, torch tensors give tensors. Any strides will do: nothing here must be contiguous. Results are new
arrays that may be written to.

    fp8.py       act_quant, weight_quant, weight_dequant, fp8_gemm; w8a8_block_fp8_matmul and the same in
                 plain array operations
    int8.py      int8_gemm_fp32_output, quantize_int8, quantize_fp8_e4m3
    operands.py  their operands: codes however they are spelled, scales, block sizes; torch tensors in and out
    configs.py   tables of tile sizes that other programs exchange

Codes are uint8 arrays. Where a float8 dtype of ml_dtypes or torch comes in it is taken for what it is.
"""

from .configs import get_w8a8_block_fp8_configs
from .fp8 import (
    act_quant,
    fp8_gemm,
    native_w8a8_block_fp8_matmul,
    w8a8_block_fp8_matmul,
    weight_dequant,
    weight_quant,
)
from .int8 import int8_gemm_fp32_output, quantize_fp8_e4m3, quantize_int8

__all__ = [
    "act_quant",
    "fp8_gemm",
    "get_w8a8_block_fp8_configs",
    "int8_gemm_fp32_output",
    "native_w8a8_block_fp8_matmul",
    "quantize_fp8_e4m3",
    "quantize_int8",
    "w8a8_block_fp8_matmul",
    "weight_dequant",
    "weight_quant",
]
