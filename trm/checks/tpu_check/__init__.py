"""Compiles training programs with the TPU compiler, without a TPU, to estimate memory, communication and step time.

torch_xla traces the training step on as many virtual CPU devices as the slice has chips; libtpu compiles it for the
slice's topology and reports memory, FLOPs and cycles. See docs/tpu.md.
"""
