"""The three batch sizes: train = micro x accumulation x world; two give the third.

Comes from: ballast.ds_config.check. Goes to: Report.batch. Thread safety: pure functions.
"""

from __future__ import annotations

from ballast.ds_config.report import Batch

TRAIN = "train_batch_size"
MICRO = "train_micro_batch_size_per_gpu"
ACCUMULATION = "gradient_accumulation_steps"


class BatchError(Exception):
    """Sizes that do not fit; str() names them, and `instead` what to write."""

    def __init__(self, text: str, instead: str) -> None:
        super().__init__(text)
        self.instead = instead


def solve(
    train: int | None, micro: int | None, accumulation: int | None, world: int | None
) -> Batch:
    """The sizes that follow. world: number of trainers, None: not known; then some stay None.

    Sizes are at least 1. Raises BatchError when neither train nor micro is given, or when the
    product is not train.
    """
    if train is None:
        if micro is None:
            raise BatchError(
                f"neither {TRAIN} nor {MICRO} is given",
                f"write {MICRO}, the batch size of your DataLoader",
            )
        steps = accumulation or 1
        return Batch(micro * steps * world if world else None, micro, steps, world)
    if micro is not None and accumulation is not None:
        return _all(train, micro, accumulation, world)
    if world is None:
        return Batch(train, micro, accumulation if micro else accumulation or 1, None)
    if micro is not None:
        return _all(train, micro, train // micro // world, world)
    steps = accumulation or 1
    return _all(train, train // world // steps, steps, world)


def _all(train: int, micro: int, accumulation: int, world: int | None) -> Batch:
    """Checks the product; without a world, one that fits is taken."""
    number = world or train // (micro * accumulation)
    product = micro * accumulation * number
    if product != train or not product:
        trainers = f"{world} trainers" if world else "any number of trainers"
        raise BatchError(
            f"{TRAIN} {train} is not {MICRO} {micro} x {ACCUMULATION} {accumulation} x {trainers}",
            _fitting(train, micro, accumulation, number),
        )
    return Batch(train, micro, accumulation, number)


def _fitting(train: int, micro: int, accumulation: int, world: int) -> str:
    """Another number of trainers where one fits, or the nearest size."""
    fits, rest = divmod(train, max(1, micro * accumulation))
    nearest = _nearest(train, micro, accumulation, world)
    return f"{nearest}; it fits --world {fits}" if fits and micro and not rest else nearest


def _nearest(train: int, micro: int, accumulation: int, world: int) -> str:
    unit = max(1, micro) * max(1, accumulation) * max(1, world)
    return f"write {TRAIN} {max(1, round(train / unit)) * unit}, or leave it out: it follows"
