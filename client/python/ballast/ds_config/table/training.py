"""Rows of the batch, the precision, and how gradients are averaged and clipped.

Comes from: DeepSpeed's configuration (runtime/config.py, precision_config.py of 0.19.8). Goes to:
ballast.ds_config.table.
"""

from __future__ import annotations

from typing import Any

from ballast.ds_config import filling
from ballast.ds_config.kinds import (
    ANY_INTEGER,
    BOOLEAN,
    COUNT,
    POSITIVE,
    TEXT,
    TEXTS,
    Choice,
    Either,
    Listing,
    Number,
)
from ballast.ds_config.row import (
    Case,
    Look,
    Moved,
    Outcome,
    Row,
    above,
    alongside,
    equal,
    no_effect,
    parts,
    present,
    refused,
    sdk,
    service,
    switch,
    under,
    while_true,
)

_DTYPE = Choice(("fp32", "fp16", "bf16"), fold=True)
_TORCH_DTYPE = Choice(
    ("fp32", "fp16", "bf16"),
    also=(
        ("torch.float32", "fp32"),
        ("float32", "fp32"),
        ("float", "fp32"),
        ("torch.float16", "fp16"),
        ("float16", "fp16"),
        ("half", "fp16"),
        ("torch.bfloat16", "bf16"),
        ("bfloat16", "bf16"),
    ),
)
_AUTOCAST_DTYPE = Choice(
    (*_TORCH_DTYPE.values, "int8"), also=(*_TORCH_DTYPE.also, ("torch.int8", "int8"))
)
_MODEL_DTYPES = (("fp16.enabled", "fp16"), ("bf16.enabled", "bf16"))


def _differs_from_model(value: Any, look: Look) -> bool:
    model = [name for path, name in _MODEL_DTYPES if look(path) is True]
    return value is not None and value != (model[0] if model else "fp32")


def _wider_than_model(value: Any, look: Look) -> bool:
    return value == "fp32" and _differs_from_model(value, look)


def _in_16_bits(outcome: Outcome) -> tuple[Case, ...]:
    """The outcome of any value, while parameters are cast to 16 bits."""
    return (
        Case(
            "any value, with fp16 or bf16",
            lambda given, look: given is not None
            and any(look(path) is True for path, _ in _MODEL_DTYPES),
            outcome,
        ),
    )


_OTHER_DTYPE = "another dtype than the model's"

_BATCH = (
    Row(
        "train_batch_size",
        POSITIVE,
        None,
        alongside("samples of one round, over all trainers; follows from the other two",
                  "README.md"),
        filling=filling.TRAIN_BATCH,
        announced=True,
    ),
    Row(
        "train_micro_batch_size_per_gpu",
        POSITIVE,
        None,
        alongside(
            "ballast.deepspeed gives it to the loader of training_data; give it to a DataLoader of "
            "your own: batch_size",
            "torch.utils.data.DataLoader",
        ),
        filling=filling.MICRO_BATCH,
        announced=True,
    ),
    Row(
        "gradient_accumulation_steps",
        POSITIVE,
        None,
        no_effect("1: each backward() is followed by opt.step()"),
        (
            above(
                1,
                alongside(
                    "the engine of ballast.deepspeed divides each loss by it. In a loop of your "
                    "own, divide each loss, and call backward() as often before opt.step(): torch "
                    "adds in the parameter's dtype, bt.AdamW(accumulation_steps=...) in fp32",
                    "docs/optimizers.md",
                ),
            ),
        ),
        filling=filling.ACCUMULATION,
        announced=True,
    ),
    Row(
        "managed_gradient_accumulation",
        BOOLEAN,
        True,
        no_effect("true: the engine of ballast.deepspeed counts micro-batches"),
        (
            equal(
                False,
                alongside(
                    "each step() of ballast.deepspeed's engine is a round; in a loop of your own, "
                    "each opt.step() is",
                    "docs/deepspeed.md",
                ),
            ),
        ),
        since="0.19.4",
    ),
    Row(
        "dataloader_drop_last",
        BOOLEAN,
        False,
        alongside("give it to your DataLoader: drop_last", "torch.utils.data.DataLoader"),
    ),
)

_GRADIENTS = (
    Row(
        "gradient_clipping",
        Number(0.0),
        Moved((("", 0.0), ("0.19.3", 1.0))),
        service("bt.AdamW(max_grad_norm=...): by the global norm over all trainers and servers"),
        (equal(0.0, no_effect("0 means no clipping: leave max_grad_norm out")),),
        filling=filling.CLIP,
        announced=True,
    ),
    Row(
        "communication_data_type",
        _DTYPE,
        None,
        no_effect("gradients travel in the dtype of their parameter"),
        (
            Case(
                _OTHER_DTYPE,
                _differs_from_model,
                service("the dtype of gradients on the wire", needs="wire_dtype"),
            ),
        ),
    ),
    Row(
        "seq_parallel_communication_data_type",
        _DTYPE,
        "fp32",
        no_effect("is read only with sequence parallelism"),
    ),
    Row(
        "prescale_gradients",
        BOOLEAN,
        False,
        no_effect("the service sums in fp32 and divides once, at the end, with either value"),
    ),
    Row(
        "gradient_predivide_factor",
        Number(0.0, open_low=True),
        1.0,
        no_effect("the service sums in fp32 and divides once; an earlier division cancels out"),
    ),
    Row(
        "gradient_allreduce_op",
        Choice(("mean", "sum"), fold=True),
        "mean",
        service("the service averages over the trainers; do not wrap the model in DDP"),
        (equal("sum", service("the sum over the trainers", needs="sum_of_gradients")),),
        since="0.19.6",
    ),
    Row(
        "disable_allgather",
        BOOLEAN,
        False,
        no_effect("each trainer pulls the weights from the servers; there is no all-gather"),
    ),
    Row(
        "vocabulary_size", COUNT, None, no_effect("DeepSpeed only warns of odd sizes")
    ),
)

