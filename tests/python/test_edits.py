"""Weights that a script changes between two rounds: which are noticed, and their consequences.

What opt.upload_weights() does with them is in test_tensors.py.
"""

import copy
import warnings

import pytest
import torch
from torch import nn

import ballast
import ballast.torch as bt
from ballast.torch import edits

NAMED = ("'0.weight' was changed", r"docs/optimizers.md#weights-that-a-script-changes")


def model(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2, bias=False)).to(dtype)


def step(module, opt, i=0):
    opt.zero_grad()
    generator = torch.Generator().manual_seed(i)
    x = torch.randn(5, 4, generator=generator).to(module[0].weight.dtype)
    module(x).float().square().mean().backward()
    opt.step()


def calls(fake):
    return [call[0] for call in fake.last.calls]


def same(module, twin):
    return all(torch.equal(a, b) for a, b in zip(module.parameters(), twin.parameters()))


def swap(module):
    kept = copy.deepcopy(module.state_dict())
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
    module.load_state_dict(kept)


def perturb(module):  # as SAM does
    with torch.no_grad():
        for p in module.parameters():
            held = p.clone()
            p.add_(1.0)
            p.copy_(held)


def move(module):
    for p in module.parameters():
        p.data = p.data.clone()


UNDONE = {
    "averaged weights for a validation": swap,
    "a step there and back": perturb,
    "other memory": move,
    "shared memory": lambda module: module.share_memory(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", UNDONE)
def test_a_change_that_was_undone_bit_for_bit_goes_on(fake, case, dtype):
    module, twin = model(dtype), model(dtype)
    opt = bt.AdamW(module.named_parameters(), world_size=2, rank=0)
    other = bt.AdamW(twin.named_parameters(), world_size=2, rank=0, job="other")
    for i in range(3):
        step(module, opt, i)
        UNDONE[case](module)
        step(twin, other, i)
    step(module, opt)
    step(twin, other)
    assert same(module, twin) and opt.round == 4


def in_place(p):
    with torch.no_grad():
        p.mul_(2)


def by_numpy(p):
    p.detach().numpy()[0] = 0.5


EDITS = {
    "in place": (in_place, "in place .*max_norm"),
    "memory": (lambda p: setattr(p, "data", torch.ones(3, 4)), "by giving it other mem.*prune"),
    "strided memory": (
        lambda p: setattr(p, "data", torch.ones(4, 3).t()), "by giving it other memory",
    ),
    "p.data": (lambda p: p.data.add_(1), "without a trace in torch .*Lookahead"),
    "numpy": (by_numpy, "without a trace in torch"),
    "one bit": (
        lambda p: p.data.view(torch.int32)[0, 0].bitwise_xor_(1), "without a trace in torch",
    ),
}  # fmt: skip
WHY_NOT = {
    "several trainers": {"world_size": 2, "rank": 0},
    "a variable world": {"variable_world": True, "durability": "power", "resume": "auto"},
    "resume": {"durability": "power", "resume": "auto"},
}


@pytest.mark.parametrize("why", WHY_NOT)
@pytest.mark.parametrize("case", EDITS)
def test_a_change_is_refused_where_the_script_must_say_what_it_wants(fake, case, why):
    edit, how = EDITS[case]
    module = model()
    opt = bt.AdamW(module.named_parameters(), **WHY_NOT[why])
    opt.attach()
    step(module, opt)
    kept = copy.deepcopy(module)
    edit(module[0].weight)
    for _ in range(2):
        with pytest.raises(ballast.WeightsEdited, match=f"{NAMED[0]} {how}.*{NAMED[1]}"):
            opt.step()
    opt.fetch_weights()
    assert same(module, kept)
    edit(module[0].weight)
    edited = copy.deepcopy(module)
    opt.upload_weights()
    assert same(module, edited)
    step(module, opt)
    assert calls(fake) == ["step", "upload", "step"]


def test_masters_of_16_bits_are_not_rounded_without_being_asked(fake):
    module = model(torch.bfloat16)
    opt = bt.AdamW(module.named_parameters())
    step(module, opt)
    in_place(module[0].weight)
    with pytest.raises(ballast.WeightsEdited, match="'0.weight' was changed in place"):
        opt.step()


@pytest.mark.parametrize("case", EDITS)
def test_one_trainer_goes_on_as_in_torch_and_is_told_once(fake, case):
    module, twin = model(), model()
    opt = bt.AdamW(module.named_parameters(), lr=0.1)
    theirs = torch.optim.AdamW(twin.parameters(), lr=0.1, foreach=False)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for i in range(6):
            for m, o in ((module, opt), (twin, theirs)):
                step(m, o, i)
                if i % 2:
                    EDITS[case][0](m[0].weight)
    assert same(module, twin) and (opt.round, opt.opt_step) == (8, 6)
    assert [w.filename for w in warned] == [__file__]
    assert "opt.round counts and opt.opt_step does not" in str(warned[0].message)


def test_embeddings_of_bounded_norm_have_torchs_bits(fake):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(20, 8, max_norm=0.5), nn.Linear(8, 1))
    twin = copy.deepcopy(module)
    opt = bt.AdamW(module.named_parameters(), lr=0.1)
    theirs = torch.optim.AdamW(twin.parameters(), lr=0.1, foreach=False)
    for i in range(4):
        ids = torch.randint(0, 20, (16,), generator=torch.Generator().manual_seed(i))
        for m, o in ((module, opt), (twin, theirs)):
            o.zero_grad()
            m(ids).square().mean().backward()
            o.step()
    assert same(module, twin)


def test_untraced_changes_are_looked_for_in_the_first_rounds_and_every_hundredth(fake):
    module = model()
    opt = bt.AdamW(module.named_parameters())
    noticed = []
    for i in range(130):
        if i > edits.ROUNDS:
            module[0].weight.data.add_(1)
        try:
            opt.step()
        except ballast.WeightsEdited as error:  # also with one trainer
            noticed.append((i, "Earlier changes of this kind may have been over" in str(error)))
            opt.fetch_weights()
    # Upload and fetch end a round's time, too. One found edit has all the others looked for.
    assert noticed == [(edits.EVERY, True)]
    assert calls(fake).count("upload") == 130 - edits.EVERY - 1


def test_a_change_between_attach_and_the_first_step_and_before_a_new_group_is_noticed(fake):
    module = model()
    opt = bt.AdamW(module.named_parameters(), world_size=2, rank=0)
    opt.attach()
    module[0].weight.data.add_(1)
    with pytest.raises(ballast.WeightsEdited, match=NAMED[0]):
        opt.step()
    opt.upload_weights()
    module[0].weight.data.add_(1)
    opt.add_param_group({"params": [("late", nn.Parameter(torch.ones(2)))]})
    with pytest.raises(ballast.WeightsEdited, match=NAMED[0]):
        opt.step()
    assert calls(fake) == ["upload"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (3, 5), (130, 129)])
def test_a_checksum_knows_every_bit_and_the_place_of_a_row(dtype, shape):
    p = torch.randn(shape).to(dtype)
    whole = edits.checksum(p)
    assert edits.checksum(p.clone()) == whole
    bits = p.view(-1).view(torch.int32 if dtype == torch.float32 else torch.int16)
    for i in {0, bits.numel() // 2, bits.numel() - 1} if bits.numel() else ():
        bits[i] ^= 1
        assert edits.checksum(p) != whole
        bits[i] ^= 1
    longer = torch.cat([torch.zeros(1, dtype=dtype), p.reshape(-1)])
    assert edits.checksum(longer[1:].view(shape)) == whole  # at an odd place
    assert edits.checksum(p.t().contiguous().t() if p.dim() == 2 else p) == whole
    if bits.numel() > 2 * edits._ROW:
        swapped = p.reshape(-1).roll(p.numel() // 2)
        assert edits.checksum(swapped) != whole
