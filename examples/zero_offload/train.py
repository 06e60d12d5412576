"""A DeepSpeed script with ZeRO-Offload, as its user has it before Ballast.

docs/migrating-from-zero-offload.md changes its import, and nothing else:

    deepspeed --num_gpus 2 train.py --deepspeed --deepspeed_config ds_config.json
"""

import argparse

import torch

import deepspeed

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20, help="rounds of the whole run")
parser.add_argument("--checkpoints", default="checkpoints", metavar="DIR")
args = deepspeed.add_config_arguments(parser).parse_args()


class Characters(torch.nn.Module):
    """Two layers of a transformer over 64 characters."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(64, 48)
        layer = torch.nn.TransformerEncoderLayer(48, 4, 96, dropout=0.0, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(48, 64)

    def forward(self, ids):
        mask = torch.nn.Transformer.generate_square_subsequent_mask(
            ids.shape[1], dtype=self.head.weight.dtype
        )
        hidden = self.layers(self.embedding(ids), mask=mask, is_causal=True)
        return self.head(hidden)


torch.manual_seed(0)
model = Characters()
engine, optimizer, _, scheduler = deepspeed.initialize(
    args=args, model=model, model_parameters=model.parameters()
)
path, _ = engine.load_checkpoint(args.checkpoints)
seeds = torch.Generator().manual_seed(1000 * engine.global_steps + engine.global_rank)
loss = torch.tensor(0.0)
while engine.global_steps < args.steps:
    first = torch.randint(64, (engine.train_micro_batch_size_per_gpu(), 1), generator=seeds)
    ids = (first + 3 * torch.arange(17)) % 64  # each character says what follows
    logits = engine(ids[:, :-1].to(engine.device))
    loss = torch.nn.functional.cross_entropy(
        logits.float().flatten(0, 1), ids[:, 1:].flatten().to(engine.device)
    )
    engine.backward(loss)
    engine.step()
engine.save_checkpoint(args.checkpoints)
engine.save_16bit_model(args.checkpoints, "model.safetensors")
if engine.global_rank == 0:
    print(f"from {path or 'nothing'}: after {engine.global_steps} steps the loss is {loss:.2f}")
