"""Storage of compiled kernels: the cache on the user's disk, and the packs that come with the package.

    disk.py      the cache of compiled code, in generations of sources, compilers and CPUs
    private.py   folders that nobody but this user can write to
    sources.py   a digest of source files, which names a generation
    identity.py  a digest of a function, which names an entry of a generation
    packs.py     packs of code that come with the package, and how a kernel's code is read from one
    reach.py     the definitions that a kernel is compiled from, which say whether a pack is stale

Packs lie in ``cpu/prebuilt``, a folder for each instruction set (``cpu/machine/levels.py``), and in
``cuda/prebuilt``: machine code for compute capability 9.0, and PTX that drivers translate for other GPUs.
Beside them files.json has digests of the sources, and compilers.json the versions of the compilers, of the
day when packs were written. ``tools/prebuild.py`` and ``tools/prebuild_cpu.py`` write them; a kernel that has
no code in them, or whose sources have changed since, is compiled like any other.
"""
