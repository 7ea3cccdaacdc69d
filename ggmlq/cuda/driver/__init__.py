"""The GPU itself: which one it is, how kernels are compiled, stored and launched, how bytes get there.

    device.py            CuPy if it is there, facts of the card, refusals for older cards; the card's context,
                         made while Python imports CuPy; memory of products that a CUDA graph records
    calls.py             the driver's own calls, by ctypes

Products of torch's tensors, without CuPy:

    serving.py           the library that serves a thread: CuPy or torch
    torch_library.py     torch under CuPy's names

Kernels:

    launch.py            Kernel: a Python function, its code for a capability, called with arrays; families
                         of them; launches over arrays of any height
    compiling.py         machine code of a function, by Numba and nvJitLink
    dialect.py           how Numba reads kernels: plain integers beside unsigned words are such, too; inlining
                         in 40 % of Numba's time
    compile_process.py   the same in another process, where this one does without Numba
    compile_worker.py    that process
    served.py            the code of kernels that comes with the package
    coverage.py          a count of kernels that need no compiler on a card

Launches:

    submit.py            the launch itself, past Numba's slow one; launches prepared once, whose calls fill in
                         addresses
    recorded.py          the launches of a product, recorded once and repeated, also for other rows and other
                         weights; a second stream beside the current one
    parallel/            several GPUs: streams, copies, NCCL

Memory:

    tensor_maps.py       maps of matrices for Hopper's copy engine
    upload.py            host memory to the card, in portions

Nothing here knows what is computed.
"""
