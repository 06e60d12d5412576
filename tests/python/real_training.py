"""The common part of tests over real servers: extents of small models, names of jobs, trainers in
threads.

Comes from: test_end_to_end.py, test_interrupts.py and test_lifetime.py.
"""

import itertools
import os
import threading

from serving import REPO

CLIENT = REPO / "client" / "python"
SMALL = {"extent_elements": 128, "tile_elements": 64, "attach_timeout": 60}

_job_numbers = itertools.count(1)


def fresh_job(stem: str) -> str:
    """A name that no job of shared servers has had."""
    return f"{stem}-{os.getpid()}-{next(_job_numbers)}"


def in_threads(*bodies):
    """Runs the trainers of one job side by side; raises the first error."""
    errors = []

    def guarded(body):
        try:
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(b,)) for b in bodies]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not any(t.is_alive() for t in threads)
    if errors:
        raise errors[0]
