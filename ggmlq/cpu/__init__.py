"""The CPU side: kernels that multiply, decode and encode on CPUs.

Only this folder, ``cuda`` and the two folders of these names in ``gru`` import Numba, to compile something.

    choice.py     the rungs that are fast on this CPU: by tables, or by its instructions
    linear/       the ladder: one way to multiply a file, r0_naive … r8_floats, each with its lesson
    scaled_linear/    the ladder for codes with scales beside them
    expert_linear/    the ladder for mixtures of experts: each row is multiplied by experts of its own
    panels/       the operands of the fast rungs: weights 16 rows at a time, activations as rows of codes
    grouped/      products with panels of many experts at once: each expert with the rows that use it
    amx/          panels and activations as tiles of bfloat16, for the matrix unit of Intel's CPUs
    codes8/       products of 8-bit codes with scales: integers, and 8-bit floats as pairs of bfloat16
    unpack/       blocks to codes and scales, by vector code for each format; and to floats
    encode/       floats to blocks, one file a format or a program from the format's own file
    quantize_scaled/  floats to codes with scales for every tile
    decode_scaled/    codes with scales to floats
    lanes.py      vectors for compiled code: unpack and encode are written with them
    atoms.py      a format's atoms compiled as they stand: they serve a format without files here
    projection.py  random sums of a product's rows, by which a trace judges all of it with one reading of w
    attention/    attention over rows of blocks or floats
    layers/       what a model does between products: norms, gates, RoPE, sums
    machine/      the CPU itself: instructions, kernels by name, the compiler and its cache, threads
    report.py     the CPU's part of ``ggmlq doctor``

(The ladder of a GRU in integers lies with the GRU, in ``ggmlq/gru/cpu``.)

How ``x @ q.T`` is computed, for q4_0 and 512 rows of x, on a CPU without a matrix unit:

    ops/linear.py             checks the operands and asks dispatch/ladder.py for a rung
    choice.py                 knows which one was fastest; those that refuse are passed over
    linear/r6_panels.py       is it: the rung says what it reads, prepares and refuses
    panels/layout.py          the layout of panels of q4_0, by the facts of ggmlq/formats/packing.py
    panels/multiply.py        makes them from the blocks, once; drives one product, from here on
    machine/kernels.py        the code of its kernels: prebuilt, or compiled from the files below
    panels/make.py            x to rows of codes: 8-bit codes and scales, those of twelve rows together
    panels/product.py         the loops over panels and rows that keep both in the cache
    panels/tile.py            the product itself, in registers: one panel, a few rows, all of K
    machine/register_tile.py  in it, what all such tiles share
    machine/simd.py           in it, the dot product that this CPU has
    machine/workers.py        the threads that share the panels
    machine/program.py        a model's step: many kernels, which one call runs

(From 32 rows on, panels whose codes take long to read are expanded to bytes first; q4_0's are not.)

Where something new goes. A format: its file in ``ggmlq/formats``, and all of this serves it; vector code
for it in ``unpack/``. A rung of ``linear``: ``linear/r9_<name>.py``. Another operation: a folder beside
``linear/`` with a ladder of its own, as ``scaled_linear/`` is one. Another kind of operand, neither panels
nor rows of codes as blocks have them: a folder beside ``panels/``, as ``codes8/`` is one, with its layout,
what makes it and what reads it, so that rungs only say which they take.
"""
