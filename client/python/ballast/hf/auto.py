"""Fills "auto" of a ds_config from the arguments of Hugging Face's Trainer; needs no other package.

Comes from: user code and ballast.hf.factory. Goes to: ballast.ds_config. Thread safety: pure, but
for reading the file.
"""

from __future__ import annotations

from typing import Any

from ballast.ds_config.arguments import Arguments
from ballast.ds_config.filling import fill
from ballast.ds_config.kinds import shown
from ballast.ds_config.select import select
from ballast.ds_config.source import Config, load
from ballast.errors import BadArgument, at_border


@at_border
def resolve_auto(
    config: Config, training_args: Any, model: Any = None, num_steps: int | None = None
) -> dict[str, Any]:
    """A ds_config as a dict, with "auto" filled as the Trainer of transformers 5.23 fills it.

    config: a path, a dict, or urlsafe base64 of the text. It is not changed. training_args: a
    TrainingArguments, or a mapping with names of its fields. model: its config.hidden_size fills
    bucket sizes. num_steps: optimizer steps of the run, for schedules; max_steps by default.
    An "auto" stays where the arguments do not fill it; ballast.ds_config.check says which of those
    matter. Raises DsConfigError for a configuration that cannot be read, and BadArgument (a
    ValueError), which lists all of them, for values that differ from the arguments.
    """
    values = load(config).values
    arguments = Arguments.of(training_args, model, num_steps)
    filled = fill(values, select(values).rows.values(), arguments)
    if filled.mismatches:
        differing = [
            f"{m.path} is {shown(m.written)}, and {m.source} is {shown(m.wanted)}"
            for m in filled.mismatches
        ]
        raise BadArgument(
            "the ds_config and the training arguments differ: " + "; ".join(differing)
            + '. Write "auto" into the ds_config, or the same value in both places'
        )
    return filled.values
