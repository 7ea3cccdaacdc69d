"""Compiled code: the cache on the disk, and the packs that come with the package.

    disk.py      the cache of compiled code, in generations of sources, compilers and CPUs
    private.py   folders that nobody but this user can write to
    sources.py   a digest of source files, which names a generation
    identity.py  a digest of a function, which names an entry of a generation
    packs.py     packs of code that come with the package, and how a kernel's code is read from one
    reach.py     the definitions that a kernel is compiled from, which say whether a pack is stale

The packs lie with their device: ``cuda/prebuilt``, ``cpu/prebuilt``.
"""
