"""Code of kernels that comes with the package, so that a first product waits for no compiler.

    sm_90/          machine code for compute capability 9.0
    ptx/            PTX for all other GPUs, which their driver translates
    files.json      digests of source files when the packs were last checked
    compilers.json  versions of the compilers when the packs were last written

machine/served.py finds the code of a kernel here. ``python tools/prebuild.py`` writes the packs;
tools/_packs.py lists
the kernels that belong in. A kernel without a pack, or whose sources have changed since, is compiled at
run time
and stored on disk (machine/launch.py).
"""
