"""The extension module's JobOptions: every field of JobConfig by its name, and no other."""

import dataclasses
import re

import pytest

import ballast
from ballast import _option_values as values, backend, config, session
from ballast.loss_scale import DynamicLossScale
from ballast.schedules import WarmupLR

# Names that one side alone has: "auto" is decided before the attach, "scattered" by collective=.
CHOICES = {**values.CHOICES, "durability": values.DURABILITIES, "device": values.DEVICES,
           "resume": values.RESUMES, "gradients": ("local", "reduced", "scattered")}  # fmt: skip


@pytest.fixture
def options():
    return backend.core().JobOptions()


def test_every_field_of_a_configuration_has_its_place(options):
    given = config.JobConfig(
        ("h:1",), "j", 3, 2, 1.5, 8.0, "halt", 7, 64, 128, "broadcast", 7.25, 2.0, "process", 30.5,
        "auto", True, 2, "nvme", profile="deepspeed", gradients="scattered",
    )  # fmt: skip
    made = session.job_options(given, ("SGD", {"nesterov": 1.0}), [])
    assert made.endpoints == ["h:1"] and made.optimizer == "SGD"
    assert made.optimizer_options == {"nesterov": 1.0}
    write_only = ("endpoints", "loss_scale", "security")
    default = config.JobConfig((), "", 0, 0)
    for name, value in given.for_core().items():
        if name not in write_only:
            assert getattr(made, name) == value != getattr(default, name), name


def test_an_unknown_field_is_refused_by_its_name(options):
    with pytest.raises(AttributeError, match="probe"):
        options.probe = 1

    class More(config.JobConfig):
        def for_core(self):
            return {**super().for_core(), "probe": 1}

    with pytest.raises(AttributeError, match="probe"):
        session.job_options(More(("h:1",), "j", 1, 0), ("SGD", {}), [])


@pytest.mark.parametrize("name", CHOICES)
def test_names_are_those_that_the_script_may_give(options, name):
    for choice in CHOICES[name]:
        setattr(options, name, choice)
        assert getattr(options, name) == choice
    with pytest.raises(ballast.BadArgument) as refused:
        setattr(options, name, "Nix")
    said = f"{name} is 'Nix'; must be "
    assert refused.value.message.startswith(said)
    assert tuple(re.findall("'(.*?)'", refused.value.message[len(said) :])) == CHOICES[name]


def test_a_loss_scale_is_a_number_or_moves_and_a_schedule_goes_with_its_groups():
    given = config.JobConfig(
        ("h:1",), "j", 1, 0, loss_scale=DynamicLossScale(), lr_schedule=WarmupLR()
    )
    assert given.for_core()["loss_scale"] == (16, 1000, 2, False, 1.0)
    session.job_options(given, ("AdamW", {}), [0, 1])
    with pytest.raises(TypeError):
        session.job_options(dataclasses.replace(given, loss_scale="big"), ("AdamW", {}), [])
