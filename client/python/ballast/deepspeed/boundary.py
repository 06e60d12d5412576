"""When a micro-batch ends a round, and the counters that DeepSpeed scripts read.

Comes from: ballast.deepspeed.engine. Thread safety: used by one thread at a time. Knows neither
torch nor the service.

Source: deepspeed/runtime/engine.py of 0.19.8, is_gradient_accumulation_boundary() and step().
"""

from __future__ import annotations

from ballast.errors import BadArgument


class BadCall(BadArgument, AssertionError):
    """A call that DeepSpeed answers with an AssertionError. Correct the script."""


class Boundary:
    """Counts micro-batches and rounds.

    micro_steps: calls of step(). global_steps: rounds, skipped ones included. global_samples: those
    of all trainers in these rounds. skipped_steps: rounds not applied.
    """

    def __init__(self, micro: int, accumulation: int, world: int, managed: bool) -> None:
        """micro: samples of a micro-batch. managed: whether counting decides where a round ends;
        otherwise each step() does."""
        self.micro = micro
        self.accumulation = accumulation
        self.micro_steps = 0
        self.global_steps = 0
        self.global_samples = 0
        self.skipped_steps = 0
        self._world = world
        self._managed = managed
        self._said: bool | None = None  # by set()
        self._backwards = 0  # since the last round
        self._others = False  # divided passes of the script's own, since then

    @property
    def train(self) -> int:
        """Samples of one round over all trainers."""
        return self.micro * self.accumulation * self._world

    def resize(self, train: int) -> None:
        """Another number of samples of a round; the accumulation follows. BadArgument otherwise."""
        unit = self.micro * self._world
        if isinstance(train, bool) or not isinstance(train, int) or train < 1 or train % unit:
            raise BadArgument(
                f"set_train_batch_size({train!r}): must be a multiple of {unit}, which is "
                f"train_micro_batch_size_per_gpu {self.micro} x {self._world} trainers"
            )
        self.accumulation = train // unit

    def set(self, is_boundary: bool) -> None:
        """The script's own word for the next step(), until it says another."""
        self.refuse_unmanaged("set_gradient_accumulation_boundary")
        self._said = bool(is_boundary)

    def refuse_unmanaged(self, call: str) -> None:
        """BadCall, naming the call, where each step() ends a round."""
        if not self._managed:
            raise BadCall(
                f"{call}() needs managed_gradient_accumulation true; with false each step() ends a "
                "round"
            )

    def is_boundary(self) -> bool:
        """Whether a step() now would end a round."""
        if not self._managed:
            return True
        if self._said is not None:
            return self._said
        return (self.micro_steps + 1) % self.accumulation == 0

    @property
    def began(self) -> bool:
        """Whether gradients of this round are there already."""
        return self._backwards > 0 or self._others

    def backward(self) -> None:
        self._backwards += 1

    def other_backward(self) -> None:
        """A pass that the script began itself has come through an output of engine(...)."""
        self._others = True

    def check_round(self, gradients: bool) -> None:
        """BadArgument when a round would end that no backward pass of the engine's is in.

        gradients: whether there are some. Without accumulation nothing has to be divided.
        """
        if self.began or (gradients and self.accumulation == 1):
            return
        raise BadArgument(
            "step() ends a round, and neither engine.backward(loss) was called in it, nor did "
            "loss.backward() come through an output of engine(...); they divide by "
            "gradient_accumulation_steps. Call the engine, not its module, or engine.backward()"
        )

    def round_ended(self, applied: bool) -> None:
        counted = self.train if self._managed else self.micro * self._world * self._backwards
        self.global_samples += counted
        self.global_steps += 1
        self.skipped_steps += not applied
        self._begin()

    def restore(
        self, micro_steps: int, global_steps: int, global_samples: int, skipped_steps: int
    ) -> None:
        """The counters of a checkpoint; a round begins, with all its micro-batches.

        Micro-batches of an unfinished round before the save left no gradients.
        """
        self.micro_steps = micro_steps - micro_steps % self.accumulation
        self.global_steps = global_steps
        self.global_samples = global_samples
        self.skipped_steps = skipped_steps
        self._begin()

    def _begin(self) -> None:
        self._backwards, self._others = 0, False

    def step_ended(self) -> None:
        self.micro_steps += 1
