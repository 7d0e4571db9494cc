"""Sparse MLA on ROCm: aiter's kernels, and the records that they read."""
