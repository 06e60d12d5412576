"""Hugging Face's Trainer over state in Ballast servers: two arguments more.

    ballast-run --servers 2 --nproc 2 examples/hf_trainer.py OUTPUT [STEPS]

Run it again with the same servers (BALLAST_ENDPOINTS) and more steps: it resumes from the
newest checkpoint in OUTPUT. Needs transformers and accelerate. Downloads nothing: the model is a
tiny GPT-2 with random weights, and the text is made of numbers that repeat.
"""

import sys

import torch
import transformers
from transformers.trainer_utils import get_last_checkpoint

import ballast.hf


class Counting(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, i):
        ids = (torch.arange(32) + i) % 64
        return {"input_ids": ids, "labels": ids}


output = sys.argv[1]
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 40
torch.manual_seed(0)
model = transformers.GPT2LMHeadModel(
    transformers.GPT2Config(
        vocab_size=64, n_positions=32, n_embd=64, n_layer=2, n_head=4,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
)
args = transformers.TrainingArguments(
    output_dir=output,
    max_steps=steps,
    per_device_train_batch_size=8,
    learning_rate=3e-3,
    max_grad_norm=1.0,  # the service clips the mean of all trainers
    save_steps=10,
    logging_steps=10,
    use_cpu=True,
    report_to=[],
)
trainer = transformers.Trainer(
    model,
    args,
    train_dataset=Counting(),
    optimizer_cls_and_kwargs=ballast.hf.optimizer(args=args),  # or a ds_config.json and args
    callbacks=[ballast.hf.Callback()],
)
result = trainer.train(resume_from_checkpoint=get_last_checkpoint(output))
if trainer.is_world_process_zero():
    print(f"after {trainer.state.global_step} steps the loss is {result.training_loss:.3f}")
