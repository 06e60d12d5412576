"""pytest plugin of the suite: every launch forks its ranks, and has a job of its own.

Comes from: test_suite.py. DeepSpeed's tests start their ranks through unit.common.
"""

import itertools
import os

import torch.multiprocessing

_start = torch.multiprocessing.set_start_method
torch.multiprocessing.set_start_method = lambda method, force=False: _start("fork", force=True)
_numbers = itertools.count()


def name_job():
    os.environ["BALLAST_JOB"] = f"suite-{os.getpid()}-{next(_numbers)}"


def pytest_runtest_setup(item):
    name_job()


def pytest_collection_modifyitems(items):
    from unit.common import DistributedExec

    launch = DistributedExec._launch_procs

    def launched(self, num_procs, init_method):
        name_job()
        launch(self, num_procs, init_method)

    DistributedExec._launch_procs = launched
