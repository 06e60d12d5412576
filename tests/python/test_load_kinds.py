"""opt.load_export() of another kind's state: a refusal by name that changes nothing."""

import copy

import pytest
import torch

import ballast
import ballast.torch as bt

# Without a decay: nothing but the kind tells Adam's state from AdamW's.
OPTIONS = {
    "AdamW": {"weight_decay": 0.0},
    "AdamW-amsgrad": {"weight_decay": 0.0, "amsgrad": True},
    "Adam": {},
    "SGD": {},
    "SGD-momentum": {"momentum": 0.5},
    "Adagrad": {},
    "Lion": {},
    "LAMB": {},
    "ApplyDelta": {},
}


def built(name, job, module=bt):
    parameter = torch.nn.Parameter(torch.ones(4))
    cls = getattr(module, name.partition("-")[0])
    if module is bt:
        return parameter, cls([("p", parameter)], lr=0.125, job=job, **OPTIONS[name])
    return parameter, cls([parameter], lr=0.125, **OPTIONS[name])


ARRAYS = {
    "AdamW": ("exp_avg", "exp_avg_sq"),
    "AdamW-amsgrad": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
    "Adam": ("exp_avg", "exp_avg_sq"),
    "SGD": (),
    "SGD-momentum": ("momentum_buffer",),
    "Adagrad": ("sum",),
    "Lion": ("exp_avg",),
    "LAMB": ("exp_avg", "exp_avg_sq"),
    "ApplyDelta": (),
}


def exported(name):
    """As export_state() gives it after one step; the fake service has not all kinds."""
    _, opt = built(name, "source")
    arrays = {key: torch.full((4,), 0.5) for key in ("master", *ARRAYS[name])}
    groups = opt.state_dict()["param_groups"]
    state = {0: {"step": torch.tensor(1.0), **arrays}}
    return {"state": state, "param_groups": groups, "names": {0: "p"}}


def torchs(name):
    parameter, opt = built(name, "source", torch.optim)
    parameter.grad = torch.ones(4)
    opt.step()
    return opt.state_dict()


def taken(name, source):
    """What load_export() is about to send of the parameter."""
    parameter, opt = built(name, "target")
    state, _ = opt._state_of(source)
    return state.tensors[id(parameter)]


def expect_refusal(name, source):
    before = copy.deepcopy(source)
    parameter, opt = built(name, "target")
    groups = copy.deepcopy(opt.param_groups)
    with pytest.raises((ballast.BadArgument, ballast.Unsupported), match=r"load_export\(\)") as got:
        opt.load_export(source)
    assert opt.round == 0 and opt.job_id == 0 and torch.equal(parameter, torch.ones(4))
    assert repr(opt.param_groups) == repr(groups) and repr(source) == repr(before)
    return str(got.value)


# SGD without buffers has weights only, as ApplyDelta has: a job of SGD takes them.
TAKEN = {("SGD", "SGD-momentum"), ("ApplyDelta", "SGD"), ("ApplyDelta", "SGD-momentum")}
PAIRS = [(a, b) for a in OPTIONS for b in OPTIONS if a != b and (a, b) not in TAKEN]


@pytest.mark.parametrize("source", OPTIONS)
def test_state_of_another_kind_is_refused(fake, source):
    state = exported(source)
    for target in [b for a, b in PAIRS if a == source]:
        expect_refusal(target, state)


@pytest.mark.parametrize("source", [n for n in OPTIONS if hasattr(torch.optim, n.split("-")[0])])
def test_torchs_state_of_another_kind_is_refused(fake, source):
    state = torchs(source)
    for target in [b for a, b in PAIRS if a == source]:
        if state["state"] or not target.startswith(source):
            expect_refusal(target, state)


@pytest.mark.parametrize("name", OPTIONS)
def test_state_of_the_same_kind_is_taken(fake, name):
    got = taken(name, exported(name))
    assert got.step == 1 and set(got.arrays) == {"master", *ARRAYS[name]}


@pytest.mark.parametrize("name", OPTIONS)
def test_weights_alone_fit_every_kind(fake, name):
    weights = {0: {"master": torch.full((4,), 7.0)}}
    got = taken(name, {"state": weights, "param_groups": [{"params": [0]}]})
    assert got.step == 0 and got.arrays.keys() == {"master"}
    assert torch.equal(got.arrays["master"], weights[0]["master"])


def test_a_refusal_says_what_is_there_and_what_to_do(fake):
    adamw = exported("AdamW")
    text = expect_refusal("LAMB", adamw)
    assert "param_groups[0] of the source has amsgrad, which LAMB has not" in text
    assert 'keep "params" of groups and "master" of states' in text
    text = expect_refusal("Adam", adamw)
    assert "decoupled_weight_decay=True: it is of AdamW, not of Adam" in text
    assert "Build ballast.torch.AdamW" in text
    adamw["param_groups"] = [{"params": [0]}]
    text = expect_refusal("SGD", adamw)
    assert "parameter 'p' has exp_avg, exp_avg_sq, which this SGD has not" in text


@pytest.mark.parametrize("name", ["AdamW", "Adam", "SGD", "Adagrad"])
def test_groups_have_torchs_keys_and_values(fake, name):
    ours, theirs = (built(name, "job", module)[1] for module in (bt, torch.optim))
    ours, theirs = (opt.state_dict()["param_groups"][0] for opt in (ours, theirs))
    assert {**ours, "param_names": None} == {**theirs, "param_names": None}


def test_groups_that_do_not_say_whose_decay_it_is_are_both_adams(fake):
    for source, target in (("AdamW", "Adam"), ("Adam", "AdamW")):
        state = exported(source)
        del state["param_groups"][0]["decoupled_weight_decay"]
        assert taken(target, state).step == 1
