"""The CUDA side: CuPy for arrays, Numba for kernels. Nothing else imports CuPy; Numba ``cpu`` does too."""
