"""An existing job is continued: the result of attach(), and which trainers must call it."""

import warnings

import pytest
import torch

import ballast
import ballast.torch as bt
from ballast import config, user_state
from real_training import SMALL, fresh_job

DURABLE = {"durability": "process", "resume": "auto"}


def make(**options):
    p = torch.nn.Parameter(torch.ones(8))
    return p, bt.AdamW([("p", p)], **{**DURABLE, **options})


def test_a_resumed_job_brings_weights_round_and_user_state(fake, capsys):
    fake.resumes = (56, 0.25, user_state.encode({"position": 448}))
    p, opt = make()
    assert (opt.resumed, opt.round, opt.user_state) == (False, 0, None)
    assert opt.attach() is True
    assert (opt.resumed, opt.round, opt.opt_step) == (True, 56, 56)
    assert opt.user_state == {"position": 448}
    assert p.tolist() == [0.25] * 8
    assert capsys.readouterr().err.startswith("ballast: job job: resumed at round 57 (")
    assert fake.last.options["resume"] == "auto"
    p.grad = torch.ones(8)
    opt.user_state["position"] += 8  # in place is as good as a new tensor
    opt.step()  # the weights that came in are no edits of the user's
    assert opt.round == 57
    assert user_state.decode(fake.last.user_state) == {"position": 456}


def test_strided_parameters_receive_the_weights_too(fake):
    fake.resumes = (1, 0.5, b"")
    p = torch.nn.Parameter(torch.ones(4, 3).t())
    opt = bt.AdamW([("p", p)], **DURABLE)
    opt.attach()
    assert p.tolist() == [[0.5] * 4] * 3
    assert opt.user_state is None


def without_names(**options):
    p = torch.nn.Parameter(torch.ones(8))
    return p, bt.AdamW([p], **{**DURABLE, **options})


@pytest.mark.parametrize("first_call", ["attach", "load_export"])
def test_a_job_resumed_without_names_warns_once_that_order_matters(fake, recwarn, first_call):
    fake.resumes = (3, 0.5, b"")
    p, opt = without_names()
    source = {"state": {}, "param_groups": []}
    with pytest.warns(UserWarning, match="order of parameters .* the resumed job's") as warned:
        opt.attach() if first_call == "attach" else opt.load_export(source)
    assert [w.filename for w in warned] == [__file__]
    recwarn.clear()
    opt.attach()
    opt.add_param_group({"params": [torch.nn.Parameter(torch.ones(4))]})
    p.grad = torch.ones(8)
    opt.step()
    assert not recwarn.list


def test_neither_names_nor_a_new_job_are_warned_of(fake, recwarn):
    without_names()[1].attach()
    fake.resumes = (3, 0.5, b"")
    make(job="named")[1].attach()
    assert not recwarn.list


def test_a_warning_that_raises_leaves_an_attached_optimizer(fake):
    fake.resumes = (3, 0.5, b"")
    p, opt = without_names()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="order of parameters"):
            opt.attach()
    p.grad = torch.ones(8)
    opt.step()
    assert (opt.resumed, opt.round, len(fake.attached)) == (True, 4, 1)


def test_a_new_job_is_attached_once(fake, capsys):
    p, opt = make()
    assert (opt.attach(), opt.attach()) == (False, False)
    p.grad = torch.ones(8)
    opt.step()
    assert len(fake.attached) == 1
    assert capsys.readouterr().err == ""


def test_the_user_state_travels_with_every_step(fake):
    p, opt = make(resume=None)
    p.grad = torch.ones(8)
    opt.step()
    assert fake.last.user_state == b""
    opt.user_state = b"here"
    opt.step()
    opt.step()
    assert user_state.decode(fake.last.user_state) == b"here"


def test_a_user_state_that_is_too_large_stops_the_step_before_anything_is_sent(fake):
    p, opt = make(resume=None)
    p.grad = torch.ones(8)
    opt.step()
    opt.user_state = bytes(70000)
    with pytest.raises(ballast.BadArgument, match="70001 bytes, the limit is 65536"):
        opt.step()
    assert opt.round == 1
    opt.user_state = None
    opt.step()
    assert opt.round == 2


def test_resume_without_attach_is_refused_at_the_first_step(fake):
    p, opt = make()
    p.grad = torch.ones(8)
    with pytest.raises(ballast.BadArgument, match=r"opt.attach\(\) before the first forward pass"):
        opt.step()
    assert fake.attached == []


def test_other_ranks_say_who_they_are(fake, capsys):
    fake.resumes = (2, 0.5, b"")
    _, opt = make(world_size=2, rank=1)
    opt.attach()
    assert capsys.readouterr().err.startswith("ballast: rank 1: job job: resumed at round 3 (")


