"""Many optimizers in one process: the remains of closed ones, and the text of a refusal."""

import weakref

import pytest
import torch

import ballast
import ballast.torch as bt
from ballast import _closed_jobs, _exit_hooks, control, errors


def stepped(**options):
    p = torch.nn.Parameter(torch.zeros(3))
    p.grad = torch.ones(3)
    opt = bt.AdamW([("w", p)], **options)
    opt.attach()
    opt.step()
    return opt


@pytest.fixture
def deleted(fake, monkeypatch):
    """The names of the jobs that the servers were told to remove; ballast-run has made up "job"."""
    names, answers = [], []

    class Servers:
        def delete_job(self, name):
            names.append(name)
            if answers:
                raise answers.pop()

    monkeypatch.setattr(control, "of", lambda config: Servers())
    monkeypatch.setattr(_closed_jobs, "_closed", [])
    monkeypatch.setattr(_closed_jobs, "_told", False)
    monkeypatch.setenv("BALLAST_JOB_MADE_UP", "job")
    return names, answers


def test_of_trials_without_names_the_newest_stay(deleted, capsys):
    for _ in range(10):
        opt = stepped()
        opt.close()
        opt.close()
    assert deleted[0] == ["job", "job.2"]
    assert capsys.readouterr().err == "ballast: job is removed: of closed jobs without job=, the " \
        "newest 8 stay\n"


@pytest.mark.parametrize(
    "options",
    [
        {"job": "mine"},
        {"resume": "auto"},
        {"durability": "none"},
        {"rank": 1, "world_size": 2},
    ],
)
def test_jobs_that_may_be_asked_for_stay(deleted, options):
    for i in range(10):
        stepped(**{**options, **({"job": f"mine{i}"} if "job" in options else {})}).close()
    assert deleted[0] == []


def test_a_name_that_the_environment_has_chosen_is_not_made_up(deleted, monkeypatch):
    monkeypatch.setenv("BALLAST_JOB", "chosen")
    for _ in range(10):
        stepped().close()
    assert deleted[0] == []


def test_a_job_that_is_asked_for_by_its_made_up_name_stays(deleted):
    stepped().close()
    again = bt.AdamW([("w", torch.nn.Parameter(torch.zeros(3)))], job="job", resume="auto")
    again.attach()
    again.close()
    for _ in range(9):
        stepped().close()
    assert deleted[0] == ["job.2"]


def test_a_job_that_cannot_be_removed_costs_a_warning(deleted):
    deleted[1].append(ballast.NotPermitted("a viewer may not"))
    with pytest.warns(UserWarning, match="stays on the servers: a viewer may not"):
        for _ in range(9):
            stepped().close()


def test_close_removes_the_job_when_it_is_told_to(deleted):
    opt = stepped(job="mine")
    opt.close()
    opt.close(delete=True)
    deleted[1].append(errors.from_status("", "JOB_BUSY", "others are attached", "j", 0, -1, -1))
    opt.close(delete=True)  # The last one removes it.
    assert deleted[0] == ["mine", "mine"]
    deleted[1].append(ballast.NotPermitted("a viewer may not"))
    with pytest.raises(ballast.NotPermitted):
        opt.close(delete=True)
    bt.AdamW([torch.nn.Parameter(torch.zeros(3))]).close(delete=True)  # There is none.
    assert len(deleted[0]) == 3


FULL = "64 jobs are under way; limits.max_jobs is 64. Wait for one to end, or raise it"


@pytest.mark.parametrize("jobs", [7, 8])
def test_an_optimizer_per_parameter_is_told_what_to_use_instead(fake, monkeypatch, jobs):
    monkeypatch.setattr(_exit_hooks, "_sessions", weakref.WeakSet())
    opened = [stepped() for _ in range(jobs)]
    fake.attach_error = ballast.OverBudget(FULL)
    with pytest.raises(ballast.OverBudget) as refused:
        stepped()
    advice = "This process is in 8 jobs, one for each of its optimizers. One optimizer of all"
    assert (advice in str(refused.value)) == (jobs == 8) == (str(refused.value) != f"{FULL} "
                                                             "[OVER_BUDGET]")  # fmt: skip
    for opt in opened:
        opt.close()
