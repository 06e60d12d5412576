"""DeepNVMe: tensors to and from files past the page cache; see docs/deepnvme.md.

Comes from: scripts, as `from ballast.ops.aio import AsyncIOBuilder` or through ballast.ops.
"""

from ballast.ops.op_builder import AsyncIOBuilder

__all__ = ["AsyncIOBuilder"]
