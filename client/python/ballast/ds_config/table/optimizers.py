"""Rows of optimizer: its type, and the params of each type.

Comes from: DeepSpeed's configuration (runtime/engine.py, ops/*; the 1-bit family of 0.19.6). Goes
to: ballast.ds_config.table.
"""

from __future__ import annotations

import dataclasses

from ballast.ds_config import filling
from ballast.ds_config.kinds import (
    BOOLEAN,
    COUNT,
    LR,
    NUMBER,
    OBJECT,
    POSITIVE,
    SHARE,
    TEXT,
    Kind,
    Listing,
    Number,
)
from ballast.ds_config.row import (
    Outcome,
    Row,
    Variant,
    equal,
    no_effect,
    present,
    refused,
    service,
    switch,
    under,
)

_BETAS = Listing(Number(0.0, 1.0, open_high=True), 2)
_EPS = Number(0.0)
_PART = no_effect("belongs to optimizer.type, whose verdict counts")

TYPE = Row(
    "optimizer.type",
    TEXT,
    None,
    no_effect("not set: the script makes its optimizer, such as bt.AdamW"),
)
OTHERS = (
    TYPE,
    Row("optimizer.params", OBJECT, None, _PART),
    Row(
        "optimizer.legacy_fusion",
        BOOLEAN,
        False,
        no_effect("chooses among DeepSpeed's implementations"),
    ),
    Row(
        "zero_allow_untested_optimizer",
        BOOLEAN,
        False,
        no_effect("optimizer.type decides which optimizer steps"),
    ),
    Row(
        "zero_force_ds_cpu_optimizer",
        BOOLEAN,
        True,
        no_effect("the servers step, with their own kernels"),
    ),
)

_CLIP = Row(
    "max_grad_norm",
    NUMBER,
    None,
    no_effect("not set"),
    (
        present(
            refused(
                "DeepSpeed refuses it among the params, too", "write gradient_clipping at the top"
            )
        ),
    ),
)


def _lr(default: float, kind: str = "AdamW") -> Row:
    how = service(f"bt.{kind}(lr=...), or lr of a param group; read in every round")
    return Row("lr", LR, default, how, filling=filling.LR)


def _weight_decay() -> Row:
    how = service("bt.AdamW(weight_decay=...); write it: bt.AdamW's own default is 0.01")
    return Row("weight_decay", NUMBER, 0.0, how, filling=filling.WEIGHT_DECAY, announced=True)


_BETAS_ROW = Row(
    "betas",
    _BETAS,
    (0.9, 0.999),
    service("bt.AdamW(betas=...)"),
    filling=filling.BETAS,
)
_EPS_ROW = Row("eps", _EPS, 1e-8, service("bt.AdamW(eps=...)"), filling=filling.EPS)
_BIAS = Row(
    "bias_correction",
    BOOLEAN,
    True,
    service("as in torch"),
    (equal(False, refused("Ballast has no AdamW without bias correction", "leave it true")),),
)
_FP32_STATES = Row(
    "fp32_optimizer_states",
    BOOLEAN,
    True,
    service("the servers keep moments in fp32"),
    (equal(False, refused("the servers keep moments in fp32 only", "leave it true")),),
)
_TORCH_ADAM = Row(
    "torch_adam",
    BOOLEAN,
    False,
    no_effect("the formula and the bits are torch's with either value"),
)


def _adam(mode: Row) -> tuple[Row, ...]:
    amsgrad = switch("amsgrad", service("the maximum of the second moments", needs="amsgrad"))
    return (
        _lr(1e-3),
        _BETAS_ROW,
        _EPS_ROW,
        _weight_decay(),
        _BIAS,
        amsgrad,
        _TORCH_ADAM,
        mode,
        _FP32_STATES,
        _CLIP,
    )


_ADAM_MODE = Row(
    "adam_w_mode",
    BOOLEAN,
    True,
    service('"Adam" means AdamW, in DeepSpeed as here, unless this is false'),
    (equal(False, service("Adam with L2 decay", needs="adam_l2")),),
    announced=True,
)
_ADAMW_MODE = Row(
    "adam_w_mode",
    BOOLEAN,
    True,
    no_effect('with type "AdamW" the decay is decoupled with either value'),
)


_FILLINGS = {
    "lr": filling.LR,
    "betas": filling.BETAS,
    "eps": filling.EPS,
    "weight_decay": filling.WEIGHT_DECAY,
}


def _params(kind: str, lr: float, *keys: tuple[str, Kind, object]) -> tuple[Row, ...]:
    """Params of bt.<kind>, each its argument of the same name."""
    rows = (
        Row(name, of, default, service(f"bt.{kind}({name}=...)"), filling=_FILLINGS.get(name))
        for name, of, default in keys
    )
    return (_lr(lr, kind), *rows, _CLIP)


def _others(*keys: tuple[str, Kind, object]) -> tuple[Row, ...]:
    """Params of an optimizer that Ballast lacks: known, typed, and left to the type's verdict."""
    rows = (
        Row(name, kind, default, _PART, filling=_FILLINGS.get(name)) for name, kind, default in keys
    )
    return (*rows, _CLIP)


