"""The network for processors: elementwise passes compiled by numba between the library's matrix products.

`simd` are the machine instructions, `kernels` the passes, `launch` runs them over torch's threads, `network` puts
them together.
Where numba is missing or a dtype is neither bfloat16 nor float32, `trm.model.fused` serves.
"""
