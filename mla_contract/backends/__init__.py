"""Backends: kernels that run the operations of the contract, and builders that lower the shared plan."""
