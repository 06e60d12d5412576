"""collective=: what is refused, and a step of a group of one rank."""

import ballast
import ballast.torch as bt
import pytest
import torch
from ballast.torch import reduced
from training import model

JOB = {"endpoints": "a:1", "job": "job"}


@pytest.fixture
def group(tmp_path):
    """A process group of this process alone."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1
    )
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


def optimizer(m, **options):
    return bt.AdamW(m.named_parameters(), **{"rank": 0, "world_size": 1, **JOB, **options})


def with_gradients(m, leave_out=()):
    for name, p in m.named_parameters():
        p.grad = None if name in leave_out else torch.full_like(p, 0.5)
    return m


@pytest.mark.parametrize("given", [None, "none"])
def test_none_is_a_job_of_local_gradients(fake, given):
    m = with_gradients(model())
    optimizer(m, collective=given).step()
    assert fake.last.options["gradients"] == "local"


def test_a_group_makes_the_gradients_scattered_and_leaves_them_alone(fake, group):
    ours, theirs = with_gradients(model()), with_gradients(model())
    theirs.load_state_dict(ours.state_dict())
    left_out = next(name for name, _ in ours.named_parameters())
    with_gradients(ours, (left_out,)), with_gradients(theirs, (left_out,))
    optimizer(ours, collective=group).step()
    assert fake.last.options["gradients"] == "scattered"
    ((_, _, addresses),) = [call for call in fake.last.calls if call[0] == "step"]
    for (name, p), address in zip(ours.named_parameters(), addresses, strict=True):
        assert (address == 0) == (name == left_out)
        assert p.grad is None or (address != p.grad.data_ptr() and bool((p.grad == 0.5).all()))
    optimizer(theirs, job="other").step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(p, q)


def test_other_words_are_refused():
    with pytest.raises(ballast.BadArgument, match="'mpi': must be \"none\", \"nccl\" or a"):
        optimizer(model(), collective="mpi")


@pytest.mark.parametrize("gradients", ["reduced", "auto"])
def test_gradients_that_are_equal_already_are_not_summed(group, gradients):
    with pytest.raises(ballast.BadArgument, match=f"gradients='{gradients}' says that they are"):
        optimizer(model(), collective=group, gradients=gradients)


@pytest.mark.parametrize("nccl", [False, True])
def test_a_variable_world_is_refused(group, nccl):
    with pytest.raises(ballast.BadArgument, match="it has a fixed number of ranks"):
        optimizer(model(), collective="nccl" if nccl else group, variable_world=True)


@pytest.mark.parametrize(("rank", "world"), [(0, 2), (1, 2)])
def test_a_group_of_another_size_or_rank_is_refused_with_both(group, rank, world):
    with pytest.raises(ballast.BadArgument, match=f"rank 0 of 1, .* seat in the job is rank {rank} "
                       f"of {world}"):  # fmt: skip
        optimizer(model(), collective=group, rank=rank, world_size=world)


def test_a_group_without_this_process_is_refused(group):
    outside = torch.distributed.GroupMember.NON_GROUP_MEMBER
    with pytest.raises(ballast.BadArgument, match="this process is not in that process group"):
        optimizer(model(), collective=outside)


def test_a_model_in_ddp_is_refused_before_anything_is_sent(fake, group, monkeypatch):
    monkeypatch.setattr(reduced, "by_ddp", lambda parameters, world: True)
    opt = optimizer(with_gradients(model()), collective=group)
    opt.attach()
    for _ in range(2):
        with pytest.raises(ballast.BadArgument, match="DDP, which has averaged the gradients"):
            opt.step()
    assert not [call for call in fake.last.calls if call[0] == "step"]


def test_an_error_of_the_group_is_a_lost_trainer_with_place_and_round(fake, group, monkeypatch):
    opt = optimizer(with_gradients(model()), collective=group)
    opt.attach()
    collective = opt._membership.shares._collective

    def fails(*_, **__):
        raise RuntimeError("Connection closed by peer\nmore")

    monkeypatch.setattr("ballast.torch.collective._reduce_scatter", fails)
    monkeypatch.setattr("ballast.torch.collective.ROLL_CALL_S", 0.0)
    with pytest.raises(ballast.TrainerLost) as lost:
        opt.step()
    text = "of epoch 1 did not arrive within 0 s (in reduce-scatter of bucket 0 of round 1; torch "
    assert text + "says: Connection closed by peer). The round was not applied" in str(lost.value)
    with pytest.raises(ballast.TrainerLost, match="The process group is stale"):
        collective.agree([True], 1.0)
    assert not [call for call in fake.last.calls if call[0] == "step"]


def replaced_before_the_push(opt, fake, monkeypatch):
    """The next epoch begins between the first reduce-scatter and the push of its sums; the epochs
    in which sums were formed."""
    shares = opt._membership.shares
    inner, epochs = shares.reduce, []

    def reduce(*arguments):
        lent = inner(*arguments)
        epochs.append(shares.epoch)
        fake.last.epoch = 2
        return lent

    monkeypatch.setattr(shares, "reduce", reduce)
    return epochs


def test_sums_of_an_epoch_that_is_over_are_formed_again_where_the_collective_can(
    fake, group, monkeypatch
):
    ours, theirs = with_gradients(model()), with_gradients(model())
    theirs.load_state_dict(ours.state_dict())
    opt = optimizer(ours, collective=group)
    opt.attach()
    epochs = replaced_before_the_push(opt, fake, monkeypatch)
    monkeypatch.setattr(opt._membership.shares._collective, "recovers", True, raising=False)
    opt.step()
    assert epochs == [1, 2]
    assert opt.round == 1
    optimizer(theirs, job="other").step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(p, q)


def test_sums_of_an_epoch_that_is_over_end_a_job_with_a_process_group(fake, group, monkeypatch):
    opt = optimizer(with_gradients(model()), collective=group)
    opt.attach()
    epochs = replaced_before_the_push(opt, fake, monkeypatch)
    with pytest.raises(ballast.BallastError, match="1 to 2. The process group is stale") as stale:
        opt.step()
    assert stale.value.reason == "STALE_EPOCH"
    assert epochs == [1]
    assert fake.last.aborted
    with pytest.raises(ballast.Closed, match="its process group is stale"):
        opt.step()


def test_nccl_needs_parameters_on_a_gpu(fake):
    needed = "needs all parameters on a GPU, and '.*' is on the CPU; give a process group of gloo"
    with pytest.raises(ballast.Unsupported, match=needed):
        optimizer(with_gradients(model()), collective="nccl").attach()
    assert not fake.attached, "the job was attached to"


@pytest.mark.parametrize("text", ["no", "0", "-1", "inf"])
def test_a_collective_timeout_that_is_none_is_refused(fake, monkeypatch, text):
    monkeypatch.setenv("BALLAST_COLLECTIVE_TIMEOUT", text)
    with pytest.raises(ballast.BadArgument, match=f"BALLAST_COLLECTIVE_TIMEOUT='{text}': must be"):
        optimizer(with_gradients(model()), collective="nccl").attach()
