"""The trainers of a script as processes, killed or run to their end.

Comes from: test_real_checkpoint.py and test_real_loader.py.
"""

from __future__ import annotations

import os
import subprocess
import sys

from real_training import CLIENT


def started(script, endpoints, job, world, *arguments):
    """One process per trainer."""
    environ = {**os.environ, "PYTHONPATH": str(CLIENT), "BALLAST_ENDPOINTS": ",".join(endpoints),
               "BALLAST_JOB": job, "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen([sys.executable, script, *map(str, arguments)],
                         env={**environ, "RANK": str(rank)}, text=True, stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for rank in range(world)
    ]  # fmt: skip


def killed(trainers):
    """Each says "done", and is killed then."""
    for trainer in trainers:
        said = trainer.stdout.readline()
        assert said == "done\n", trainer.communicate("x")[1]
    for trainer in trainers:
        trainer.communicate("x")
    assert [trainer.returncode for trainer in trainers] == [-9] * len(trainers)


def ended(trainers):
    """The first one's result."""
    said = [trainer.communicate(timeout=300) for trainer in trainers]
    assert not any(t.returncode for t in trainers), "".join(err for _, err in said)
    return said[0][0]
