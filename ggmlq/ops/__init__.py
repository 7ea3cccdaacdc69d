"""The operations on quantized arrays: products, encoding, decoding; and a product's path from call to result.

    linear           activations times weights in blocks
    scaled_linear    codes with scales times codes with scales
    expert_linear    rows times the experts that their tokens use
    warm             calls that repeat an earlier one: little is checked, recorded launches run
    gated_linear     two products, one times a function of the other
    transposed       products with weights as they lie, y @ q
    epilogue         bias, residual and rounding in one pass, where no kernel does them
    tensors          calls with torch tensors, warm ones and others, on torch's stream and with its memory
    operands         operands of a product, checked
    call             a product of checked operands: choose, launch, finish; rows that depend on no others
    tuning           in it, kernels timed where no table says which is fastest
    dry_run          the kernels that products launch on a card, which need not be there
    quantize         floats to blocks
    dequantize       blocks to floats
    attention        softmax(scale·q·kᵀ + mask)·v over keys and values in blocks
    cache            KVCache: keys and values of sequences, and what was appended to each; rotated columns
    rows             arrays that may be written to: rows encoded into them, and decoded
    quantize_scaled  floats to codes with a scale for every tile, and back
    joining          concatenate and stack, block by block; equality of format, shape and bytes

A product looks for a warm call first. Otherwise its operands are checked once (operands), and ``call.run``
chooses a kernel, launches it, records what can be repeated, and adds what the kernel did not: bias, codes,
dtype.
An operation registers itself with the arrays (``arrays.weights.operation``), so that arrays need not import
this room.
"""

from .attention import attention
from .cache import KVCache
from .dequantize import dequantize
from .expert_linear import expert_linear
from .gated_linear import gated_linear
from .joining import concatenate, equal, stack
from .linear import linear
from .quantize import quantize
from .quantize_scaled import quantize_scaled
from .rows import empty, put, take
from .scaled_linear import scaled_linear

__all__ = [
    "KVCache",
    "attention",
    "concatenate",
    "dequantize",
    "empty",
    "equal",
    "expert_linear",
    "gated_linear",
    "linear",
    "put",
    "quantize",
    "quantize_scaled",
    "scaled_linear",
    "stack",
    "take",
]
