"""Models of transformers in 16 bits: rotary frequencies stay fp32, as with DeepSpeed 0.19.8."""

from __future__ import annotations

import ballast.deepspeed as deepspeed
import ballast.hf
import pytest
import torch
import transformers

SIZES = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 32,
}  # fmt: skip
FREQUENCIES = ("model.rotary_emb.inv_freq", "model.rotary_emb.original_inv_freq")


def by_engine(module, config):
    return deepspeed.initialize(model=module, config=config)[0].module


def by_trainer(module, config):
    ballast.hf.optimizer(config)[0]()(module)
    return module


@pytest.mark.parametrize("of", ["Llama", "Qwen2"])
@pytest.mark.parametrize("cast", [by_engine, by_trainer])
def test_parameters_are_cast_and_rotary_frequencies_stay(fake, of, cast):
    config = getattr(transformers, f"{of}Config")(**SIZES)
    for mode, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        for wanted, expected in (({}, torch.float32), ({"buffer_dtype": "bf16"}, torch.bfloat16)):
            module = getattr(transformers, f"{of}ForCausalLM")(config)
            before = dict(module.named_buffers())["model.rotary_emb.inv_freq"].clone()
            cast(module, {
                "train_micro_batch_size_per_gpu": 1, mode: {"enabled": True, "loss_scale": 8}
                if mode == "fp16" else {"enabled": True}, "data_types": wanted,
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            })  # fmt: skip
            assert {p.dtype for p in module.parameters()} == {dtype}
            buffers = dict(module.named_buffers())
            assert {n: b.dtype for n, b in buffers.items()} == dict.fromkeys(FREQUENCIES, expected)
            assert torch.equal(buffers[FREQUENCIES[0]], before.to(expected))
