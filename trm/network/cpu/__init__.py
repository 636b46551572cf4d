"""The network for processors.

Two ways, each as layers of the same kind: `layers` and `attention` are elementwise passes compiled by numba
(`kernels`) between the library's matrix products; `blocked` computes whole layers by products of our own
(`layer_forward`, `layer_backward`) where the processor multiplies bfloat16. Underneath: `simd` and `lanes` are the
machine's instructions, `tile` a product in registers, `panels` how its right factor lies in memory; `launch` runs
kernels over torch's threads, `network` puts the layers together.
Where numba is missing or a dtype is neither bfloat16 nor float32, `trm.network.eager.fused` serves.
"""
