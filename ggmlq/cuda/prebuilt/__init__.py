"""Code of kernels that comes with the package, so that a first product waits for no compiler.

    machine/served.py   which packs serve a GPU; machine/coverage.py: how many kernels that are
    files.json  digests of source files when packs were last looked at
    compilers.json  versions of the compilers when packs were last written
    sm_90/      machine code for compute capability 9.0
    ptx/        for all other GPUs, which their driver translates

``python tools/prebuild.py`` writes the packs; tools/_packs.py says which kernels belong in. Where there
is none for a kernel, or its sources have changed since, it is compiled as any other, and kept on the
disk (machine/launch.py).
"""
