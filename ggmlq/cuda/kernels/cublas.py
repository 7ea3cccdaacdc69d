"""Numbers that cuBLAS is told, for cuda:dequant_bf16 and for ``y @ q`` with many rows (mma/transposed.py)."""

TRANSPOSED, AS_IS = 1, 0  # cublasOperation_t
R_32F, COMPUTE_32F, DEFAULT = 0, 68, -1  # cudaDataType_t, cublasComputeType_t, the algorithm
INPUT = {"float16": 2, "bfloat16": 14}  # cudaDataType_t
