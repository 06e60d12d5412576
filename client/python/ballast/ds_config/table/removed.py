"""Rows of sections that newer DeepSpeed versions refuse even when they are off.

Comes from: DeepSpeed 0.19.6, the last release with them. Goes to: ballast.ds_config.table.
Ballast accepts such a section while it is off, and refuses it with the alternative when it is on.
"""

from __future__ import annotations

from typing import Any

from ballast.ds_config.kinds import (
    BOOLEAN,
    COUNT,
    NUMBER,
    OBJECT,
    POSITIVE,
    TEXT,
    Choice,
    Listing,
)
from ballast.ds_config.row import (
    Case,
    Look,
    Outcome,
    Row,
    no_effect,
    parts,
    present,
    refused,
    switch,
)

_APEX = refused(
    "Apex is not used",
    "write bf16.enabled true, or fp16.enabled true with a fixed fp16.loss_scale",
)
_SPARSE = refused(
    "gradients are pushed whole",
    "leave it false; a parameter without a gradient costs nothing on the wire",
)
_ATTENTION = refused(
    "attention belongs to the model",
    "leave the section out, and use torch.nn.attention.flex_attention in the model",
)
_LAYERS = refused("layers belong to the model", "leave it false, and drop layers in forward()")
_CURRICULUM = refused(
    "the script feeds the model", "leave it false, and order the samples in the script's sampler"
)
_QUANTIZE = refused(
    "the model is not quantized", "leave the section out, and use torch.ao.quantization"
)
_COMPRESS = refused(
    "the model is not compressed",
    "leave the section out, and use torch.ao.quantization or torch.nn.utils.prune",
)
_EIGENVALUE = refused("eigenvalues serve DeepSpeed's quantization only", "leave it false")
_GRAPHS = refused("the trainers run plain torch", "leave it false, and use torch.compile")


def _switched_on(value: Any, look: Look) -> bool:
    """A section whose inner switches are many: on unless it is empty or says enabled: false."""
    return bool(value) and value.get("enabled") is not False


def _whole(name: str, outcome: Outcome, until: str) -> Row:
    """A section with unexamined contents."""
    on = Case("anything but {} or enabled: false", _switched_on, outcome)
    return Row(name, OBJECT, None, no_effect("off"), (on,), until=until)


def _some_switch_on(value: Any, look: Look) -> bool:
    """A section of sections: on if an `enabled` at any depth is true."""
    return isinstance(value, dict) and (
        value.get("enabled") is True or any(_some_switch_on(v, look) for v in value.values())
    )


_BLOCKS = Listing(COUNT)

ROWS = (
    _whole("amp", _APEX, "0.19.8"),
    switch("sparse_gradients", _SPARSE, until="0.19.8"),
    switch("graph_harvesting", _GRAPHS, until="0.19.8"),
    Row(
        "sparse_attention",
        OBJECT,
        None,
        no_effect("not set"),
        (present(_ATTENTION),),
        until="0.19.7",
    ),
    *parts(
        "sparse_attention",
        "",
        ("mode", Choice(("dense", "fixed", "variable", "bigbird", "bslongformer")), "fixed"),
        ("block", POSITIVE, 16),
        ("different_layout_per_head", BOOLEAN, False),
        ("num_local_blocks", COUNT, 4),
        ("num_global_blocks", COUNT, 1),
        ("attention", Choice(("bidirectional", "unidirectional")), "bidirectional"),
        ("horizontal_global_attention", BOOLEAN, False),
        ("num_different_global_patterns", COUNT, 1),
        ("num_random_blocks", COUNT, 0),
        ("local_window_blocks", _BLOCKS, (4,)),
        ("global_block_indices", _BLOCKS, (0,)),
        ("global_block_end_indices", _BLOCKS, None),
        ("num_sliding_window_blocks", COUNT, 3),
        until="0.19.7",
    ),
    switch("progressive_layer_drop.enabled", _LAYERS, until="0.19.8"),
    *parts(
        "progressive_layer_drop",
        "enabled",
        ("theta", NUMBER, 1.0),
        ("gamma", NUMBER, 0.001),
        until="0.19.8",
    ),
    switch("eigenvalue.enabled", _EIGENVALUE, until="0.19.8"),
    *parts(
        "eigenvalue",
        "enabled",
        ("verbose", BOOLEAN, False),
        ("max_iter", COUNT, 100),
        ("tol", NUMBER, 1e-2),
        ("stability", NUMBER, 1e-6),
        ("gas_boundary_resolution", POSITIVE, 1),
        ("layer_name", TEXT, "bert.encoder.layer"),
        ("layer_num", COUNT, 0),
        until="0.19.8",
    ),
    _whole("curriculum_learning", _CURRICULUM, "0.19.8"),
    _whole("quantize_training", _QUANTIZE, "0.19.7"),
    Row(
        "compression_training",
        OBJECT,
        None,
        no_effect("off"),
        (Case("an enabled: true anywhere in it", _some_switch_on, _COMPRESS),),
        until="0.19.7",
    ),
)
