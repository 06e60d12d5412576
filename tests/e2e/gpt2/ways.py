"""The three scripts of scripts/, as they are and as they are with Ballast: lines that change.

Comes from: the tests of GPT-2. Goes to: the scripts' text.
"""

from __future__ import annotations

import types
from pathlib import Path

from e2e.gpt2 import net, run

SCRIPTS = Path(__file__).with_name("scripts")
WAYS = ("deepspeed", "trainer", "accelerate")
# By way: whole lines, without their indentation, and their replacement.
CHANGES = {
    "deepspeed": {"import deepspeed": "import ballast.deepspeed as deepspeed"},
    "trainer": {
        "import torch": "import ballast.hf, torch",
        'optimizer_cls_and_kwargs=(torch.optim.AdamW, {"lr": net.LR, "fused": True}),': (
            "optimizer_cls_and_kwargs=ballast.hf.optimizer(config, args),"
        ),
        "callbacks=[watch],": "callbacks=[ballast.hf.Callback(), watch],",
    },
    "accelerate": {
        "optimizer = torch.optim.AdamW(net.groups(module), lr=net.LR, fused=True)": (
            "optimizer, clip = ours.adamw(module, case), 0.0"
        ),
        "import torch": "import torch; from e2e.gpt2 import ours",
    },
}


def text(way: str, ours: bool) -> str:
    """The script; ours: with Ballast. Raises where a line to change is not there once."""
    lines = (SCRIPTS / f"{way}_way.py").read_text().splitlines()
    for old, new in CHANGES[way].items() if ours else ():
        (place,) = [i for i, line in enumerate(lines) if line.strip() == old]
        lines[place] = lines[place].replace(old, new)
    return "\n".join(lines) + "\n"


def forget() -> None:
    """What Accelerate keeps for the whole process, such as the number of micro-batches."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()


def train(way: str, ours: bool, case: net.Case) -> run.Log:
    """Runs the script in this process."""
    if way != "deepspeed":
        forget()
    module = types.ModuleType(f"{way}_way")
    exec(compile(text(way, ours), f"{way}_way.py", "exec"), module.__dict__)
    return module.train(case)
