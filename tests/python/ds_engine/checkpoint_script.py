"""A DeepSpeed script that saves, is killed, and loads; run by test_real_checkpoint.py.

Arguments: the directory, the first round's number or -1 to load, rounds until its end, the round
after which it saves (or -1), and "die" to be killed at the end.
"""

import os
import signal
import sys

import torch

import ballast.deepspeed as deepspeed


def module():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))


def batch(rank, i):
    return torch.randn(4, 16, generator=torch.Generator().manual_seed(100 * rank + i))


def schedule(optimizer):
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5], gamma=0.5)


def engine(more=None, schedule=schedule):
    return deepspeed.initialize(
        model=module(),
        lr_scheduler=schedule,
        config={
            "train_micro_batch_size_per_gpu": 4,
            "gradient_clipping": 0.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
            **(more or {}),
        },
    )[0]


def main(folder, first, end, saves):
    rank = int(os.environ["RANK"])
    run = engine()
    if first < 0:
        path, state = run.load_checkpoint(folder)
        first = state["next"]
        assert path == os.path.join(folder, f"global_step{first}")
        assert torch.equal(state["random"], torch.arange(5, dtype=torch.uint8))
        assert run.global_steps == first and run.optimizer.opt_step == first
    for i in range(first, end):
        run.backward(run(batch(rank, i)).square().mean())
        run.step()
        if i + 1 == saves:
            random = torch.arange(5, dtype=torch.uint8)
            run.save_checkpoint(folder, client_state={"next": saves, "random": random})
    if sys.argv[5:] == ["die"]:
        # The others may need this one for their unfinished work.
        print("done", flush=True)
        sys.stdin.read(1)
        os.kill(os.getpid(), signal.SIGKILL)
    run.save_16bit_model(folder, "model.safetensors")
    print(run.global_steps, run.global_samples, run.get_lr(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
