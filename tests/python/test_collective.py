"""collective=: refusals, and a step of a group of one rank."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import ballast
import ballast.torch as bt
import pytest
import torch
from ballast import _rank_liveness
from ballast.rendezvous import Phase
from ballast.torch import reduced
from ballast.torch.collective import Agreement
from ballast.torch.manifest import Entry
from ballast.torch.shares import Shares
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
    monkeypatch.setattr("ballast._rank_liveness.WAIT_S", 0.0)
    with pytest.raises(ballast.TrainerLost) as lost:
        opt.step()
    text = "of epoch 1 did not arrive within 0 s (in reduce-scatter of bucket 0 of round 1; torch "
    assert text + "says: Connection closed by peer). The round was not applied" in str(lost.value)
    with pytest.raises(ballast.TrainerLost, match="The process group is stale"):
        collective.agree([True], 1.0)
    assert fake.last.doing == (Phase.REDUCE_SCATTER, 0, 1), "what the home says of this rank"
    assert not [call for call in fake.last.calls if call[0] == "step"]


def test_the_home_learns_of_the_push_after_the_sums(fake, group, monkeypatch):
    opt = optimizer(with_gradients(model()), collective=group)
    opt.attach()
    session, said = opt._membership.session, []
    inner = session.step
    monkeypatch.setattr(session, "step", lambda *a: said.append(fake.last.doing) or inner(*a))
    opt.step()
    opt.step()
    assert said == [(Phase.PUSH, 0, 1), (Phase.PUSH, 0, 2)]


def test_ranks_whose_tensor_is_on_other_kinds_of_device_are_refused_by_its_name():
    everyones, barrier = [None] * 2, threading.Barrier(2)
    grad = torch.ones(4)

    def entry(name, device):
        return Entry(grad, name, (), True, 0, 0, grad.shape, device=torch.device(device))

    def train(rank):
        calls = Agreeing(rank, everyones, barrier)
        entries = [entry("a", "cuda:1"), entry("b", "cuda:0" if rank else "cpu")]
        with pytest.raises(ballast.BadArgument) as refused:
            Shares(calls, calls._session).reduce(entries, [(grad.data_ptr(), grad)] * 2, 1.0)
        return str(refused.value)

    with ThreadPoolExecutor(2) as ranks:
        said = list(ranks.map(train, range(2)))
    assert "parameter 'b' is on cpu at rank 0, and on cuda at rank 1: the ranks" in said[0]
    assert "parameter 'b' is on cuda at rank 1, and on cpu at rank 0: the ranks" in said[1]


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


class Meeting:
    """The collective of one rank of a few in threads, each of which gives and gets in turn."""

    recovers = False

    def __init__(self, rank, everyones, barrier):
        self.rank, self.world = rank, len(everyones)
        self._everyones, self._barrier = everyones, barrier

    def _exchange(self, mine):
        self._barrier.wait(60)
        self._everyones[self.rank] = mine
        self._barrier.wait(60)
        return self._everyones[:]

    def agree(self, present, scale, places):
        return [any(bits) for bits in zip(*self._exchange(present))]

    def reduce_scatter(self, share, bucket, number):
        share.copy_(sum(self._exchange(bucket.clone())).view(self.world, -1)[self.rank])

    def all_gather(self, bucket, share, number):
        bucket.copy_(torch.cat(self._exchange(share.clone())))


class Agreeing(Agreement):
    """As Meeting, with the shipped agreement."""

    def __init__(self, rank, everyones, barrier):
        config = SimpleNamespace(world_size=len(everyones), rank=rank, job="job")
        super().__init__(config, SimpleNamespace(round=0, epoch=1, dealt=list), 60.0)
        self._everyones = Meeting(rank, everyones, barrier)._exchange


class Deal:
    """A session of which Shares asks the deal and the round alone."""

    round = 0

    def __init__(self, extents):
        self.dealt = lambda: extents

    def set_doing(self, *doing):
        pass


def in_fsdp_1(m, **options):
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(m, device_id=torch.device("cpu"), **options)


def in_fsdp_2(m):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(m, mesh=init_device_mesh("cpu", (1,)))


SHARDED = {
    "a FlatParameter of FSDP:": lambda m: in_fsdp_1(m, use_orig_params=False),
    r"a view of a FlatParameter of FSDP \(use_orig_params\):": lambda m: in_fsdp_1(
        m, use_orig_params=True
    ),
    "a DTensor, of FSDP 2 or of tensor parallelism:": in_fsdp_2,
}


@pytest.mark.parametrize("what", SHARDED)
def test_a_model_that_is_sharded_is_refused_by_class_name(fake, group, what):
    m = SHARDED[what](model())
    with pytest.raises(ballast.Unsupported, match=f"parameter '.*' is {what} this process may"):
        bt.AdamW(m.named_parameters(), **JOB).attach()
    assert not fake.attached


# torch takes it for the CPU, and it is unequal to torch.device("cpu").
OTHER = torch.device("cpu:0")


def test_with_tensors_on_two_devices_each_extents_sum_lands_on_the_rank_that_pushes_it():
    world, sizes = 2, [6, 4, 6, 4, 5]
    on = [torch.device("cpu"), OTHER, OTHER, torch.device("cpu"), OTHER]
    # The third extent lies on both devices.
    extents = [
        (0, 0, [(4, 0, 5)]),
        (0, 1, [(3, 0, 4)]),
        (0, 0, [(2, 2, 4), (0, 4, 2)]),
        (0, 1, [(0, 0, 4)]),
        (0, 0, [(2, 0, 2), (1, 0, 4)]),
    ]
    everyones, barrier = [None] * world, threading.Barrier(world)

    def train(rank):
        entries = [
            Entry(torch.zeros(n), f"p{i}", (), True, 0, 0, torch.Size([n]), device=device)
            for i, (n, device) in enumerate(zip(sizes, on, strict=True))
        ]
        grads = [torch.full((n,), 10.0**i) + rank for i, n in enumerate(sizes)]
        shares = Shares(Meeting(rank, everyones, barrier), Deal(extents))
        lent = shares.reduce(entries, [(g.data_ptr(), g) for g in grads], 1.0)
        for _, to, pieces in extents:
            for tensor, first, count in pieces if to == rank else []:
                pushed = lent[tensor][1][first : first + count]
                assert pushed.tolist() == [2 * 10.0**tensor + 1] * count, (rank, tensor)
                entries[tensor].param[first : first + count] = tensor + 0.5
        shares.gather(entries, lent)
        for i, entry in enumerate(entries):
            assert entry.param.tolist() == [i + 0.5] * sizes[i], (rank, i)

    with ThreadPoolExecutor(world) as ranks:
        list(ranks.map(train, range(world)))


def test_a_group_that_does_not_take_a_tensors_device_is_refused_by_name(fake, tmp_path):
    torch.distributed.init_process_group(
        "cuda:gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1
    )
    try:
        group = torch.distributed.group.WORLD
        text = r"without a backend for cpu, and parameter '.*' is on cpu; .*cpu:gloo,cuda:nccl"
        with pytest.raises(ballast.Unsupported, match=text):
            optimizer(with_gradients(model()), collective=group).attach()
        assert not fake.attached, "the job was attached to"
    finally:
        torch.distributed.destroy_process_group()


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


def news(rank, ago_s, heard=True, since_epoch=0, doing=(0, 0, 0)):
    """A rank in the answer of the extension to a roll call."""
    return (rank, heard, ago_s, since_epoch, *doing)


def error(code, reason="UNSPECIFIED", text="the job's home is away: refused"):
    return ballast.BallastError(text, code=code, reason=reason)


class Home:
    """A session of rank 0 in epoch 12 whose home gives these answers, the last one forever.

    An answer: an error, or (the session's epoch by then, the ranks).
    """

    config = SimpleNamespace(rank=0, time_scale=1.0)

    def __init__(self, *answers):
        self._answers = itertools.chain(answers, itertools.repeat(answers[-1]))
        self.epoch = 12
        self.asked = 0

    def call(self, _):
        self.asked += 1
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        self.epoch, ranks = answer
        return {"ranks": ranks, "generation": 1, "ended": "", "lease_s": 30.0}


def test_a_rank_that_the_home_does_not_hear_is_lost_and_named_with_what_it_did():
    doing = (Phase.REDUCE_SCATTER, 7, 812)
    home = Home((12, [news(0, 9.0), news(1, 0.1), news(2, 0.2), news(3, 58.0, doing=doing)]))
    found = _rank_liveness.look(home, 12)
    assert found.ranks == [3]
    assert found.notes == [
        "rank 3 was last heard 58 s ago, in reduce-scatter of bucket 7 of round 812"
    ]


def test_the_home_is_asked_until_a_rank_is_silent(monkeypatch):
    home = Home((12, [news(0, 0.0), news(1, 0.4)]), (12, [news(0, 0.0), news(1, 1.6)]))
    assert _rank_liveness.look(home, 12).ranks == [1]
    assert home.asked == 2
    monkeypatch.setattr(_rank_liveness, "WAIT_S", 0.0)
    found = _rank_liveness.look(Home((12, [news(0, 0.0), news(1, 0.4)])), 12)
    assert found == _rank_liveness.Findings([], [])


def test_a_home_that_just_started_names_no_rank_as_lost_before_a_lease_has_passed(monkeypatch):
    monkeypatch.setattr(_rank_liveness, "WAIT_S", 0.0)
    found = _rank_liveness.look(Home((12, [news(0, 0.0), news(1, 2.5, heard=False)])), 12)
    assert found.ranks == []
    assert found.notes == ["rank 1 was not heard since the home began to listen, 2.5 s ago"]
    silent = news(1, 30.0, heard=False, since_epoch=9)
    found = _rank_liveness.look(Home((12, [news(0, 0.0), silent])), 12)
    assert found.ranks == [1]
    assert found.notes == ["rank 1 was not heard since it took its seat, 30.0 s ago"]


def test_a_rank_whose_seat_has_a_new_process_is_lost_without_any_silence():
    ranks = [news(0, 0.0), news(1, 0.1, since_epoch=13), news(2, 0.1, since_epoch=12)]
    home = Home(error("FAILED_PRECONDITION", "STALE_EPOCH"), (13, ranks), (13, ranks))
    found = _rank_liveness.look(home, 12)
    assert found == _rank_liveness.Findings([1], ["rank 1 has a new process since epoch 13"])


def test_a_home_that_is_away_is_asked_once_and_the_text_says_so():
    home = Home(error("UNAVAILABLE"))
    away = _rank_liveness.Findings([], ["the job's home is away: refused"])
    assert _rank_liveness.look(home, 12) == away
    assert home.asked == 1
    assert _rank_liveness.look(home, 12, [2]).ranks == [2]


def test_ranks_that_are_known_to_be_lost_stay_what_they_are():
    doing = (Phase.AGREEMENT, 0, 5)
    home = Home((12, [news(0, 0.0), news(1, 0.2, doing=doing), news(2, 4.0)]))
    found = _rank_liveness.look(home, 12, [1])
    assert found.ranks == [1]
    assert found.notes == ["rank 1 was last heard 0 s ago, in agreement of round 5"]
    assert home.asked == 1
