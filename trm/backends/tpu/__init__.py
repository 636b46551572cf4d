"""The network for TPUs: Pallas kernels, their calls, and the recursion built from them."""
