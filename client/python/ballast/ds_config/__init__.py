"""Reads a ds_config.json and says what Ballast does with each of its keys, and with which value.

`check(config, world)` gives a Report; `python -m ballast.ds_config FILE` prints it. Arguments,
those of Hugging Face's Trainer, fill "auto". Needs neither torch nor DeepSpeed nor the extension.
The table of keys is ballast.ds_config.table.
"""

from __future__ import annotations

from ballast.ds_config.arguments import Arguments
from ballast.ds_config.check import check
from ballast.ds_config.errors import DsConfigError
from ballast.ds_config.report import Batch, Finding, Report
from ballast.ds_config.row import Verdict

__all__ = ["Arguments", "Batch", "DsConfigError", "Finding", "Report", "Verdict", "check"]
