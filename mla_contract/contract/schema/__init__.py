"""What metadata must be, as types: Protocols in tiers, what a backend declares, and the operations of kernels."""
