"""Code of kernels that comes with the package: what tells whether it is of today's sources, for both devices.

    packs.py    files of code, and how a kernel's is found in them
    reach.py    what of the sources a kernel is made of, as a digest

The packs themselves lie with their device: ``cuda/prebuilt``, ``cpu/prebuilt``.
"""
