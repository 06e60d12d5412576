"""When a round ends, and DeepSpeed's counters: against its own rules, written out."""

from __future__ import annotations

import random

import pytest
from ballast.deepspeed.boundary import Boundary
from ballast.errors import BadArgument


def loop(boundary, steps, skipped=()):
    """Whether each of `steps` micro-batches ended a round."""
    ended = []
    for index in range(steps):
        boundary.backward()
        ended.append(boundary.is_boundary())
        if ended[-1]:
            boundary.check_round(gradients=False)
            boundary.round_ended(index not in skipped)
        boundary.step_ended()
    return ended


def counters(boundary):
    return (boundary.micro_steps, boundary.global_steps, boundary.global_samples,
            boundary.skipped_steps)


def test_counting_ends_a_round_after_as_many_micro_batches():
    boundary = Boundary(micro=2, accumulation=3, world=4, managed=True)
    assert loop(boundary, 7) == [False, False, True] * 2 + [False]
    assert boundary.train == 24 and counters(boundary) == (7, 2, 48, 0)


def test_skipped_rounds_count_and_their_samples_too():
    boundary = Boundary(2, 1, 1, True)
    loop(boundary, 4, skipped=(0, 2))
    assert counters(boundary) == (4, 4, 8, 2)


def test_the_scripts_word_counts_until_it_says_another():
    boundary = Boundary(1, 4, 1, True)
    boundary.set(False)
    assert loop(boundary, 5) == [False] * 5
    boundary.set(True)
    assert loop(boundary, 2) == [True, True]
    assert counters(boundary) == (7, 2, 8, 0)


def test_without_managing_each_step_ends_a_round_and_counts_what_there_was():
    boundary = Boundary(2, 4, 3, managed=False)
    for backwards in (1, 5):
        for _ in range(backwards):
            boundary.backward()
        assert boundary.is_boundary()
        boundary.round_ended(True)
        boundary.step_ended()
    assert counters(boundary) == (2, 2, 36, 0)
    with pytest.raises(BadArgument, match="managed_gradient_accumulation"):
        boundary.set(True)


def test_a_round_that_nothing_has_divided_is_refused():
    boundary = Boundary(1, 2, 1, True)
    for gradients in (False, True):
        with pytest.raises(BadArgument, match="neither engine.backward"):
            boundary.check_round(gradients)
    boundary.other_backward()
    boundary.check_round(gradients=True)
    boundary.round_ended(True)
    with pytest.raises(BadArgument, match="come through an output"):
        boundary.check_round(gradients=True)
    boundary.resize(1)
    boundary.check_round(gradients=True)  # nothing is to be divided


def test_another_batch_size_changes_the_accumulation():
    boundary = Boundary(2, 1, 4, True)
    boundary.resize(24)
    assert (boundary.accumulation, boundary.train) == (3, 24)
    for wrong in (0, -8, 12, 8.0, True, "8"):
        with pytest.raises(BadArgument, match="must be a multiple of 8"):
            boundary.resize(wrong)
    assert boundary.accumulation == 3


class Model:
    """DeepSpeed 0.19.8's is_gradient_accumulation_boundary() and step(), line by line."""

    def __init__(self, micro, accumulation, world):
        self.gas, self.samples = accumulation, micro * accumulation * world
        self.micro_steps = self.global_steps = self.global_samples = self.skipped_steps = 0
        self.said = None

    def step(self, overflow):
        at = (self.micro_steps + 1) % self.gas == 0 if self.said is None else self.said
        if at:
            self.skipped_steps += overflow
            self.global_steps += 1
            self.global_samples += self.samples
        self.micro_steps += 1
        return at


def test_random_loops_count_as_deepspeed_counts():
    chance = random.Random(1)
    for _ in range(200):
        sizes = [chance.randint(1, 4) for _ in range(3)]
        model, boundary = Model(*sizes), Boundary(*sizes, managed=True)
        for _ in range(chance.randint(1, 40)):
            if chance.random() < 0.1:
                model.said = chance.random() < 0.5
                boundary.set(model.said)
            overflow = chance.random() < 0.2
            boundary.backward()
            at = boundary.is_boundary()
            if at:
                boundary.round_ended(not overflow)
            boundary.step_ended()
            assert model.step(overflow) == at
            assert counters(boundary) == (model.micro_steps, model.global_steps,
                                          model.global_samples, model.skipped_steps)
