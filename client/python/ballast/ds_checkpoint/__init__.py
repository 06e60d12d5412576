"""DeepSpeed's checkpoints, read and written without DeepSpeed and without running code of a file.

`open_zero(DIR)` reads a ZeRO checkpoint of stages 1, 2 or 3, `ballast-zero-to-fp32 DIR OUT` writes
its weights as safetensors, `load_universal` and `to_universal` read and write universal
checkpoints, `export_of` and `states_of` connect them with optimizers. Needs torch.
"""

from __future__ import annotations

from ballast.ds_checkpoint.errors import CheckpointError
from ballast.ds_checkpoint.exchange import export_of, states_of
from ballast.ds_checkpoint.universal import NamedState, load_universal, zero_states
from ballast.ds_checkpoint.universal_model import UniversalModel, universal_model
from ballast.ds_checkpoint.universal_writer import Group, Progress, to_universal
from ballast.ds_checkpoint.zero import Zero, open_zero

__all__ = [
    "CheckpointError", "Group", "NamedState", "Progress", "UniversalModel", "Zero", "export_of",
    "load_universal", "open_zero", "states_of", "to_universal", "universal_model", "zero_states",
]  # fmt: skip
