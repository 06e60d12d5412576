"""Lightning over state in Ballast servers: configure_optimizers() returns another optimizer.

    ballast-run --servers 2 examples/lightning_module.py [STEPS]

Needs pytorch-lightning. With several trainers Lightning wraps the model in DDP, as Accelerate does
(docs/huggingface.md).
"""

import logging
import sys

import pytorch_lightning as lightning
import torch

import ballast.torch as bt


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)
        )
        self.loss = 0.0

    def training_step(self, batch, _):
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.loss = loss.item()
        return loss

    def configure_optimizers(self):
        options = {"max_grad_norm": 1.0, "gradients": "auto"}  # one trainer of DDP pushes for all
        self.opt = bt.AdamW(self.named_parameters(), lr=1e-2, **options)
        return self.opt


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    torch.manual_seed(0)
    inputs = torch.randn(1024, 16)
    data = torch.utils.data.TensorDataset(inputs, inputs.square().mean(1, keepdim=True))
    loader = torch.utils.data.DataLoader(data, batch_size=16)
    trainer = lightning.Trainer(
        max_steps=steps, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_checkpointing=False, enable_model_summary=False, devices=1,
    )  # fmt: skip
    module = Regression()
    trainer.fit(module, loader)
    print(f"after {module.opt.round} steps the loss is {module.loss:.4f}")


if __name__ == "__main__":
    main()
