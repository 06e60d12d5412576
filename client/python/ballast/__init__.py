"""Ballast: optimizer state in a sharded service. This module needs neither torch nor the extension.

Use `import ballast.torch as bt` for the optimizers. Errors are subclasses of `BallastError`, one
per thing a caller can do about it; `BallastError.reason` is the contract, texts are not.
"""

from ballast import _exit_reason, _standard_descriptors, errors
from ballast.errors import *  # noqa: F403  (the public exception types)
from ballast.version import __version__

__all__ = ["__version__", "errors", *errors.__all__]

_standard_descriptors.hold()
_exit_reason.listen()