_FP16 = under(
    "fp16",
    switch(
        "enabled",
        service(
            "the service keeps fp32 masters of fp16 parameters; ballast.deepspeed casts the "
            "module, in a loop of your own you do: model.half()"
        ),
        filling=filling.FP16,
    ),
    Row(
        "auto_cast",
        BOOLEAN,
        False,
        no_effect("off: the script gives the model inputs of its dtype"),
        (
            while_true(
                "fp16.enabled",
                equal(True, sdk("casts inputs of forward()", needs="autocast_inputs")),
            ),
        ),
    ),
    Row(
        "loss_scale",
        Number(0.0),
        0.0,
        no_effect("is read only while fp16.enabled is true"),
        (
            while_true(
                "fp16.enabled",
                equal(
                    0.0,
                    service(
                        "a dynamic scale: bt.AdamW(loss_scale=bt.DynamicLossScale(...)), and "
                        "opt.scale(loss).backward()",
                        needs="dynamic_loss_scale",
                    ),
                ),
            ),
            while_true(
                "fp16.enabled",
                above(0.0, service("bt.AdamW(loss_scale=...), and opt.scale(loss).backward()")),
            ),
        ),
        announced=True,
    ),
)

_DYNAMIC = parts(
    "fp16",
    "loss_scale",
    ("initial_scale_power", COUNT, 16),
    ("loss_scale_window", ANY_INTEGER, 1000),
    ("hysteresis", ANY_INTEGER, 2),
    ("consecutive_hysteresis", BOOLEAN, False),
    ("min_loss_scale", ANY_INTEGER, 1),
)

_MASTERS = "masters and gradients below fp32"
_FP32 = "leave it false: the service keeps fp32 masters, outside the trainers' memory"

_PRECISION = (
    switch(
        "fp16.fp16_master_weights_and_grads",
        refused(f"the service does not keep {_MASTERS}", _FP32),
    ),
    switch(
        "bf16.enabled",
        service(
            "the service keeps fp32 masters of bf16 parameters; ballast.deepspeed casts the "
            "module, in a loop of your own you do: model.bfloat16()"
        ),
        filling=filling.BF16,
    ),
    Row(
        "bf16.check_grad_overflow",
        BOOLEAN,
        Moved((("", False), ("0.19.3", True))),
        service('bt.AdamW(nonfinite="skip"), the default: every sum is checked'),
        (
            equal(
                False,
                no_effect("the service checks every sum; no round with a NaN or Inf is applied"),
            ),
        ),
    ),
    Row(
        "bf16.immediate_grad_update",
        BOOLEAN,
        False,
        no_effect("gradients are read where backward() leaves them"),
    ),
    switch(
        "bf16.bf16_master_weights_and_grads",
        refused(f"the service does not keep {_MASTERS}", _FP32),
    ),
    switch(
        "bf16.bf16_optimizer_states",
        refused("the service keeps moments in fp32", _FP32),
    ),
    switch(
        "torch_autocast.enabled",
        alongside("run the forward pass under torch.autocast in the script", "torch.autocast"),
    ),
    *parts(
        "torch_autocast",
        "enabled",
        ("dtype", _AUTOCAST_DTYPE, None),
        ("lower_precision_safe_modules", TEXTS, None),
    ),
    Row(
        "data_types.grad_accum_dtype",
        _TORCH_DTYPE,
        None,
        no_effect("torch adds gradients in the dtype of their parameter"),
        (
            Case(
                '"fp32", with fp16 or bf16',
                _wider_than_model,
                sdk("micro-batches add up in fp32, as with bt.AdamW(accumulation_steps=...)"),
            ),
            Case(
                "another one that is not the model's",
                _differs_from_model,
                sdk("the dtype in which micro-batches add up", needs="short_accumulation"),
            ),
        ),
    ),
    Row(
        "data_types.param_dtype",
        _TORCH_DTYPE,
        None,
        no_effect("fp16.enabled and bf16.enabled decide"),
        (
            Case(
                _OTHER_DTYPE,
                _differs_from_model,
                refused("it contradicts fp16.enabled and bf16.enabled", "delete it"),
            ),
        ),
    ),
    Row(
        "data_types.buffer_dtype",
        _TORCH_DTYPE,
        None,
        no_effect("buffers keep the dtype that they have"),
        _in_16_bits(sdk("the dtype of the module's buffers")),
    ),
    Row(
        "data_types.keep_in_fp32_modules",
        Either((Choice(("auto",)), Listing(TEXT))),
        "auto",
        no_effect("nothing is cast"),
        _in_16_bits(
            sdk(
                'buffers of these names are fp32 ("auto": by the lists of a model of '
                "transformers); parameters are cast all the same"
            )
        ),
    ),
)

_BALLAST = (
    Row(
        "ballast.deepspeed_compat",
        TEXT,
        None,
        sdk("the DeepSpeed version whose defaults this report takes"),
    ),
    *(
        Row(
            f"ballast.{name}",
            kind,
            None,
            no_effect("not set"),
            (present(sdk(f"bt.AdamW({name}=...)", needs="config_section")),),
        )
        for name, kind in (
            ("endpoints", TEXTS),
            ("job", TEXT),
            ("durability", Choice(("power", "process", "none"))),
            ("profile", Choice(("exact", "deepspeed"))),
            ("init", Choice(("equal", "broadcast"))),
        )
    ),
)

ROWS = (*_BATCH, *_GRADIENTS, *_FP16, *_DYNAMIC, *_PRECISION, *_BALLAST)
