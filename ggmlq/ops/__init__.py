"""The operations: what a caller passes is checked, a kernel is chosen, it runs.

    linear       activations times quantized weights; fast_path has what is valid at a glance,
                 fast_torch the same of tensors
    quantize     floats to blocks; encoding deals the rows out
    dequantize   blocks to floats; decoding deals the rows out
    quantize_scaled, scaled_linear   the same for codes with a scale for every tile
    expert_linear   rows times the experts that their tokens use; expert_operands checks these,
                    fast_experts has what was done before
    equal        the same format, shape and bytes; joining: concatenate and stack, block by block
    torch        tensors in and out

An operation registers itself with the arrays (``matrix.operation``), which so need not know it.
"""

from .dequantize import dequantize
from .equal import equal
from .expert_linear import expert_linear
from .joining import concatenate, stack
from .linear import linear
from .quantize import quantize
from .quantize_scaled import quantize_scaled
from .scaled_linear import scaled_linear

__all__ = [
    "concatenate",
    "dequantize",
    "equal",
    "expert_linear",
    "linear",
    "quantize",
    "quantize_scaled",
    "scaled_linear",
    "stack",
]
