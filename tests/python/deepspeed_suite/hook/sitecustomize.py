"""`import deepspeed` gives ballast.deepspeed in every process of the suite.

Comes from: test_suite.py, which puts this folder into PYTHONPATH. A name that ballast.deepspeed has
not can be imported, so that the other tests of a file run; its use raises MissingName.
"""

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec


class MissingName(Exception):
    """A test used a name that ballast.deepspeed has not."""


class _Missing(type):
    def __call__(cls, *_, **__):
        raise MissingName(cls.__doc__)

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise MissingName(cls.__doc__)


class _Alias(MetaPathFinder, Loader):
    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] != "deepspeed":
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module):
        try:
            ours = importlib.import_module(f"ballast.{module.__name__}")
        except ModuleNotFoundError:
            ours = None

        def __getattr__(name):
            if hasattr(ours, name) or name.startswith("__"):
                return getattr(ours, name)
            return _Missing(name, (), {"__doc__": f"{module.__name__}.{name}"})

        module.__getattr__ = __getattr__


sys.meta_path.insert(0, _Alias())
