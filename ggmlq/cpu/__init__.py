"""The CPU side. Only this folder and ``cuda`` import Numba, where something has to be compiled.

    choice.py     which rung is fast on this CPU: what was measured, in choice.json
    linear/       the ladder: one way to multiply a file, r0_naive … r7_amx, each with its lesson
    scaled_linear/    the ladder for codes with scales beside them; slabs/ and pairs/ are its operands
    gru/          the ladder of a GRU in integers
    expert_linear/    the ladder for rows that each meet experts of their own
    panels/       the operand of the fast rungs: weights 16 rows at a time, activations as records
    grouped/      many products with panels at once, each of a group of rows with a matrix of its own
    amx/          panels and activations as tiles of bfloat16, for the matrix unit of Intel's CPUs
    slabs/        the same for integer codes alone, whose scales stand apart
    pairs/        8-bit floats as pairs of bfloat16: weights 16 rows at a time, made anew in each product
    unpack/       blocks to codes and scales, one file a format; unpack/_decode.py makes floats of them
    encode/       floats to blocks, one file a format or a program from the format's own file
    quantize_scaled/  floats to codes with scales for every tile
    decode_scaled/    the way back
    lanes/        vectors for compiled code: what unpack and encode are written in
    projection.py  random sums of a product's rows, which judge all of it by one reading of the weights
    attention.py  softmax(q·kᵀ)·v in float64, which attention that is one node is compared with
    atoms.py      a format's atoms compiled as they stand: what serves a format without files here
    unpack/_stretch.py    blocks to floats by the same code, found prebuilt
    machine/      the CPU itself: instructions, kernels by name, the compiler and its cache, threads
    prebuilt/     code of kernels that came with the package

How ``x @ q.T`` is computed, for q4_0 and 512 rows of x:

    ops/linear.py             checks the operands and asks dispatch/ladder.py for a rung
    choice.py                 knows which one was fastest; those that refuse are passed over
    linear/r6_panels.py       is it: the rung says what it reads, keeps and refuses
    panels/layout.py          how panels of q4_0 lie; what of a format is kept says ggmlq/formats/packing.py
    panels/prepare.py         makes them from the blocks, once; they stay with the array
    panels/multiply.py        the walk of one product, from here on
    machine/kernels.py        the code of its kernels: prebuilt, or compiled from the files below
    panels/activations.py     x to 8-bit codes and scales: records, those of twelve rows together
    panels/product.py         the loops over panels and rows that keep both in the cache
    panels/tile.py            the product itself, in registers: one panel, a few rows, all of K
    panels/read.py            in it, how codes and scales come out of a panel
    machine/simd.py           in it, the dot product that this CPU has
    machine/workers.py        the threads that share the panels

(From 32 rows on, panels whose codes take long to read go through panels/expand.py first; q4_0's do not.)

Where something new goes. A format: its file in ``ggmlq/formats``, and all of this serves it; vector code
for it in ``unpack/``. A rung of ``linear``: ``linear/r8_<name>.py``. Another operation: a folder beside
``linear/`` with a ladder of its own, as ``scaled_linear/`` is one. Another kind of operand,
neither panels nor records, as slabs of 8-bit codes with scales beside them: a folder beside
``panels/`` with its layout, what makes it and what reads it, so that rungs only say which they take.
"""
