"""The operations on quantized arrays: products, encoding, decoding; and a product's path from call to result.

    linear           activations times weights in blocks
    scaled_linear    codes with scales times codes with scales
    expert_linear    rows times the experts that their tokens use
    warm             calls that repeat an earlier one: little is checked, recorded launches run
    tensors          calls with torch tensors, warm ones and others
    operands         operands of a product, checked
    call             a product of checked operands: choose, launch, finish
    quantize         floats to blocks; encoding.py deals the rows out
    dequantize       blocks to floats; decoding.py deals the rows out
    quantize_scaled  floats to codes with a scale for every tile, and back
    equal            equality of format, shape and bytes
    joining          concatenate and stack, block by block

A product looks for a warm call first. Otherwise its operands are checked once (operands), and ``call.run``
chooses a kernel, launches it, records what can be repeated, and adds what the kernel did not: bias, codes,
dtype.
An operation registers itself with the arrays (``arrays.weights.operation``), so that arrays need not import
this room.
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
