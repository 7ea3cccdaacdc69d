"""Code of kernels that comes with the package, so that a first product waits for no compiler and no Numba.

    machine/levels.py       instruction sets that code comes with
    machine/served.py       the one that serves this CPU, if one does
    machine/loading.py      object code into memory
    files.json      digests of source files when packs were last looked at
    compilers.json  versions of the compilers when packs were last written
    avx512-vbmi/    code for AVX-512 with VNNI and VBMI: Ice Lake, Zen 4 and later
    avx512-vnni/    for AVX-512 with VNNI: Cascade Lake
    avx-vnni/       for AVX2 with its own VNNI: Alder Lake
    avx2/           for AVX2: Haswell, Zen and later
    arm64-dotprod/  for arm64 with dot products: Neoverse N1, Graviton 2 and later
    arm64/          for all other arm64, and CPUs whose name LLVM does not know

``python tools/prebuild_cpu.py`` writes the packs; tools/_packs_cpu.py says which kernels belong in. The code
is what Numba makes for such a CPU, with the same results to the last bit; a kernel without is compiled.
"""
