"""Code of kernels that comes with the package, so that a first product waits for no compiler.

    packs.py    finding a kernel's code in the packs, and whether it still is what the sources say
    reach.py    what of the sources a kernel is made of, as a digest
    files.json  digests of source files when packs were last looked at
    sm_90/      machine code for compute capability 9.0
    ptx/        for all other GPUs, which their driver translates

``python tools/prebuild.py`` writes the packs; tools/_packs.py says which kernels belong in. Where there
is none for a kernel, or its sources have changed since, it is compiled as any other, and kept on the
disk (machine/launch.py).
"""
