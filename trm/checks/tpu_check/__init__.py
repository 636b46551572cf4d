"""The training program compiled by the real TPU compiler, with no TPU: does it fit, what does it send, how
long will a step take.

torch_xla traces the very step that training runs, on as many virtual CPU devices as the slice has chips;
libtpu compiles the result for the slice's topology and says memory, FLOPs and cycles. See docs/tpu.md.
"""
