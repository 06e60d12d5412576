"""pytest plugin of the suite: every launch forks its ranks, and has a job of its own.

Comes from: test_suite.py. DeepSpeed's tests start their ranks through unit.common.
"""

import functools
import itertools
import os
import sys

import pytest
import torch.multiprocessing

_start = torch.multiprocessing.set_start_method
torch.multiprocessing.set_start_method = lambda method, force=False: _start("fork", force=True)
_numbers = itertools.count()
_Parallel = torch.nn.parallel.DistributedDataParallel


class _OnCpu(_Parallel):
    """torch's DDP, which refuses the device that tests name if it is the CPU."""

    def __init__(self, module, device_ids=None, output_device=None, **named):
        super().__init__(module, **named)


if not torch.cuda.is_available():
    torch.nn.parallel.DistributedDataParallel = _OnCpu


def name_job():
    os.environ["BALLAST_JOB"] = f"suite-{os.getpid()}-{next(_numbers)}"


def pytest_runtest_setup(item):
    name_job()


def pytest_collection_modifyitems(items):
    from unit import common
    from unit.common import DistributedExec

    launch, run, close = (
        DistributedExec._launch_procs, DistributedExec._dist_run, DistributedExec._close_pool,
    )  # fmt: skip

    def launched(self, num_procs, init_method):
        name_job()
        launch(self, num_procs, init_method)

    @functools.wraps(run)  # Its name is how a process of the pool finds it.
    def ran(self, *arguments):
        try:
            return run(self, *arguments)
        except pytest.fail.Exception as failed:
            # A pool waits forever for a process that ends with something other than an Exception.
            raise AssertionError(str(failed)) from None

    def closed(self, pool, *arguments, **named):
        if sys.exc_info()[0] is None:
            return close(self, pool, *arguments, **named)
        pool.terminate()  # Ranks may wait for a failed one.
        pool.join()

    def reduced(flag, op):
        flags = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(flags, bool(flag))
        return op(flags)

    if not torch.cuda.is_available():
        common.reduce_boolean_flags = reduced  # Its own puts the flag on device 0.
    DistributedExec._launch_procs = launched
    DistributedExec._dist_run = ran
    DistributedExec._close_pool = closed
