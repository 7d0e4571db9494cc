"""Sparse MLA for CUDA kernels: the same plan as on ROCm, lowered to padded position rows."""
