"""A DeepSpeed script over training_data, killed and restarted; for test_real_loader.py.

Arguments: the directory, and after how many micro-batches it waits to be killed (-1: never). It
trains two engines side by side, of accumulation 1 and 3. Each has a job of its own.
"""

import os
import signal
import sys

import torch

import ballast.deepspeed as deepspeed

EPOCHS, MICRO, SAMPLES = 3, 2, 26
ACCUMULATIONS = (1, 3)


def module():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8))


def data():
    values = torch.randn(SAMPLES, 16, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(values)


def engine(accumulation):
    return deepspeed.initialize(
        model=module(),
        training_data=data(),
        config={
            "train_micro_batch_size_per_gpu": MICRO,
            "gradient_accumulation_steps": accumulation,
            "gradient_clipping": 0.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
            "ballast": {"job": f"{os.environ['BALLAST_JOB']}-{accumulation}"},
        },
    )[0]


def batches(loader):
    for epoch in range(loader.epoch, EPOCHS):
        loader.sampler.set_epoch(epoch)
        yield from loader


def train(run, batch):
    # The script's own state is next to the position.
    run.optimizer.user_state = {"round": run.optimizer.round + 1}
    run.backward(run(batch[0]).square().mean())
    run.step()


def main(folder, dies):
    runs = [engine(accumulation) for accumulation in ACCUMULATIONS]
    streams = [batches(run.training_dataloader) for run in runs]
    for number in range(1000):
        drawn = [next(stream, None) for stream in streams]
        if number == 0:
            said = [[run.optimizer.round, run.optimizer.user_state] for run in runs]
        if all(batch is None for batch in drawn):
            break
        for run, batch in zip(runs, drawn):
            if batch is not None:
                train(run, batch)
        if number + 1 == dies:
            # The others may need this one for their unfinished work.
            print("done", flush=True)
            sys.stdin.read(1)
            os.kill(os.getpid(), signal.SIGKILL)
    for run, accumulation in zip(runs, ACCUMULATIONS):
        run.save_16bit_model(folder, f"model-{accumulation}.safetensors")
    print(said, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
