"""The network for CPUs: elementwise passes compiled by numba between the library's matrix products.

`kernels` holds the passes, written with the intrinsics of `simd`; `launch` compiles them and runs them on torch's
threads; `layers` and `attention` are one mixing layer each; `network` stacks them into recursion rounds. Without numba,
or in a dtype other than bfloat16 and float32, `trm.model.plain` is used instead.
"""
