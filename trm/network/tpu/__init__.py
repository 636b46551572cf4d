"""The network for TPUs: Pallas kernels and their recursion."""