ENV = {"BALLAST_ENDPOINTS": "h:1", "BALLAST_JOB": "job"}


def resolved(env=None, **given):
    return config.resolve(environ={**ENV, **(env or {})}, **given)


def test_resume_comes_from_argument_or_environment():
    assert resolved().resume == "never"
    env = {"BALLAST_RESUME": "auto", "BALLAST_DURABILITY": "power"}
    assert resolved(env).resume == "auto"
    assert resolved(env, resume="must").resume == "must"
    # One optimizer of a script may keep nothing.
    assert resolved(env, durability="none").resume == "never"


@pytest.mark.parametrize("given", [{"resume": "auto"}, {"resume": "must"}])
def test_resume_without_durability_is_refused(given):
    with pytest.raises(ballast.BadArgument, match='durability "none" cannot be resumed'):
        resolved(**given, durability="none")


def test_an_unknown_resume_is_refused():
    with pytest.raises(ballast.BadArgument, match="resume='yes': must be one of 'never', 'auto'"):
        resolved(resume="yes")
    with pytest.raises(ballast.BadArgument, match="BALLAST_RESUME='1'"):
        config.check_environment({"BALLAST_RESUME": "1"})


def test_torchruns_restart_keeps_the_name_of_a_job_that_is_resumed():
    env = {"BALLAST_ENDPOINTS": "h:1", "TORCHELASTIC_RUN_ID": "run",
           "TORCHELASTIC_RESTART_COUNT": "2"}  # fmt: skip
    assert config.resolve(environ=env).job == "run.r2"
    assert config.resolve(environ=env, durability="power", resume="auto").job == "run"


LAYERS = ("layers.0", "layers.1")
# Wrappers' names of the tensors of a model of two layers and a head tied to the first.
WRAPPED = {
    "plain": lambda path: path,
    "compiled": lambda path: f"_orig_mod.{path}",
    "DDP": lambda path: f"module.{path}",
    "DDP(compiled)": lambda path: f"module._orig_mod.{path}",
    "compiled(DDP)": lambda path: f"_orig_mod.module.{path}",
    "layers": lambda path: f"{path}._orig_mod" if path in LAYERS else path,
    "DDP(layers)": lambda path: "module." + WRAPPED["layers"](path),
}


def wrapped(form, endpoints, job, resume):
    weights = [torch.nn.Parameter(torch.full((3 + i,), float(i))) for i in range(3)]
    tied = [*zip((*LAYERS, "norm"), weights), ("head", weights[0])]
    named = [(WRAPPED[form](path) + ".weight", weight) for path, weight in tied]
    opt = bt.AdamW(named, endpoints=endpoints, job=job, resume=resume, lr=0.1, **SMALL)
    return named, opt


@pytest.mark.parametrize("begun", WRAPPED)
def test_a_job_is_continued_whatever_wraps_the_model(shared_servers, begun):
    endpoints, job = shared_servers(1), fresh_job("wrapped")
    named, opt = wrapped(begun, endpoints, job, "never")
    for _, weight in named:
        weight.grad = torch.ones_like(weight)
    opt.step()
    opt.close()
    for form in WRAPPED:
        again, opt = wrapped(form, endpoints, job, "must")
        opt.attach()
        assert opt.round == 1
        assert all(torch.equal(a, b) for (_, a), (_, b) in zip(again, named, strict=True))
        # Here the names are the model's.
        assert list(opt.export_state()["names"].values()) == [name for name, _ in again[:3]]
        opt.close()


OF_A_NEW_JOB = 'slot 1 does not match the job: tensor 0 ("module.w") is named "w" here'
OTHER_ALIASES = 'slot 0 cannot continue job "j": tensor 0 ("module.w") has other aliases'
OTHER_NAME = 'slot 0 cannot continue job "j": tensor 0 ("module.w") is named "v" here'
OLD = 'slot 0 cannot continue job "j": tensor 0 ("module.w") is named "w" here'


@pytest.mark.parametrize(
    ("said", "hint"),
    [((OF_A_NEW_JOB,), True), ((OLD, OTHER_ALIASES), True), ((OLD, OLD), True),
     ((OTHER_NAME,), False)],
)  # fmt: skip
def test_names_that_cannot_be_matched_are_refused_with_the_prefixes(fake, monkeypatch, said, hint):
    opt = make()[1]
    answers = list(said)

    def refuse(*_, **__):
        fake.attach_error = ballast.SpecMismatch(answers.pop(0), slot=1)
        return start(*_, **__)

    start = fake.start_attach
    monkeypatch.setattr(fake, "start_attach", refuse)
    with pytest.raises(ballast.SpecMismatch) as refused:
        opt.attach()
    assert not answers and refused.value.slot == 1
    assert ('prefix of a wrapper ("_orig_mod." of torch.compile' in str(refused.value)) == hint
