"""DeepSpeed's package `deepspeed.ops`, as far as it is here: op_builder, and aio for DeepNVMe.

Comes from: scripts, as `from ballast.ops.op_builder import AsyncIOBuilder`.
"""
