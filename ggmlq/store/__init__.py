"""The store of compiled kernels, from the package and from this machine's disk, and of weights laid out.

    origin.py    the origin of a kernel: the function that makes it, and the arguments of that call
    reach.py     the definitions that a kernel is compiled from, and their digest
    reach.json   the digests of the day when packs were written
    store.py     a kernel's code by its key: from a pack of the package (read here), else from the disk
    disk.py      code that was compiled on this machine, on the user's disk
    layouts.py   weights in the order that kernels read, on the user's disk
    private.py   folders that nobody but this user can write to

A key stands for the definitions of a kernel, its origin, the machine that it is compiled for, and the
versions of the compilers. So a change of a definition makes only those kernels old that are compiled from
it, and an old kernel is compiled like one that was never there.

Packs lie in ``cpu/prebuilt``, a folder for each instruction set (``cpu/machine/levels.py``), and in
``cuda/prebuilt``: machine code for compute capability 9.0, and PTX that drivers translate for other GPUs.
``tools/prebuild.py`` writes them and reach.json.
"""
