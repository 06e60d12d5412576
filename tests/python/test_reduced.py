"""gradients=: the value for the service, the findings about DDP, and the messages."""

import warnings

import ballast
import ballast.torch as bt
import pytest
import torch
from ballast.torch import reduced
from torch import nn
from training import model

JOB = {"endpoints": "a:1", "job": "job"}


@pytest.fixture
def alone_in_gloo(tmp_path):
    """A process group of this process alone."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def in_ddp(monkeypatch, answer):
    monkeypatch.setattr(reduced, "by_ddp", lambda parameters, world: answer)


def stepped(**options):
    m = model()
    opt = bt.AdamW(m.named_parameters(), rank=0, **{**JOB, "world_size": 2, **options})
    for p in m.parameters():
        p.grad = torch.ones_like(p)
    opt.step()
    return opt


@pytest.mark.parametrize("gradients", ["local", "reduced"])
def test_what_is_said_reaches_the_service(fake, gradients):
    stepped(gradients=gradients)
    assert fake.last.options["gradients"] == gradients


def test_other_words_are_refused():
    with pytest.raises(ballast.BadArgument, match="gradients='equal': must be one of 'local'"):
        bt.AdamW(model().parameters(), gradients="equal", **JOB)


@pytest.mark.parametrize(
    ("world", "found", "sent", "said"),
    [
        (2, True, "reduced", "gradients of 2 trainers: one of them pushes"),
        (2, False, "local", "gradients of 2 trainers: the service averages"),
        (1, False, "reduced", ""),
    ],
)
def test_auto_looks_whether_the_model_is_in_ddp(fake, monkeypatch, capfd, world, found, sent, said):
    in_ddp(monkeypatch, found)
    opt = stepped(gradients="auto", world_size=world)
    opt.step()
    assert fake.last.options["gradients"] == sent
    err = capfd.readouterr().err
    assert err.count("gradients of") == (said != "")
    assert said in err


def test_auto_takes_part_in_a_job_that_averages(fake, monkeypatch):
    in_ddp(monkeypatch, True)
    seen = []
    start = fake.start_attach

    def attach(**given):
        seen.append(given["options"].gradients)
        if seen[-1] == "reduced":
            raise ballast.SpecMismatch("in words that no program reads")
        return start(**given)

    monkeypatch.setattr(fake, "start_attach", attach)
    stepped(gradients="auto")
    assert seen == ["reduced", "local"]
    with pytest.raises(ballast.SpecMismatch):
        stepped(gradients="reduced")


def test_auto_hides_no_other_mismatch(fake, monkeypatch):
    in_ddp(monkeypatch, True)

    said = iter(("world is 2, the job has 3", "gradients is local, the job has reduced"))

    def attach(**options):
        raise ballast.SpecMismatch(f"slot 0 does not match: {next(said)}")

    monkeypatch.setattr(fake, "start_attach", attach)
    with pytest.raises(ballast.SpecMismatch, match="world is 2"):
        stepped(gradients="auto")
    assert next(said, None) is None


def test_ddp_without_a_word_is_warned_of_once(fake, monkeypatch):
    in_ddp(monkeypatch, True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        opt = stepped()
        opt.step()
    assert sum("the model is in DDP" in str(w.message) for w in caught) == 1


@pytest.mark.parametrize(("found", "warned"), [(True, 0), (False, 1)])
def test_a_clip_of_equal_gradients_is_that_of_their_mean(fake, monkeypatch, found, warned):
    in_ddp(monkeypatch, found)
    m = model()
    opt = bt.AdamW(m.named_parameters(), rank=0, world_size=2, gradients="auto", **JOB)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i in range(20):
            for n, p in enumerate(m.parameters()):
                p.grad = torch.ones_like(p) * (1.0 + (i * (n + 1)) % 7)
            nn.utils.clip_grad_norm_(m.parameters(), 0.01)
            opt.step()
    assert sum("one norm" in str(w.message) for w in caught) == warned


# --- DDP itself -----------------------------------------------------------------------------------


def test_ddp_is_found_by_its_parameters(alone_in_gloo):
    m = model()
    assert not reduced.by_ddp(m.parameters(), 1)
    wrapper = nn.parallel.DistributedDataParallel(m)
    assert reduced.by_ddp(m.parameters(), 1)
    assert reduced.by_ddp(list(m.parameters())[:1], 1)
    assert not reduced.by_ddp(m.parameters(), 2), "other trainers than those of the group"
    assert not reduced.by_ddp(model().parameters(), 1)
    del wrapper


def test_a_parameter_that_ddp_leaves_out_is_not_equal(alone_in_gloo):
    m = model()
    ignored = [name for name, _ in m.named_parameters()][-1]
    nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(m, [ignored])
    wrapper = nn.parallel.DistributedDataParallel(m)
    assert not reduced.by_ddp(m.parameters(), 1)
    assert reduced.by_ddp(list(m.parameters())[:-1], 1)
    del wrapper


def test_without_a_process_group_nothing_is_in_ddp():
    assert not reduced.by_ddp(model().parameters(), 1)
