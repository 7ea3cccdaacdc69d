"""The GPU itself: which it is, how kernels are compiled, kept and launched, how bytes get there.

    device.py   CuPy if it is there, facts of the card, what older cards are refused with
    context_warmup.py   its context, made while Python imports CuPy
    launch.py   Kernel: a Python function, its code for a capability, called with arrays; families of them
    compiling.py  how Numba and nvJitLink make code of a function
    compile_process.py  the same in another process, where this one does without Numba; compile_worker.py: that process
    grid.py     launches over arrays of any height
    submit.py   the launch itself, past Numba's slow one
    prepared_launch.py    a launch prepared once, of which calls fill in addresses
    plans.py    the launches of a product, written down once and repeated
    side_stream.py   a second stream, for work that may run beside that of the current one
    tensor_maps.py     what tells Hopper's copy engine where a matrix lies
    upload.py   host memory to the card, in portions

Nothing here knows what is computed.
"""
