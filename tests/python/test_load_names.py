"""opt.load_export() of sources that say names: each state at its parameter, or a refusal.

tests/python/test_load_export.py has all cases of state found by position.
"""

import pytest
import torch
from torch import nn

import ballast
import ballast.torch as bt

NAMES = ["0.weight", "1.weight", "2.weight"]


def model():
    torch.manual_seed(0)  # Equal shapes: only names tell the parameters apart.
    return nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in NAMES))


def groups_of(module, *names, **hyper):
    found = dict(module.named_parameters())
    return {"params": [(name, found[name]) for name in names], **hyper}


def torch_source(*groups):
    """The state of torch's AdamW after a step, and each parameter's exp_avg by name."""
    module = model()
    theirs = torch.optim.AdamW([groups_of(module, *names, **hyper) for names, hyper in groups])
    for name, parameter in module.named_parameters():
        parameter.grad = torch.full((3, 3), float(name[0]) + 1)
    theirs.step()
    return theirs.state_dict()


def arrived(opt):
    """By name, the exp_avg of a gradient of 1, 2 and 3, in units of the first."""
    state = opt.export_state()
    return {
        name: round(float(state["state"][i]["exp_avg"].flatten()[0]) / 0.1)
        for i, name in state["names"].items()
    }


class Part(torch.Tensor):
    """A tensor whose values are elsewhere, as those of a DTensor are."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


def by_name(source):
    """As torch.distributed.checkpoint and FSDP write a state: names in place of numbers."""
    names = dict(zip(source["param_groups"][0]["params"], NAMES))
    groups = [
        {**{k: v for k, v in g.items() if k != "param_names"},
         "params": [names[i] for i in g["params"]]}
        for g in source["param_groups"]
    ]  # fmt: skip
    return {"state": {names[i]: s for i, s in source["state"].items()}, "param_groups": groups}


def positions_only(source):
    groups = [{k: v for k, v in g.items() if k != "param_names"} for g in source["param_groups"]]
    return {**source, "param_groups": groups}


@pytest.mark.parametrize("form", [lambda source: source, by_name])
def test_a_state_goes_to_the_parameter_of_its_name(fake, form):
    module = model()
    opt = bt.AdamW(list(module.named_parameters())[::-1])
    opt.load_export(form(torch_source((NAMES, {}))))
    assert arrived(opt) == {"0.weight": 1, "1.weight": 2, "2.weight": 3}


def test_names_that_only_some_states_have_left_are_names_still(fake):
    source = torch_source((NAMES, {}))
    del source["state"][0]
    source = {**positions_only(source), "names": dict(enumerate(NAMES))}
    module = model()
    opt = bt.AdamW(list(module.named_parameters())[::-1])
    opt.load_export(source)
    assert arrived(opt) == {"0.weight": 0, "1.weight": 2, "2.weight": 3}


def test_hyperparameters_go_with_the_names_whatever_the_order_of_groups(fake):
    source = torch_source((NAMES[:2], {"weight_decay": 0.5}), (NAMES[2:], {"weight_decay": 0.0}))
    module = model()
    late = nn.Parameter(torch.ones(1))
    opt = bt.AdamW(
        [
            groups_of(module, "2.weight", weight_decay=0.25),
            {"params": [("late", late)], "weight_decay": 0.125},
            groups_of(module, "1.weight"),
            groups_of(module, "0.weight"),
        ]
    )
    opt.load_export(source)
    assert [g["weight_decay"] for g in opt.param_groups] == [0.0, 0.125, 0.5, 0.5]
    assert arrived(opt) == {"2.weight": 3, "late": 0, "1.weight": 2, "0.weight": 1}


def refused(change):
    source = torch_source((NAMES[:2], {"lr": 0.5}), (NAMES[2:], {}))
    return change(source) or source


def with_groups(value):
    return lambda source: source.update(param_groups=value)


def with_group(**values):
    return lambda source: source["param_groups"][0].update(values)


def with_array(value):
    def change(source):
        source["param_groups"][1]["lr"] = 0.5
        source["state"][2]["exp_avg"] = value

    return change


BAD = {
    "groups of other hyper-parameters": (
        lambda source: None,
        r"param_groups\[0\] .* of the source's groups 0 and 1, whose lr differ",
    ),
    "a name that is not there": (
        with_group(param_names=["0.weight", "gone"]),
        "state of parameter 'gone', which this optimizer does not have",
    ),
    "a wrapper's name": (
        with_group(param_names=["0.weight", "_orig_mod.1.weight"]),
        "'_orig_mod.1.weight'.*; build it .*Wrappers add '_orig_mod.'",
    ),
    "a tensor without values": (
        with_array(torch.zeros(3, 3, device="meta")),
        "'2.weight': exp_avg is a tensor without values",
    ),
    "a tensor with a part of the values": (
        with_array(Part(torch.zeros(3, 3))),
        "'2.weight': exp_avg is a Part; give a plain tensor",
    ),
    "two states of one name": (
        with_group(param_names=["0.weight", "0.weight"]),
        "a state of '0.weight' and one of '0.weight', which are one parameter",
    ),
    "names of some": (
        lambda source: source["param_groups"][1].pop("param_names") and None,
        "names some of its parameters, but not 2",
    ),
    "names that are no dict": (lambda source: source.update(names=NAMES), '"names" must be a dict'),
    "too few names": (with_group(param_names=["0.weight"]), "has 2 parameters; \"param_names\""),
    "no list of groups": (with_groups({"params": [0]}), "must be a list of dicts"),
    "no dict as a group": (with_groups([[0, 1, 2]]), "must be a list of dicts"),
    "no params": (with_groups([{"lr": 0.5}]), "\"params\", a list"),
    "params that are no list": (with_groups([{"params": 3}]), "\"params\", a list"),
    "no index": (with_groups([{"params": [[0], 1, 2]}]), r"groups\[0\] of the source has list"),
    "an index twice": (
        with_group(params=[0, 0]),
        "has parameter 0, which it has had before",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_matched_is_refused_and_changes_nothing(fake, case):
    change, text = BAD[case]
    module = model()
    opt = bt.AdamW(list(module.named_parameters())[::-1], lr=0.125)
    with pytest.raises(ballast.BadArgument, match=text):
        opt.load_export(refused(change))
    assert opt.param_groups[0]["lr"] == 0.125 and opt.job_id == 0


def test_an_optimizer_without_names_takes_no_source_with_names(fake):
    source = torch_source((NAMES, {}))
    opt = bt.AdamW(list(model().parameters())[::-1])
    with pytest.raises(ballast.BadArgument, match="the names of its parameters.*pass model="):
        opt.load_export(source)
    opt.load_export(positions_only(source))  # The script says: by position.
    assert list(arrived(opt).values()) == [1, 2, 3]


def test_one_name_of_a_position_does_not_hide_a_name_that_contradicts(fake):
    source = torch_source((NAMES, {}))
    names = {**dict(enumerate(NAMES)), 2: "g0.p2"}  # as an export of partly named ones has them
    source = {**positions_only(source), "names": names}
    module = model()
    opt = bt.AdamW(list(module.named_parameters())[::-1])
    with pytest.raises(ballast.BadArgument, match="its '0.weight' meets '2.weight'"):
        opt.load_export(source)
    same = bt.AdamW(list(module.named_parameters()), job="same")
    same.load_export(source)
    assert arrived(same) == {"0.weight": 1, "1.weight": 2, "2.weight": 3}
