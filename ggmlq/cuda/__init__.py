"""The CUDA side: CuPy for arrays, Numba for kernels. Only this folder imports either of them."""
