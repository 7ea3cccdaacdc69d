"""The operations on quantized arrays: products, encoding, decoding; and a product's path from call to result.

    door             any array becomes an operand, once; the declarations of products, and their ways in
    linear           activations times weights in blocks
    scaled_linear    codes with scales times codes with scales
    expert_linear    rows times the experts that their tokens use
    gated_linear     two products, one times a function of the other
    transposed       products with weights as they lie, y @ q
    plan             plans kept with weights, and calls that need nothing else; templates of plans on a GPU
    operands         weights, codes and ids of a product, checked
    product          a product of checked operands: choose, launch, finish; rows that depend on no others
    epilogue         the result that a caller wants, checked: bias, residual, gate, codes and dtype, finished
    tuning           in it, kernels timed where no table says which is fastest
    dry_run          the kernels that products launch on a card, which need not be there
    quantize         floats to blocks
    feedback         the same by error feedback: later columns make good what a column loses
    dequantize       blocks to floats; floats as blocks would have them
    attention        softmax(scale·q·kᵀ + mask)·v over keys and values in blocks
    cache            KVCache: keys and values of sequences, and what was appended to each; rotated columns
    rows             arrays that may be written to: rows encoded into them, and decoded
    quantize_scaled  floats to codes with a scale for every tile, and back
    joining          concatenate and stack, block by block; equality of format, shape and bytes

A product looks its plan up first. Otherwise it comes in by the door, its operands are checked once, and
``product.run`` chooses a kernel, launches it, keeps the plan, and adds what the kernel did not.
``docs/house.md`` follows one call.
An operation registers itself with the arrays (``arrays.weights.operation``), so that arrays need not import
this room.
"""

from .attention import attention
from .cache import KVCache
from .dequantize import dequantize, fake_quantize
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
    "fake_quantize",
    "gated_linear",
    "linear",
    "put",
    "quantize",
    "quantize_scaled",
    "scaled_linear",
    "stack",
    "take",
]