_ONE_BIT: tuple[tuple[str, Kind, object], ...] = (
    ("lr", LR, 1e-3),
    ("betas", _BETAS, (0.9, 0.999)),
    ("eps", _EPS, 1e-8),
    ("weight_decay", NUMBER, 0.0),
    ("bias_correction", BOOLEAN, True),
    ("eps_inside_sqrt", BOOLEAN, False),
    ("amsgrad", BOOLEAN, False),
    ("cuda_aware", BOOLEAN, False),
    ("comm_backend_name", TEXT, "nccl"),
)
_LAMB_COEFFICIENTS: tuple[tuple[str, Kind, object], ...] = (
    ("max_coeff", Number(0.0), 10.0),
    ("min_coeff", Number(0.0), 0.01),
)
_ADAM_PARAMS = _ONE_BIT[:5]


def _compressed(instead: str) -> Outcome:
    return refused("not yet: compressed momentum; DeepSpeed 0.19.7 has dropped it", instead)


def _mup(kind: str) -> Outcome:
    return refused(
        "learning rates per layer width come from the mup package, in the script",
        f"make bt.AdamW with the groups that mup's {kind} makes",
    )


_VARIANTS = (
    Variant("AdamW", service("bt.AdamW"), _adam(_ADAMW_MODE)),
    Variant("Adam", service('bt.AdamW: "Adam" means AdamW in DeepSpeed'), _adam(_ADAM_MODE)),
    Variant(
        "Adagrad",
        service("bt.Adagrad", needs="adagrad"),
        (
            *_params("Adagrad", 1e-2, ("eps", _EPS, 1e-10), ("weight_decay", NUMBER, 0.0)),
            Row("amsgrad", BOOLEAN, False, no_effect("DeepSpeed's Adagrad does not use it either")),
            _FP32_STATES,
        ),
    ),
    Variant(
        "Lion",
        service("bt.Lion", needs="lion"),
        (
            *_params("Lion", 1e-3, ("betas", _BETAS, (0.9, 0.999)), ("weight_decay", NUMBER, 0.0)),
            _FP32_STATES,
        ),
    ),
    Variant(
        "Lamb",
        service(
            "bt.LAMB, whose ratio is the paper's: of the update with its bias corrections",
            needs="lamb",
        ),
        (
            *_params(
                "LAMB",
                1e-3,
                ("betas", _BETAS, (0.9, 0.999)),
                ("eps", _EPS, 1e-8),
                ("weight_decay", NUMBER, 0.0),
                ("bias_correction", BOOLEAN, True),
                *_LAMB_COEFFICIENTS,
            ),
            switch("eps_inside_sqrt", refused("bt.LAMB adds eps to the root", "leave it false")),
            switch("amsgrad", refused("DeepSpeed refuses it for Lamb, too", "leave it false")),
        ),
    ),
    Variant(
        "SGD",
        service("bt.SGD", needs="sgd"),
        _params(
            "SGD",
            1e-3,
            ("momentum", SHARE, 0.0),
            ("dampening", NUMBER, 0.0),
            ("weight_decay", NUMBER, 0.0),
            ("nesterov", BOOLEAN, False),
            ("maximize", BOOLEAN, False),
        ),
    ),
    Variant(
        "OneBitAdam",
        _compressed('use "AdamW"'),
        _others(*_ONE_BIT, ("freeze_step", COUNT, 100_000)),
        until="0.19.7",
    ),
    Variant(
        "ZeroOneAdam",
        _compressed('use "AdamW"'),
        _others(
            *_ONE_BIT,
            ("var_freeze_step", COUNT, 100_000),
            ("var_update_scaler", POSITIVE, 16),
            ("local_step_scaler", POSITIVE, 32678),
            ("local_step_clipper", POSITIVE, 16),
        ),
        until="0.19.7",
    ),
    Variant(
        "OneBitLamb",
        _compressed('use "Lamb"'),
        _others(
            *_ONE_BIT,
            *_LAMB_COEFFICIENTS,
            ("freeze_step", COUNT, 100_000),
            ("coeff_beta", SHARE, 0.9),
            ("factor_max", NUMBER, 4.0),
            ("factor_min", NUMBER, 0.5),
            ("factor_threshold", NUMBER, 0.1),
        ),
        until="0.19.7",
    ),
    Variant(
        "Muon",
        refused(
            "it needs whole matrices in one place, and the servers cut tensors into extents",
            'use "AdamW"',
        ),
        _others(
            *_ADAM_PARAMS,
            ("momentum", SHARE, 0.95),
            ("muon_lr", LR, None),
            ("adam_lr", LR, None),
            ("ns_method", TEXT, "gram"),
            ("adam_w_mode", BOOLEAN, True),
            ("torch_adam", BOOLEAN, False),
            ("fp32_optimizer_states", BOOLEAN, True),
        ),
    ),
    Variant("MuAdam", _mup("MuAdam"), _others(*_ADAM_PARAMS)),
    Variant("MuAdamW", _mup("MuAdamW"), _others(*_ADAM_PARAMS)),
    Variant(
        "MuSGD",
        _mup("MuSGD"),
        _others(("lr", LR, 1e-3), ("momentum", SHARE, 0.0), ("weight_decay", NUMBER, 0.0)),
    ),
)

VARIANTS = tuple(
    dataclasses.replace(variant, rows=under("optimizer.params", *variant.rows))
    for variant in _VARIANTS
)
UNKNOWN_TYPE = refused(
    "no optimizer of the service has this name",
    'use "AdamW"; an optimizer of torch.optim can step in the script, without Ballast',
)
