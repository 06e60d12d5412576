"""The GPU kit's stage nccl, rehearsed over the fake NCCL on memory of the host."""

import pytest

from gpu_kit_rehearsal import rehearse, with_name

pytestmark = pytest.mark.slow

NCCL = "from gpu_kit import checks, nccl\n{}\nchecks.main('nccl', nccl.run)"
# In place of the stage's checks: its own, on wrong communicators, have to be red.
WRONG = """
class Idle:  # does nothing
    reduce_scatter = all_gather = lambda self, *given: None

class Deaf:  # lives on after its end
    def __init__(self, link):
        self.link, self.abort, self.close = link, lambda why: None, lambda: None
    def __getattr__(self, name):
        return getattr(self.link, name)

class Told:
    def __init__(self):
        self.passed = []
    def check(self, name, passed, *said, **numbers):
        self.passed.append(passed)

def wrong_ones(stage, links):
    stage.check("idle", "are wrong" in links.used(Idle()))
    make, told = links.make, Told()
    links.make = lambda *given: Deaf(make(*given))
    nccl_stale(told, links)
    stage.check("deaf", told.passed == [False, True, True], str(told.passed))

nccl_stale = nccl.stale
nccl.one_rank = wrong_ones
nccl.stale = nccl.together = nccl.a_rank_that_never_comes = lambda *given: None
nccl.a_job = nccl.a_killed_process = nccl.two_on_one = lambda *given: None
nccl.OVER_ALL_GPUS = ()
"""


@pytest.mark.parametrize(
    "left_out", ["nccl.OVER_ALL_GPUS = ()", pytest.param("", marks=pytest.mark.long)]
)
def test_the_stage_nccl_passes_over_the_fake_nccl(tmp_path, left_out):
    lines = rehearse(tmp_path, "-c", NCCL.format(left_out))
    assert not with_name(lines, "all of NCCL")
    (planted,) = with_name(lines, "planted fault")
    assert "the epoch is over" in planted["said"]
    for name in ("end together", "never comes", "is killed", "takes the step again", "two ranks",
                 "goes on"):  # fmt: skip
        assert with_name(lines, name)[0]["state"] == "passed"
    assert left_out or with_name(lines, "killed ranks of 2")[0]["state"] == "passed"


def test_the_checks_of_the_stage_nccl_see_communicators_that_are_wrong(tmp_path):
    lines = rehearse(tmp_path, "-c", NCCL.format(WRONG))
    assert lines["idle"]["state"] == lines["deaf"]["state"] == "passed"
