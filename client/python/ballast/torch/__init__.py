"""Torch optimizers whose state lives in Ballast servers.

    import ballast.torch as bt
    opt = bt.AdamW(model.parameters(), lr=3e-4)   # endpoints from BALLAST_ENDPOINTS
    ...                                           # the unchanged training loop
"""

from ballast import schedules
from ballast.loss_scale import DynamicLossScale
from ballast.torch.adagrad import Adagrad
from ballast.torch.adam import Adam
from ballast.torch.adamw import AdamW
from ballast.torch.apply_delta import ApplyDelta
from ballast.torch.lamb import LAMB
from ballast.torch.lion import Lion
from ballast.torch.random_state import random_state, set_random_state
from ballast.torch.sgd import SGD
from ballast.torch.wrap import wrap

__all__ = [
    "LAMB",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "ApplyDelta",
    "DynamicLossScale",
    "Lion",
    "random_state",
    "schedules",
    "set_random_state",
    "wrap",
]
