"""The CUDA side: CuPy for arrays, Numba for kernels. Nothing else imports CuPy; Numba ``cpu`` does too.

    machine/      the GPU itself: which one, how kernels are compiled, kept on disk and launched, uploads
    prebuilt/     code of kernels that comes with the package: a first product compiles nothing
    words/        what kernels are written in: instructions that Numba has no name for, formats' atoms
    activations/  what is made of rows of floats: other floats, int8 codes
    planes/       weights as one matrix of int8 codes and one of scales, and tiles of them in shared memory
    strips/       weights in the file's bits, in the order in which tensor cores take them
    tiles8/       rows of 8-bit codes with scales beside them, and tiles of them in shared memory
    gemv/         what the kernel for few rows is made of
    pipeline/     what kernels that fill the card share: rings of stages, parts of the columns
    linear/       the ladder: one rung a file, each a kernel and its ``launch``
    scaled_linear/  that of products of codes with scales
    expert_linear/  that of products with the experts that tokens use
    gru/          that of GRUs in integers, and what they are made of
    parallel/     several GPUs: streams, copies, NCCL
    quantize/     encoders: one format a file
    dequantize    decoders of all formats, in one kernel; dequantize_k: those of K types, by words
    quantize_scaled/  floats to codes with scales for tiles; dequantize_scaled: and back
    choice        which rung is fast for a problem: choice.json, as measured

Rungs stand on operands (activations, planes, strips, tiles8), and these on words and the machine. How a
product comes about, for q4_0 at M=512 on a Hopper card: ``choice`` names linear/r15_wgmma.py; its
``launch`` takes the strips of the weights (packed/pack.py, made once) and activations as bfloat16
(activations/floats.py), and runs its kernel through warp_specialized/product.py.

A new kernel is a file in linear/ or scaled_linear/ and touches nothing else.
"""
